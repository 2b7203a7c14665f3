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
    """``beta * tanh(z / beta)`` (Eq. 18), exact near 0, in magnitude at most abs(z) and beta.

    Differentiable once; the slope is 1/cosh^2, which no rounding of tanh to 1 switches off.

    Args:
        z: float32 or float64, any shape; infinities give ±beta.
        beta: the cap, positive and finite in the format of z.

    Raises:
        ValueError: the cap is not.
    """
    _check_beta("beta", beta, z.dtype)
    result: Tensor = _Softcap.apply(z, float(beta))  # type: ignore[no-untyped-call]
    return result


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
        return cotangent * _sigmoid(z).mul_(_sigmoid(-z))


class _Softcap(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.beta = beta
        return _softcap(z, beta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return cotangent * _slope(z, ctx.beta), None


class _SituGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta_gate: float, beta_up: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.betas = beta_gate, beta_up
        g, u = gate.to(compute_dtype(gate.dtype)), up.to(compute_dtype(up.dtype))
        # In this order no product overflows before a zero sigmoid could make it NaN.
        capped = _softcap(g, beta_gate).mul_(_sigmoid(g)).mul_(_softcap(u, beta_up))
        return capped.to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gate, up = ctx.saved_tensors
        beta_gate, beta_up = ctx.betas
        g, u, c = (t.to(compute_dtype(gate.dtype)) for t in (gate, up, cotangent))
        gate_cap, below = _softcap(g, beta_gate), _sigmoid(g)
        # The bounded factors first: a huge cotangent times a vanishing slope must not be inf * 0.
        d_gate = _sigmoid(-g).mul_(gate_cap).add_(_slope(g, beta_gate))
        d_gate.mul_(below).mul_(_softcap(u, beta_up)).mul_(c)
        d_up = gate_cap.mul_(below).mul_(_slope(u, beta_up)).mul_(c)
        return d_gate.to(gate.dtype), d_up.to(up.dtype), None, None


# The formulas on plain tensors. ``torch.where`` would cost more than an exponential.


def _sigmoid(z: Tensor) -> Tensor:
    # exp(min(z, 0)) / (1 + exp(-|z|)): neither exponential overflows.
    denominator = z.abs().neg_().exp_().add_(1)
    return z.clamp(max=0).exp_().div_(denominator)


def _softcap(z: Tensor, beta: float) -> Tensor:
    # Up to this bound beta * tanh(z / beta) rounds to z, and z itself spares the rounding of the
    # quotient, which is coarse where it is subnormal.
    linear = 0.5 * math.sqrt(torch.finfo(z.dtype).eps) * beta
    magnitude = z.abs()
    capped = (magnitude / beta).tanh_().mul_(beta)
    return torch.clamp(capped, magnitude.clamp(max=linear), magnitude).copysign_(z)


def _slope(z: Tensor, beta: float) -> Tensor:
    return (z / beta).cosh_().reciprocal_().square_()


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
