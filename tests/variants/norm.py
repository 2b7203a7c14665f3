"""Right norms that are not the reference's: other roots, scalings, sums and places of the cast."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from impl_torch.adapter import TorchImplementation
from properties.protocol import Precision


class Norm(TorchImplementation):
    """RMSNorm in float32, with the cast at the end."""

    name, version = "norm", "1"
    topics = ("norm",)

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        rows = x.float()
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
        return (rows * scale * weight.float()).to(x.dtype)


class Library(Norm):
    """PyTorch's own norm, in float16."""

    freedom = "a reciprocal root; one rounding to storage at the end"
    precision = Precision(storage="float16")

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        return rms_norm(x, x.shape[-1:], weight, eps)


class CastBeforeWeight(Norm):
    """Rows are cast back to bfloat16 before the weight is applied in it, as in Llama."""

    freedom = "one rounding to storage before the weight is applied"
    precision = Precision(storage="bfloat16")

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        rows = x.float()
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
        return weight * (rows * scale).to(x.dtype)


class WeightFirst(Norm):
    """The weight and the reciprocal root are multiplied first, and may be subnormal then."""

    freedom = "the order of the product; sums wider than the rest"
    precision = Precision(accumulate="float64")

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        scale = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)
        return x * (weight * scale).float()


class Hypotenuse(Norm):
    """The Euclidean length of the row and of sqrt(L eps), so that squares never overflow."""

    freedom = "an equal formula; the right value where squares overflow"

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        width = x.shape[-1]
        length = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True).float()
        size = torch.hypot(length, torch.tensor(math.sqrt(width * eps)))
        return x / size * math.sqrt(width) * weight


class PowerOfTwoFirst(Norm):
    """Rows are brought near 1 by a power of two, eps with them."""

    freedom = "an equal formula; the right value where squares overflow"
    precision = Precision(storage="bfloat16")

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        largest = x.float().abs().amax(-1, keepdim=True).nan_to_num(1.0, 1.0)
        exponent = torch.frexp(largest).exponent.clamp(-40, 40)
        rows = torch.ldexp(x.float(), -exponent)
        moved = torch.ldexp(torch.tensor(eps), -2 * exponent)
        return (rows / torch.sqrt(rows.square().mean(-1, keepdim=True) + moved) * weight).to(
            x.dtype
        )


class ReversedSum(Norm):
    """Squares added one by one from the last, their sum times 1 / L, the power -1/2."""

    freedom = "the order of the sum; a product with the reciprocal of L"

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        total = torch.zeros(x.shape[:-1])
        for column in reversed(range(x.shape[-1])):
            total = total + x[..., column] ** 2
        scale = (total * float(np.float32(1 / x.shape[-1])) + eps) ** -0.5
        return weight * (x * scale[..., None])


class NewtonRoot(Norm):
    """The reciprocal root by Newton's iteration from a linear guess, and nothing else."""

    freedom = "a reciprocal root without a root"

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        square = x.square().mean(-1, keepdim=True) + eps
        fraction, exponent = torch.frexp(square)
        odd = exponent % 2  # the fraction is brought to 1/2 .. 2, its exponent made even
        fraction = torch.ldexp(fraction, odd)
        root = 1.5 - 0.45 * fraction
        for _ in range(5):
            root = root + 0.5 * root * (1 - fraction * root * root)
        root = torch.where(square.isinf(), 0.0, torch.ldexp(root, -(exponent - odd) // 2))
        return x * root * weight
