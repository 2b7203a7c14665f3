"""SiTU-GLU between its limits (App. B): the caps it attains, SwiGLU it comes from and stays below.

With t = tanh(g / b1), r = tanh(u / b2) and sigma = sigmoid(g), SiTU-GLU is b1 t sigma b2 r for a
gate g, an up value u and the caps b1 = beta_gate, b2 = beta_up; SwiGLU is g sigma u.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import reference_numpy as reference
from properties.checks import at_most, note_figure, require
from properties.judgement.activation import FLOAT64, LARGEST_SQUARE, Call, near_swiglu
from properties.judgement.activation_sweep import forward_sweep
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import activation_limits
from properties.strategies.activation import ActivationInputs
from properties.strategies.activation_gradient import forward_inputs
from properties.strategies.activation_limits import AttainInputs, LimitInputs
from properties.strategies.activation_sweep import Sweep, sweeps
from properties.subject import Subject

FLOAT8 = ml_dtypes.float8_e4m3fn
LARGEST_FLOAT8 = 448.0


@specification("ACT-SWEEP", source="Eq. 12", needs=("situ_glu",), examples=4, sweep=sweeps())
def test_act_sweep(subject: Subject, sweep: Sweep) -> None:
    """ACT-VALUE holds for every number that a storage format of 16 bits has, as gate and as up.

    Hypotheses: gate (or up) runs over all 65,536 bit patterns, infinities and NaN included,
    beside a finite up (or gate). Of a format with 32 bits or more, one number for every sign,
    exponent and 7 leading digits, with random digits behind them or none.

    Proof: ACT-VALUE; infinite inputs give the limits, and NaN gives NaN.

    Legal freedoms: those of ACT-VALUE.

    If it fails: the failing number stands at a seam between the pieces of an approximation, or
    at a wrong entry of a table. Random drawing needs thousands of cases to come upon it, and
    a model meets it in every forward pass.
    """
    forward_sweep(subject, sweep)


@specification(
    "ACT-ATTAIN",
    source="Eq. 19",
    needs=("situ_glu",),
    examples=40,
    inputs=activation_limits.attain_inputs(),
)
def test_act_attain(subject: Subject, inputs: AttainInputs) -> None:
    """The bound of Eq. 19 is attained: g = inf and u = ±inf give exactly ±b1 b2.

    Hypotheses: caps that are integers up to 15 times powers of two, so that their product has at
    most 8 binary digits; both and their product are held by compute and storage; storage has
    infinities.

    Proof: tanh(±inf) = ±1 and exp(-inf) = 0 are exact, hence sigma = 1; and every partial product
    of b1, b2 and ±1 is one of ±1, ±b1, ±b2, ±b1 b2, all of which are held, so no step rounds.

    Legal freedoms: any order of the products; partial results stored. What large finite inputs
    give is judged by ACT-VALUE and ACT-BOUND, within a radius.

    If it fails: NaN comes from inf/inf or inf * 0; a smaller number, from an approximation that
    clamps its argument and so never arrives at 1; a larger one, from an infinite input that
    bypasses the cap.
    """
    stored, computed = subject.arithmetic.stored, subject.arithmetic.computed
    product = inputs.beta_gate * inputs.beta_up
    numbers = np.array([inputs.beta_gate, inputs.beta_up, product])
    with np.errstate(over="ignore"):
        holds = all(np.array_equal(f.rounded(numbers), numbers) for f in (stored, computed))
    if stored.overflow_is_nan or not holds:
        return
    gate = np.full(inputs.signs.shape, np.inf)
    call = Call(subject, gate, gate * inputs.signs, inputs.beta_gate, inputs.beta_up)
    found = call.result()
    require(
        found == inputs.signs * product,
        f"situ_glu(inf, ±inf) is {found[found != inputs.signs * product][:1]}, "
        f"expected exactly ±{product:g}",
    )


@specification(
    "ACT-BRANCH",
    source="Eq. 12",
    needs=("situ_glu",),
    examples=60,
    inputs=forward_inputs(infinite=True),
)
def test_act_branch(subject: Subject, inputs: ActivationInputs) -> None:
    """abs(SiTU-GLU(g, u)) <= b1 sigmoid(g) b2: the gate keeps the tail of its sigmoid.

    In particular the result vanishes like exp(g) as g -> -inf, and is exactly 0 at -inf, although
    the softcap of the gate stays near -b1 there. The sigmoid reads g itself, not the capped gate.

    Hypotheses: gate and up finite or infinite; caps whose product storage can hold.

    Proof: abs(t) and abs(r) are at most 1. At -inf, sigma = 0 and the other factors are finite.

    Legal freedoms: those of ACT-VALUE; a zero of either sign.

    If it fails: the sigmoid is given the capped gate, and closed gates leak b1 sigmoid(-b1) b2 (1.8
    for the report's caps); or it is replaced by a hard or a rational one, whose tail is another.
    """
    call = Call.of(subject, inputs)
    if call.bound() is None:
        return
    found = call.result()
    gate, _ = call.balls(FLOAT64)
    bound: Any = reference.sigmoid(gate) * (call.beta_gate * call.beta_up)
    reach = Ball(bound.value, bound.radius + call.expected().radius, FLOAT64)
    at_most(subject, np.abs(found), reach, "abs(situ_glu)")
    closed = found[np.isneginf(call.gate)]
    require(closed == 0.0, f"situ_glu is {closed[closed != 0.0][:1]} at a gate of -inf, expected 0")


@specification(
    "ACT-LIMIT",
    source="Eq. 18",
    needs=("situ_glu",),
    examples=15,
    inputs=activation_limits.limit_inputs(),
)
def test_act_limit(subject: Subject, inputs: LimitInputs) -> None:
    """SiTU-GLU converges to SwiGLU as its caps grow, for every g and u, at the rate of ACT-ORIGIN.

    The distance is at most abs(SwiGLU) ((g/b1)^2 + (u/b2)^2) / 3 on each rung of a ladder of
    caps: with both caps doubled, a quarter of it.

    Hypotheses: abs(g) <= 40 and abs(u) <= 200, less where storage could not hold g u; caps that
    are powers of two up to 2^40, less where the compute format could not hold their product.

    Proof: that of ACT-ORIGIN, in which the caps are any positive numbers.

    Legal freedoms: those of ACT-VALUE. For caps so large that z/beta or a product underflows, the
    radius says so.

    If it fails: a cap is clamped to a largest one or kept in a coarse format; or tanh of a tiny
    quotient comes from a formula that cancels, so that a large cap, meant as none, gives noise
    or 0.
    """
    arithmetic = subject.arithmetic
    for gate_exponent, up_exponent in inputs.rungs(arithmetic.computed.largest):
        caps = 2.0**gate_exponent, 2.0**up_exponent
        near_swiglu(subject, Call.of(subject, inputs.with_caps(*caps, arithmetic.stored.largest)))


@specification(
    "ACT-BELOW", source="Eq. 18", needs=("situ_glu",), examples=40, inputs=forward_inputs()
)
def test_act_below(subject: Subject, inputs: ActivationInputs) -> None:
    """SiTU-GLU has the sign of g u, and is at most as large as SwiGLU (within the radius).

    Its sign is exact: the result times sign(g) sign(u) is never negative.

    Hypotheses: finite gate and up, at most 1e19 in size, so that SwiGLU is far within the
    range of float64; caps whose product storage can hold.

    Proof: 0 <= tanh z <= z for z >= 0, and tanh is odd. Products, divisions and casts keep signs
    under every rounding, and flushing to zero gives a zero; so a computed tanh with the sign of
    its argument, which every library has, gives the sign of g u or 0.

    Legal freedoms: those of ACT-VALUE.

    If it fails: by size, a slope above 1 at the origin or a cap that expands; by sign, an
    approximation of tanh that crosses 0 elsewhere, an absolute value, or an offset.
    """
    call = Call.of(subject, inputs, largest=LARGEST_SQUARE)
    if call.bound() is None:
        return
    found = call.result()
    agreed = np.sign(found) * np.sign(call.gate) * np.sign(call.up)
    require(agreed >= 0.0, "situ_glu has not the sign of gate * up")
    swiglu: Any = np.abs(reference.swiglu(*call.balls(FLOAT64)))
    reach = Ball(swiglu.value, swiglu.radius + call.expected().radius, FLOAT64)
    at_most(subject, np.abs(found), reach, "abs(situ_glu)")


@specification(
    "ACT-MONO",
    source="Eq. 12",
    needs=("situ_glu",),
    examples=40,
    inputs=activation_limits.mono_inputs(),
)
def test_act_mono(subject: Subject, inputs: ActivationInputs) -> None:
    """For a fixed gate the result is monotone in up: rising for g > 0, falling for g < 0.

    With both results within their radii: where u <= v, sign(g) (out(g, u) - out(g, v)) is at most
    the sum of the two. Every pair of ups of a row is compared, neighbours in the format among them.

    Hypotheses: gate finite, ups of a row finite or infinite and in ascending order; caps whose
    product storage can hold.

    Proof: tanh rises, and b1 t sigma b2 has the sign of g.

    Legal freedoms: those of ACT-VALUE. Bitwise monotony is not asked: an approximation in pieces
    may step back by a unit in the last place at a seam.

    If it fails: a polynomial or a table for tanh folds back where it ends, an index wraps around,
    or up is clamped by something that is not monotone, such as a remainder.
    """
    call = Call.of(subject, inputs)
    if call.bound() is None:
        return
    found, expected = call.result(), call.expected()
    towards = np.sign(call.gate)
    rising = towards * found
    if rising.size:
        before = np.maximum.accumulate(rising - expected.radius, axis=-1)
        at_most(subject, before, Ball(rising, expected.radius, FLOAT64), "situ_glu at a smaller up")


@specification(
    "ACT-FP8",
    source="Eq. 19",
    needs=("situ_glu",),
    examples=40,
    inputs=forward_inputs(infinite=True),
)
def test_act_fp8(subject: Subject, inputs: ActivationInputs) -> None:
    """With b1 b2 = 100 a plain cast of the result to float8_e4m3 is a number: no scale is needed.

    float8_e4m3fn, whose largest number is 448, has no infinity: what overflows becomes NaN. The
    cast of SiTU-GLU is at most the cast of b1 b2, for any input, with infinities. How often SwiGLU
    would have overflowed on the same inputs is reported.

    Hypotheses: caps with a product, rounded to compute and to storage, of at most 448.

    Proof: ACT-BOUND, and casting is monotone.

    Legal freedoms: those of ACT-BOUND.

    If it fails: a cap is missing. A layer that hands its activations to a matrix product in float8
    without a scale, as the bound invites to, gets NaN for single outliers.
    """
    call = Call.of(subject, inputs).with_held_caps()
    bound = call.bound()
    if bound is None or bound > LARGEST_FLOAT8:
        return
    with np.errstate(all="ignore"):
        cast = call.result().astype(FLOAT8).astype(np.float64)
        swiglu = reference.swiglu(call.gate, call.up).astype(FLOAT8).astype(np.float64)
        most = float(np.array(bound).astype(FLOAT8).astype(np.float64))
    require(~np.isnan(cast), "situ_glu overflows float8_e4m3")
    require(np.abs(cast) <= most, f"situ_glu exceeds {most:g} in float8_e4m3")
    note_figure(subject, "SwiGLU overflows float8_e4m3", bool(np.isnan(swiglu).any()))
