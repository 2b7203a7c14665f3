"""SiTU-GLU, the activation of an expert: Eq. 12 and App. B of arXiv 2607.24653.

All functions work elementwise on arrays of one shape, and are right at infinities.
"""

from __future__ import annotations

import math

import numpy as np

from reference_numpy.arrays import Array
from reference_numpy.storage import stored

BETA_GATE = 4.0
BETA_UP = 25.0

__all__ = ["BETA_GATE", "BETA_UP", "sigmoid", "situ_glu", "situ_glu_vjp", "softcap", "swiglu"]


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(-z)), with full relative accuracy on both sides.

    The exponential is taken of -abs(z), so it cannot overflow, and the left tail is the quotient
    exp(z) / (1 + exp(z)) instead of a difference from 1.
    """
    tail = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, tail) / (1.0 + tail)


def softcap(z: Array, beta: float) -> Array:
    """beta tanh(z / beta): z near the origin (Eq. 18), +-beta far out.

    Raises ValueError unless beta is positive and finite.
    """
    _require_beta("beta", beta)
    return beta * np.tanh(z / beta)


def situ_glu(
    gate: Array, up: Array, *, beta_gate: float = BETA_GATE, beta_up: float = BETA_UP
) -> Array:
    """softcap(g, beta_gate) sigmoid(g) softcap(v, beta_up), Eq. 12 without its projections.

    gate and up have one shape, which the result has too; its absolute value is at most
    beta_gate beta_up (Eq. 19). Raises ValueError for unequal shapes and for a beta that is not
    positive and finite.
    """
    _require_glu_arguments(gate, up, beta_gate, beta_up)
    return stored(softcap(gate, beta_gate) * sigmoid(gate) * softcap(up, beta_up))


def situ_glu_vjp(
    gate: Array,
    up: Array,
    cotangent: Array,
    *,
    beta_gate: float = BETA_GATE,
    beta_up: float = BETA_UP,
) -> tuple[Array, Array]:
    """Gradients (d_gate, d_up) of sum(cotangent * situ_glu(gate, up)).

    With t = tanh(g / beta_gate), r = tanh(v / beta_up) and sigma = sigmoid(g):

        d_gate = c beta_up r ((1 - t^2) sigma + beta_gate t sigma (1 - sigma))
        d_up   = c beta_gate t sigma (1 - r^2)

    Both differences from 1 cancel once their function has saturated. They are what a backward pass
    has left that keeps the computed tanh and sigmoid; 1/cosh^2 and sigma(-g) are as good or better.
    Raises ValueError as ``situ_glu`` does.
    """
    _require_glu_arguments(gate, up, beta_gate, beta_up)
    _require_same_shape("cotangent", cotangent, gate)
    gate_tanh = np.tanh(gate / beta_gate)
    up_tanh = np.tanh(up / beta_up)
    sigma = sigmoid(gate)
    sigma_slope = sigma * (1.0 - sigma)
    gate_slope = (1.0 - np.square(gate_tanh)) * sigma + beta_gate * gate_tanh * sigma_slope
    d_gate = cotangent * (beta_up * up_tanh) * gate_slope
    d_up = cotangent * (beta_gate * gate_tanh * sigma) * (1.0 - np.square(up_tanh))
    return stored(d_gate), stored(d_up)


def swiglu(gate: Array, up: Array) -> Array:
    """g sigmoid(g) v, the limit of SiTU-GLU for large betas, for finite inputs.

    Raises ValueError for unequal shapes.
    """
    _require_same_shape("up", up, gate)
    return stored(gate * sigmoid(gate) * up)


def _require_glu_arguments(gate: Array, up: Array, beta_gate: float, beta_up: float) -> None:
    _require_same_shape("up", up, gate)
    _require_beta("beta_gate", beta_gate)
    _require_beta("beta_up", beta_up)


def _require_same_shape(name: str, array: Array, gate: Array) -> None:
    if array.shape != gate.shape:
        raise ValueError(f"{name} has shape {array.shape}, but gate has {gate.shape}")


def _require_beta(name: str, beta: float) -> None:
    if not 0.0 < beta < math.inf:
        raise ValueError(f"{name} = {beta} must be positive and finite; there is no uncapped mode")
