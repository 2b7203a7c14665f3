"""RMSNorm under scaling, at the largest numbers a format holds, and beside lost rows.

Legend: M rows, L the normalised width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.checks import at_most, finite_where_due, within
from properties.judgement.norm import bounded_weight, within_range
from properties.protocol import Array
from properties.registry import specification
from properties.rounding import Ball
from properties.rounding.arithmetic import REFERENCE_ROUNDOFF
from properties.strategies import norm
from properties.strategies.arrays import laid_out
from properties.strategies.norm import NormInputs, ScaledInputs, SpoiledInputs
from properties.subject import Subject


@specification("NRM-SCALE", source="Eq. 11", needs=("rms_norm",), examples=60, inputs=norm.scaled())
def test_nrm_scale(subject: Subject, inputs: ScaledInputs) -> None:
    """Multiplying a row by c changes the norm by what eps leaves of c, and by nothing else.

    With rho(x) = sqrt(mean(x^2) + eps): rms_norm(c x) rho(c x) = c rms_norm(x) rho(x) for one eps;
    and rms_norm(c x) with c^2 eps is sign(c) rms_norm(x) with eps.

    Hypotheses: c = ±2^e for e from -12 to 12, so that c x is exact; rows of amplitude 1e-4 to 10,
    as far as the declared formats hold their multiples and the squares of both; c, too, where eps
    or c^2 eps would be subnormal in compute or overflow there (float16).

    Legal freedoms: those of NRM-VALUE at each call; two outputs differ by both radii at most, and
    are finite.

    If it fails: eps is a floor, is relative to the row, or is added outside the root; a mean square
    is clipped; or the row's scale is taken from a table of exponents that ends too early. A model
    whose activations grow in training then changes its function with them.
    """
    inputs = _in_range(subject, inputs)
    factor, eps = inputs.factor, inputs.rows.eps
    x, scaled = _with_multiple(subject, inputs)
    weight = subject.round_to_storage(inputs.rows.weight)
    plain, r_plain = _judged(subject, x, weight, eps)
    multiple, r_multiple = _judged(subject, scaled, weight, eps)
    share = factor * _size(x, eps) / _size(scaled, eps)
    expected = share * plain
    radius = r_multiple + np.abs(share) * r_plain + 16 * REFERENCE_ROUNDOFF * np.abs(expected)
    within(subject, multiple, Ball(expected, radius, subject.arithmetic), "rms_norm(c x)")

    same, r_same = _judged(subject, scaled, weight, factor**2 * eps)
    expected = np.sign(factor) * plain
    what = "rms_norm(c x) with c^2 eps"
    within(subject, same, Ball(expected, r_same + r_plain, subject.arithmetic), what)


def _in_range(subject: Subject, inputs: ScaledInputs) -> ScaledInputs:
    """Rows and multiples, eps and c^2 eps moved to where the formula loses none of them."""
    computed = subject.arithmetic.computed
    smallest, largest = 4 * computed.smallest_normal, computed.largest / 8
    eps = max(inputs.rows.eps, smallest)
    ends = (np.log2([smallest, largest]) - np.log2(eps)) / 2
    exponent = np.clip(np.log2(abs(inputs.factor)), np.ceil(ends[0]), np.floor(ends[1]))
    factor = float(np.sign(inputs.factor) * 2.0**exponent)
    larger = max(abs(factor), 1.0)
    rows = within_range(subject, replace(inputs.rows, x=inputs.rows.x * larger, eps=eps))
    return ScaledInputs(replace(rows, x=rows.x / larger), factor)


def _with_multiple(subject: Subject, inputs: ScaledInputs) -> tuple[Array, Array]:
    """Rows and their multiples, both in values that storage holds."""
    factor, x = inputs.factor, subject.round_to_storage(inputs.rows.x)
    scaled = subject.round_to_storage(factor * x)  # rounds where it is smaller, if at all
    x = scaled / factor
    return laid_out(x, inputs.rows.layout), laid_out(scaled, inputs.rows.layout)


def _judged(subject: Subject, x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """What the implementation returns, and the radius of the reference."""
    ball: Any = reference.rms_norm(subject.ball(x), subject.ball(weight), eps=eps)
    out = subject.rms_norm(x, weight, eps=eps)
    finite_where_due(out, ball, "rms_norm")
    return out, ball.radius


def _size(x: Array, eps: float) -> Array:
    size: Array = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)
    return size


@specification(
    "NRM-LARGE", source="Eq. 11", needs=("rms_norm",), examples=40, inputs=norm.unit_rows()
)
def test_nrm_large(subject: Subject, inputs: NormInputs) -> None:
    """Rows are normalised right as long as the compute format holds the sum of their squares.

    The largest element is the largest number A of storage, or the one with L A^2 a quarter of the
    largest number of the compute and of the accumulate format, if that is smaller.

    Hypotheses: finite rows of any strides; one element far above the others, or all alike.

    Legal freedoms: those of NRM-VALUE. Beyond A the literal formula overflows: see NRM-BOUND.

    If it fails: squares are formed in storage. In float16 they overflow from 256 on, and the row
    comes out as zeros; with a maximum over the batch for a scale, the small rows vanish.
    """
    arithmetic = subject.arithmetic
    summed = min(arithmetic.computed.largest, arithmetic.accumulated.largest)
    largest = min(arithmetic.stored.largest / 2, np.sqrt(summed / inputs.x.shape[-1]) / 2)
    x = laid_out(subject.round_to_storage(inputs.x * largest), inputs.layout)
    weight = subject.round_to_storage(bounded_weight(subject, inputs))
    expected = reference.rms_norm(subject.ball(x), subject.ball(weight), eps=inputs.eps)
    within(subject, subject.rms_norm(x, weight, eps=inputs.eps), expected, "rms_norm")


@specification(
    "NRM-BOUND", source="Eq. 11", needs=("rms_norm",), examples=22, inputs=norm.unit_rows()
)
def test_nrm_bound(subject: Subject, inputs: NormInputs) -> None:
    """No element of the norm exceeds sqrt(L) abs(weight), for any finite row, and none is NaN.

    Hypotheses: rows whose largest element is half the largest number of storage, where the mean
    square overflows; of compute, if that is smaller, since what it cannot hold is infinite there.

    Proof: x_i^2 <= L mean(x^2), hence abs(x_i) / rho <= sqrt(L). Where squares overflow, the
    formula divides by an infinity and gives 0. Rounding is monotone, so a computed sum of squares
    is no less than any of them, in whatever format and order. All other roundings are relative,
    and are those of a row with one element other than 0, whose sum is exact; but for that of
    w / rho, where a kernel multiplies these first: it may be off by the least number of compute,
    and the result by that times abs(x_i).

    Legal freedoms: what lies inside the bound: zeros from an overflow, or the right value from a
    norm that scales rows first. An output that is larger than storage holds makes it unknown.

    If it fails: a NaN of infinity over infinity, or infinity times 0, ends the run at the first
    outlier; a reciprocal root of an overflowed sum amplifies a row instead of normalising it.
    """
    largest = min(subject.arithmetic.stored.largest, subject.arithmetic.computed.largest)
    x = subject.round_to_storage(inputs.x * (largest / 2))
    weight = subject.round_to_storage(bounded_weight(subject, inputs))
    width = x.shape[-1]
    rows: Any = reference.rms_norm(subject.ball(np.eye(width)), subject.ball(weight), eps=0.0)
    root = np.sqrt(width) * (1.0 + 4 * REFERENCE_ROUNDOFF)
    number = subject.arithmetic.computed
    least = 2.0 * number.roundoff * number.smallest_normal
    radius = np.diagonal(rows.radius) + np.abs(x) * least
    bound = Ball(np.broadcast_to(root * np.abs(weight), x.shape), radius, subject.arithmetic)
    actual = np.abs(subject.rms_norm(laid_out(x, inputs.layout), weight, eps=inputs.eps))
    at_most(subject, actual, bound, "abs(rms_norm)")


@specification("NRM-NAN", source="Eq. 11", needs=("rms_norm",), examples=30, inputs=norm.spoiled())
def test_nrm_nan(subject: Subject, inputs: SpoiledInputs) -> None:
    """A row of NaN or infinities leaves the other rows as they are.

    Hypotheses: two and more rows, at least one lost and one not; any strides; the others within
    the range of the declared formats, as for NRM-VALUE.

    Legal freedoms: anything for the lost row.

    If it fails: a statistic or a scale runs over the batch. One bad token then takes its batch with
    it, and gradient clipping cannot help.
    """
    rows = within_range(subject, inputs.rows)
    x = subject.round_to_storage(rows.x)
    value = np.nan if subject.arithmetic.stored.overflow_is_nan else inputs.value
    spoiled = laid_out(np.where(inputs.lost[:, None], value, x), rows.layout)
    weight = subject.round_to_storage(rows.weight)
    actual = subject.rms_norm(spoiled, weight, eps=rows.eps)[~inputs.lost]
    kept = subject.ball(x[~inputs.lost])
    expected = reference.rms_norm(kept, subject.ball(weight), eps=rows.eps)
    within(subject, actual, expected, "rms_norm beside lost rows")
