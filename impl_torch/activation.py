"""SiTU-GLU, the activation of the experts (Eq. 12, App. B of arXiv 2607.24653).

All functions are elementwise, take tensors of any shape and strides, and compute in float32
(float64 for float64), with one rounding to the storage format at the end.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from impl_torch.precision import compute_dtype

__all__ = ["sigmoid", "situ_glu", "softcap", "swiglu"]


def sigmoid(z: Tensor) -> Tensor:
    """The logistic function, relatively accurate on both sides down to subnormal results.

    ``torch.sigmoid`` evaluates 1/(1 + exp(-z)), which in float32 is 0 from z = -89 on although
    the true value is representable down to -103. Differentiable once.

    Args:
        z: float32 or float64, any shape; infinities allowed.
    """
    result: Tensor = _Sigmoid.apply(z)  # type: ignore[no-untyped-call]
    return result


def softcap(z: Tensor, beta: float) -> Tensor:
    """``beta * tanh(z / beta)`` (Eq. 18), exact near 0 and never above beta in magnitude.

    Args:
        z: float32 or float64, any shape; infinities give ±beta.
        beta: the cap, positive and finite in the format of z.

    Raises:
        ValueError: the cap is not.
    """
    _check_beta("beta", beta, z.dtype)
    # Below this bound tanh(z/beta) rounds to z/beta, and z itself spares the rounding of the
    # quotient, which is large where z/beta is subnormal.
    linear = 0.5 * math.sqrt(torch.finfo(z.dtype).eps) * beta
    return torch.where(z.abs() <= linear, z, torch.tanh(z / beta) * beta)


def situ_glu(gate: Tensor, up: Tensor, *, beta_gate: float = 4.0, beta_up: float = 25.0) -> Tensor:
    """``softcap(gate, beta_gate) * sigmoid(gate) * softcap(up, beta_up)`` (Eq. 12).

    Infinite input gives the limit and never NaN; a NaN stays in its own element. Differentiable
    once; the derivative of a softcap is computed as 1/cosh^2 and so stays positive where its tanh
    has already rounded to 1. Only the inputs are saved for the backward pass.

    Args:
        gate: any shape and floating-point format.
        up: the shape and format of gate.
        beta_gate: cap of the gate, positive and finite in the computing format.
        beta_up: cap of up, likewise.

    Returns:
        The shape and format of gate; abs(out) <= beta_gate * beta_up.

    Raises:
        ValueError: shapes differ, or a cap is not positive and finite.
        TypeError: formats differ or are not floating-point.
    """
    _check_pair(gate, up)
    _check_beta("beta_gate", beta_gate, compute_dtype(gate.dtype))
    _check_beta("beta_up", beta_up, compute_dtype(gate.dtype))
    result: Tensor = _SituGlu.apply(gate, up, float(beta_gate), float(beta_up))  # type: ignore[no-untyped-call]
    return result


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``gate * sigmoid(gate) * up``, the limit of SiTU-GLU for large betas.

    Args:
        gate: any shape and floating-point format.
        up: the shape and format of gate.

    Raises:
        ValueError: shapes differ.
        TypeError: formats differ or are not floating-point.
    """
    _check_pair(gate, up)
    dtype = compute_dtype(gate.dtype)
    wide_gate = gate.to(dtype)
    return (wide_gate * sigmoid(wide_gate) * up.to(dtype)).to(gate.dtype)


class _Sigmoid(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return _sigmoid(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        below, above = _sigmoid_pair(z)
        return cotangent * (below * above)


class _SituGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta_gate: float, beta_up: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.betas = beta_gate, beta_up
        g, u = gate.to(compute_dtype(gate.dtype)), up.to(compute_dtype(up.dtype))
        # In this order no product overflows before a zero sigmoid could make it NaN.
        capped = softcap(g, beta_gate) * _sigmoid(g) * softcap(u, beta_up)
        return capped.to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gate, up = ctx.saved_tensors
        beta_gate, beta_up = ctx.betas
        g, u, c = (t.to(compute_dtype(gate.dtype)) for t in (gate, up, cotangent))
        below, above = _sigmoid_pair(g)
        gate_cap, up_cap = softcap(g, beta_gate), softcap(u, beta_up)
        # The bounded factors first: a huge cotangent times a vanishing slope must not be inf * 0.
        d_gate = c * (below * (_sech_squared(g / beta_gate) + gate_cap * above) * up_cap)
        d_up = c * (gate_cap * below * _sech_squared(u / beta_up))
        return d_gate.to(gate.dtype), d_up.to(up.dtype), None, None


def _sigmoid(z: Tensor) -> Tensor:
    small = torch.exp(-z.abs())
    return torch.where(z >= 0, 1.0, small) / (1 + small)


def _sigmoid_pair(z: Tensor) -> tuple[Tensor, Tensor]:
    """sigmoid(z) and sigmoid(-z), from one exponential that cannot overflow."""
    small = torch.exp(-z.abs())
    low, high = small / (1 + small), 1 / (1 + small)
    positive = z >= 0
    return torch.where(positive, high, low), torch.where(positive, low, high)


def _sech_squared(z: Tensor) -> Tensor:
    return torch.cosh(z).reciprocal().square()


def _check_pair(gate: Tensor, up: Tensor) -> None:
    if gate.shape != up.shape:
        raise ValueError(
            f"gate has shape {tuple(gate.shape)} and up {tuple(up.shape)}; they must be equal"
        )
    if gate.dtype != up.dtype:
        raise TypeError(f"gate is {gate.dtype} and up {up.dtype}; they must be equal")


def _check_beta(name: str, beta: float, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    if not limits.tiny <= beta <= limits.max:
        raise ValueError(f"{name} must be positive and finite in {dtype}, got {beta!r}")
