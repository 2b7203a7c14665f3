"""SiTU-GLU, the activation of the experts (Eq. 12, App. B).

With t = tanh(g / b1), r = tanh(u / b2) and sigma = sigmoid(g), SiTU-GLU is b1 t sigma b2 r for a
gate g, an up value u and the caps b1 = beta_gate, b2 = beta_up; SwiGLU is g sigma u.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require, within
from properties.judgement.activation import Call, near_swiglu
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import activation
from properties.strategies.activation import ActivationInputs
from properties.subject import Subject

LARGEST_FLOAT32 = 3.4028234663852886e38


@specification(
    "ACT-VALUE", source="Eq. 12", needs=("situ_glu",), examples=120, inputs=activation.inputs()
)
def test_act_value(subject: Subject, inputs: ActivationInputs) -> None:
    """SiTU-GLU(g, u) = b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2), elementwise, for finite g and u.

    The radius is relative to the result, so accuracy near 0 is judged as it is at 100.

    Hypotheses: finite gate and up of one shape, from subnormal to the largest numbers of the
    storage format, ±0 included, any strides, no elements included; finite positive caps whose
    product storage can hold.

    Legal freedoms: any order of the products; reciprocals of the caps; functions accurate to 8
    units of roundoff (exp: 4, and 1.5 times its argument), relative to their results; subnormal
    numbers flushed to zero; one rounding to storage at the end.

    If it fails: near 0 at small amplitude only, tanh comes from a formula that cancels, as
    2 sigmoid(2z) - 1 or (e^2z - 1)/(e^2z + 1), and the same left of g = -10, sigmoid from
    (1 + tanh(g/2))/2; NaN at large amplitude, from a formula that overflows; in the last elements
    of some lengths, from a vector tail; off by whole factors, a cap is missing, exchanged, or left
    at a default.
    """
    call = Call.of(subject, inputs)
    if call.bound() is not None:
        within(subject, call.result(), call.expected(), "situ_glu")


@specification(
    "ACT-BOUND",
    source="Eq. 19",
    needs=("situ_glu",),
    examples=100,
    inputs=activation.inputs(infinite=True),
)
def test_act_bound(subject: Subject, inputs: ActivationInputs) -> None:
    """abs(SiTU-GLU(g, u)) <= b1 b2, the product rounded to compute and then to storage.

    There is no tolerance, and equality is reached: 4 * 25 gives exactly 100.

    Hypotheses: gate and up finite or infinite; caps that compute and storage both represent; their
    product in the range of storage.

    Proof: let c be the rounding to nearest of the compute format, and s that of storage. Both are
    monotone and leave the caps alone. abs(t), abs(r) and sigma are at most 1, and so are their
    computed values: a library that returns more than 1 breaks this statement, and should. A
    product of factors up to 1, with b1 among them or not, stays at most b1 or 1: in each step the
    exact product is at most that number, which is representable, and no rounding in any direction
    crosses a representable number. The same holds with b2. So the step that joins the caps gives
    at most B = c(b1 b2), by monotonicity; B is representable, and further factors up to 1 leave
    the product within B. Storing gives at most s(B). Storing partial results on the way changes
    nothing, since s leaves b1, b2, 1 and s(B) alone, too.

    Legal freedoms: any association, also with b1 b2 folded into a constant; partial results
    stored; truncation instead of rounding to nearest.

    If it fails: by an ulp, a rational or polynomial tanh overshoots 1; by much, a cap is missing.
    Low precision casts rest on this bound: 100 fits into float8_e4m3, whose largest number is 448,
    and the values of SwiGLU do not.
    """
    call = Call.of(subject, inputs).with_held_caps()
    bound = call.bound()
    if bound is not None:
        size = np.abs(call.result())
        most = np.max(size, initial=0.0)
        require(size <= bound, f"abs(situ_glu) reaches {most}, but beta_gate * beta_up = {bound}")


@specification(
    "ACT-ORIGIN", source="Eq. 18", needs=("situ_glu",), examples=60, inputs=activation.inputs()
)
def test_act_origin(subject: Subject, inputs: ActivationInputs) -> None:
    """SiTU-GLU is SwiGLU up to third order in g/b1 and u/b2, with this explicit remainder:

    abs(SiTU - SwiGLU) <= sigmoid(g) (abs(u) abs(g)^3 / (3 b1^2) + abs(g) abs(u)^3 / (3 b2^2)),
    everywhere, which is abs(SwiGLU) ((g/b1)^2 + (u/b2)^2) / 3.

    Hypotheses: finite gate and up, at most 3.4e38 in size; caps as for ACT-VALUE. The bound is on
    the exact functions; the implementation adds the radius of ACT-VALUE.

    Proof: 0 <= z - tanh z <= z^3/3 for z >= 0, since the derivative of the difference is
    tanh^2 z <= z^2. With G = b1 t and U = b2 r this gives abs(g - G) <= abs(g)^3/(3 b1^2),
    abs(u - U) <= abs(u)^3/(3 b2^2), abs(G) <= abs(g); and g u - G U = (g - G) u + G (u - U).

    Legal freedoms: those of ACT-VALUE.

    If it fails: for small inputs the activation is not SwiGLU any more. A checkpoint is fine-tuned
    or compared with a SwiGLU baseline on that promise. A cap smaller than declared, a slope other
    than 1 at the origin, and sigmoid(g/b1) break it.
    """
    call = Call.of(subject, inputs, largest=LARGEST_FLOAT32)
    if call.bound() is not None:
        near_swiglu(subject, call)


@specification(
    "ACT-ODD",
    source="Eq. 12",
    needs=("situ_glu",),
    examples=40,
    inputs=activation.inputs(infinite=True),
)
def test_act_odd(subject: Subject, inputs: ActivationInputs) -> None:
    """SiTU-GLU is odd in up: out(g, -u) = -out(g, u), within twice the radius of ACT-VALUE.

    Hypotheses: gate and up finite or infinite; caps as for ACT-VALUE.

    Proof: tanh is odd, so the exact values are equal, and each result lies within the radius of
    its own; the radius is the same for u and -u.

    Legal freedoms: those of ACT-VALUE. Bit equality is not asked: formats and libraries that
    truncate, or that treat the two signs by different polynomials, are correct.

    If it fails: up has an offset (some models multiply by up + 1), is clamped on one side only, or
    passes through a function that is not odd.
    """
    call = Call.of(subject, inputs)
    if call.bound() is None:
        return
    mirrored = call._replace(up=-call.up)
    radius = 2.0 * call.expected().radius
    opposite = Ball(-call.result(), radius, subject.arithmetic)
    within(subject, mirrored.result(), opposite, "situ_glu(gate, -up)")


@specification(
    "ACT-FINITE",
    source="Eq. 12",
    needs=("situ_glu",),
    examples=60,
    inputs=activation.inputs(infinite=True, nan=True),
)
def test_act_finite(subject: Subject, inputs: ActivationInputs) -> None:
    """The result is NaN exactly where gate or up is NaN: infinities give none, and none spreads.

    Elements beside a NaN equal those of the run in which it is 1, within twice the radius.

    Hypotheses: any gate and up, with infinities and NaN; caps whose product storage can hold.

    Proof: all three factors have finite limits at ±inf, and the operation is elementwise. IEEE 754
    functions pass a NaN on; one that vanishes would hide a model that has diverged.

    Legal freedoms: those of ACT-VALUE for the neighbours, whose vectors may be computed
    differently where a NaN is among them; the sign and payload of a NaN.

    If it fails: at infinities, a product such as inf * 0 (as g * sigmoid(g) at -inf) or a quotient
    inf/inf is formed; at neighbours, a scale or a maximum is taken over the row or the block; a
    NaN that disappears passed through a minimum or maximum that drops it, as hard clamps do.
    """
    call = Call.of(subject, inputs)
    if call.bound() is None:
        return
    spoilt = np.isnan(call.gate) | np.isnan(call.up)
    result = call.result()
    require(~np.isnan(result) | spoilt, "situ_glu is NaN where neither gate nor up is")
    require(np.isnan(result) | ~spoilt, "situ_glu is a number where gate or up is NaN")
    if spoilt.any():
        clean = call.without_nan()
        alone = clean.result()
        require(~np.isnan(alone), "situ_glu is NaN, but no input is")
        beside = np.where(spoilt, alone, result)
        expected = Ball(alone, 2.0 * clean.expected().radius, subject.arithmetic)
        within(subject, beside, expected, "situ_glu beside a NaN")
