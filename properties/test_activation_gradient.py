"""The gradients of SiTU-GLU (Eq. 12): values, limits, linearity, and where they must not die.

With t = tanh(g/b1), r = tanh(u/b2), sigma = sigmoid(g) and the cotangent c,

    d_gate = c b2 r ((1 - t^2) sigma + b1 t sigma (1 - sigma)),
    d_up   = c b1 t sigma (1 - r^2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.checks import at_most, note_figure, require, within
from properties.judgement.activation import (
    FLOAT64,
    Call,
    GradientCall,
    Gradients,
    within_gradients,
)
from properties.judgement.activation_sweep import gradient_sweep
from properties.protocol import Array
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import activation_gradient
from properties.strategies.activation_gradient import GradientInputs, LinearInputs
from properties.strategies.activation_sweep import Sweep, sweeps
from properties.subject import Subject

# The largest slope of g sigmoid(g) is 1.09984, at g = 2.3994.
STEEPEST_SWISH = 1.1


@specification(
    "ACT-VJP",
    source="Eq. 12, differentiated",
    needs=("situ_glu_vjp",),
    examples=100,
    inputs=activation_gradient.gradient_inputs(),
)
def test_act_vjp(subject: Subject, inputs: GradientInputs) -> None:
    """d_gate = c b2 r ((1 - t^2) sigma + b1 t sigma (1 - sigma)), d_up = c b1 t sigma (1 - r^2).

    The radius is that of these very formulas. A backward pass that keeps the computed tanh forms
    1 - t^2 from it, so its slope carries an absolute error of some units of roundoff, however small
    the slope: the radius is relative near the origin, and past some 7 caps in float32 it is
    all that is left. The same holds for 1 - sigma.

    Hypotheses: finite gate, up and cotangent of one shape, any strides, single elements included;
    gates up to 12 b1 and ups up to 3 b2 and 12 b2, and far beyond both; ±0 and subnormal numbers;
    caps from 2^-10 to 2^14; cotangents from 1e-45 up to where a gradient would overflow.

    Proof: the product rule, with tanh' = 1 - tanh^2 and sigmoid' = sigmoid (1 - sigmoid).

    Legal freedoms: those of ACT-VALUE; slopes as 1/cosh^2, 4 e/(1 + e)^2 or sigma(g) sigma(-g),
    which are as accurate or better; autograd of the formula in the compute format; any order of
    the products, also one that underflows on the way; one rounding of each gradient to storage.

    If it fails: everywhere, a factor is missing (the slope of a softcap or of sigmoid, a cap, or
    a division by one), or the two gradients are exchanged; past a cap only, the derivative is
    that of a hard clamp; at 0 only, it passes through abs or sign, whose autograd is 0 there; on
    16-bit storage only, the backward pass starts from rounded intermediates.
    """
    call = GradientCall.of(subject, inputs)
    within_gradients(subject, call.result(), call.expected())


@specification(
    "ACT-VJP-SWEEP",
    source="Eq. 12, differentiated",
    needs=("situ_glu_vjp",),
    examples=3,
    sweep=sweeps(),
)
def test_act_vjp_sweep(subject: Subject, sweep: Sweep) -> None:
    """ACT-VJP holds for every number that a storage format of 16 bits has, as gate and as up.

    Hypotheses: gate (or up) runs over all 65,536 bit patterns, infinities and NaN included,
    beside a finite up (or gate). Of a format with 32 bits or more, one number for every sign,
    exponent and 7 leading digits, with random digits behind them or none.

    Proof: ACT-VJP; at infinities the limits of ACT-VJP-FINITE.

    Legal freedoms: those of ACT-VJP.

    If it fails: the failing number stands at a seam between the pieces of an approximation, at
    a wrong entry of a table, or where a slope is computed from a difference of neighbours.
    """
    gradient_sweep(subject, sweep)


@specification(
    "ACT-VJP-FINITE",
    source="Eq. 12, differentiated",
    needs=("situ_glu_vjp",),
    examples=60,
    inputs=activation_gradient.gradient_inputs(infinite=True, nan=True),
)
def test_act_vjp_finite(subject: Subject, inputs: GradientInputs) -> None:
    """Infinite inputs have gradients, 0 on their own side; a NaN stays in its own element.

    d_gate is exactly 0 (of either sign) where the gate is infinite, d_up where up is; the other
    gradient is the limit there. Both are NaN exactly where gate, up or cotangent is NaN.

    Hypotheses: gate and up finite, infinite or NaN; cotangent finite or NaN. (An infinite
    cotangent times a slope of 0 is NaN by IEEE 754, and that is not judged.)

    Proof: tanh(±inf) = ±1 and exp(-inf) = 0 are exact by IEEE 754's recommended functions, so
    1 - t^2, 1/cosh^2 and 1 - sigma or sigma are exact zeros, and every other factor is finite. The
    operation is elementwise.

    Legal freedoms: those of ACT-VJP at the finite places.

    If it fails: NaN at infinities: a factor of the forward pass is reused where it is infinite
    (g sigma' at inf), or a quotient inf/inf is formed; NaN at large finite inputs: exp or cosh
    overflows and meets a zero; NaN in other elements: a scale or norm is taken over the block; a
    NaN that vanishes hides the step in which a model diverged.
    """
    call = GradientCall.of(subject, inputs)
    forward = call.forward
    found = call.result()
    spoilt = np.isnan(forward.gate) | np.isnan(forward.up) | np.isnan(call.cotangent)
    for name, values in found._asdict().items():
        require(~np.isnan(values) | spoilt, f"{name} is NaN where no input is")
        require(np.isnan(values) | ~spoilt, f"{name} is a number where an input is NaN")
    within_gradients(subject, found, call.expected())


@specification(
    "ACT-VJP-LINEAR",
    source="Eq. 12, differentiated",
    needs=("situ_glu_vjp",),
    examples=22,
    inputs=activation_gradient.linear_inputs(),
)
def test_act_vjp_linear(subject: Subject, inputs: LinearInputs) -> None:
    """The VJP is linear in its cotangent: additive, homogeneous at any scale, and 0 at 0.

    vjp(c) + vjp(d) = vjp(c + d) and vjp(2^k c) = 2^k vjp(c), each within the radii of its
    calls, and vjp(0) is exactly 0.

    Hypotheses: finite gate and up; c and d small integers (times a
    power of two), whose sum every format holds; 2^k c from
    the smallest normal number of the storage format to where a gradient would overflow.

    Proof: both gradients are c times a number that does not depend on c.

    Legal freedoms: those of ACT-VJP. Bit equality under 2^k is not asked.

    If it fails: the backward pass clips or normalises gradients, or brings the cotangent into a
    format of less range, so that a loss scale changes the result: large ones overflow to inf, and
    small ones vanish.
    """
    call = GradientCall(Call.of(subject, inputs.forward), inputs.first)
    least = subject.arithmetic.stored.smallest_normal
    unit, other_unit = inputs.units(call.largest_cotangent(), least)
    if unit < least:  # caps so large that no cotangent of this format leaves a finite gradient
        return
    first, second = inputs.first * unit, inputs.second * unit
    parts = _claims(call, first), _claims(call, second)
    for name, one, other, whole in zip(
        Gradients._fields, *parts, _claims(call, first + second), strict=True
    ):
        _equal(subject, whole, one + other, f"{name}: vjp(c + d) - vjp(c) - vjp(d)")
    scale = other_unit / unit
    scaled = _claims(call, first * scale)
    for name, one, many in zip(Gradients._fields, parts[0], scaled, strict=True):
        _equal(subject, many, one * scale, f"{name}: vjp({scale:g} c) - {scale:g} vjp(c)")
    for name, values in call.result(np.zeros_like(first))._asdict().items():
        require(values == 0.0, f"{name} is not 0 for a cotangent of zeros")


@specification(
    "ACT-VJP-BOUND",
    source="Eq. 12, differentiated",
    needs=("situ_glu_vjp",),
    examples=35,
    inputs=activation_gradient.gradient_inputs(infinite=True),
)
def test_act_vjp_bound(subject: Subject, inputs: GradientInputs) -> None:
    """abs(d_gate) <= 1.1 b2 abs(c) and abs(d_up) <= b1 abs(c) sigma, within the radii.

    The activation is Lipschitz, with constants that the caps give; SwiGLU's gradients grow without
    limit, in proportion to up and to the gate.

    Hypotheses: gate and up finite or infinite, cotangent finite.

    Proof: abs(t), abs(r), 1 - t^2 and 1 - r^2 are at most 1, which gives the second. For g >= 0,
    b1 t <= g, so (1 - t^2) sigma + b1 t sigma (1 - sigma) <= sigma + g sigma (1 - sigma), the slope
    of g sigmoid(g), whose largest value is 1.09984; it is not negative. For g < 0 the first term
    lies in [0, 1/2] and the second in [-0.224, 0], since z sigma(z) sigma(-z) <= 0.224.

    Legal freedoms: those of ACT-VJP.

    If it fails: a cap is missing in the backward pass, and one outlier of a hidden state sends
    a gradient through the layer that the forward pass would have stopped.
    """
    call = GradientCall.of(subject, inputs)
    found, expected = call.result(), call.expected()
    forward = call.forward
    c = np.abs(Ball.exact(call.cotangent, FLOAT64))
    gate, _ = forward.balls(FLOAT64)
    sigma = reference.sigmoid(gate)
    bounds = Gradients(c * (STEEPEST_SWISH * forward.beta_up), c * (forward.beta_gate * sigma))
    for name, values, bound, ball in zip(Gradients._fields, found, bounds, expected, strict=True):
        reach = Ball(bound.value, bound.radius + ball.radius, FLOAT64)
        at_most(subject, np.abs(values), reach, f"abs({name})")


@specification(
    "ACT-ALIVE",
    source="Eq. 18, differentiated",
    needs=("situ_glu_vjp",),
    examples=30,
    inputs=activation_gradient.alive_inputs(),
)
def test_act_alive(subject: Subject, inputs: GradientInputs) -> None:
    """The gradients keep their sign wherever it is not in doubt: a softcap never dies like a clamp.

    Wherever the radius is smaller than the derivative, d_up has the sign of c g, and d_gate for
    g > 0 that of c u. With the report's allowance for tanh that reaches to some 7.5 caps in
    float32, to 17 in float64, and to 2 where all is computed in bfloat16.

    Hypotheses: g in (0, 3 b1]; u from 0 to 20 b2 on either side; c not 0.

    Proof: 1 - r^2 = 1/cosh^2(u/b2) > 0 everywhere, and for g > 0 both terms of d_gate are positive.
    The number found lies within the radius, so it lies on the same side of 0.

    Legal freedoms: a derivative that is 0 once the computed tanh may have rounded to 1, and one
    that stays positive far beyond, computed as 1/cosh^2. How far it stayed alive is reported.

    If it fails: the derivative is that of a hard clamp, 1 inside and 0 outside: what exceeds a
    cap once can never learn to return.
    """
    call = GradientCall.of(subject, inputs)
    found, expected = call.result(), call.expected()
    for name, values, ball in zip(Gradients._fields, found, expected, strict=True):
        certain = np.abs(ball.value) > ball.radius
        require(
            ~certain | (np.sign(values) == np.sign(ball.value)),
            f"{name} is 0 or has the wrong sign where the derivative exceeds its radius",
        )
    reach = np.abs(call.forward.up) / call.forward.beta_up
    note_figure(subject, "d_up alive to, in caps", np.max(reach, where=found.d_up != 0, initial=0))


def _claims(call: GradientCall, cotangent: Array) -> Gradients:
    """What the implementation returned, with the radii that its results have."""
    found, expected = call.result(cotangent), call.expected(cotangent)
    return Gradients(
        *(Ball(a, ball.radius, FLOAT64) for a, ball in zip(found, expected, strict=True))
    )


def _equal(subject: Subject, one: Any, other: Any, what: str) -> None:
    within(subject, one.value, Ball(other.value, one.radius + other.radius, FLOAT64), what)
