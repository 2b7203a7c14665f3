"""Sums, means, extrema and matrix products of balls.

A sum of n numbers of the format, added in any order with rounding to nearest, is wrong by at most
(n - 1) u times the sum of absolute values, the gauge: Jeannerod and Rump, Improved error bounds for
inner products in floating-point arithmetic, SIAM J. Matrix Anal. Appl. 34 (2013). No condition on n
is needed, because an addition never errs by more than its smaller operand; the classical factor
(1 + u)^(n-1) - 1 is larger, and 1 / (1 - n u) ends at n u = 1. Terms that have to be rounded first,
or products that are fused with the additions, cost one u more. Terms that are exactly 0 are not
counted, for adding them is exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from properties.rounding import bounds as known
from properties.rounding.arithmetic import REFERENCE_ROUNDOFF, Arithmetic, Float64s, Rule
from properties.rounding.ball import Ball, Origin, made
from properties.rounding.dispatch import refuse, takes_function, takes_ufunc

_add: Any = np.add.reduce
_any: Any = np.logical_or.reduce
_most: Any = np.maximum.reduce

__all__ = ["matmul", "maximum", "mean", "minimum", "total"]


@takes_function(np.sum)
def total(
    arithmetic: Arithmetic, x: Any, axis: Any = None, *, keepdims: bool = False, **others: Any
) -> Ball:
    """The sum in any order, in the accumulate format; then in compute if that is coarser."""
    ball = _ball("np.sum", x, others)
    bounds = known.NON_NEGATIVE if ball.bounds[0] >= 0.0 else known.FREE
    terms = _Terms.of(ball, axis, keepdims)
    additions = np.maximum(terms.count - 1.0, 0.0)
    roundings = additions + _cast(arithmetic) * np.minimum(terms.count, 1.0)
    radius = _accumulated(terms, roundings, additions, arithmetic)
    result = _finished(terms, radius, arithmetic, bounds, axis, keepdims)
    if ball.bounds[0] >= 0.0:
        least = _floor_of_terms(ball)
        floor = _add(least, axis=axis, keepdims=keepdims)
        largest = _most(least, axis=axis, keepdims=keepdims, initial=0.0)
        result.floor = _floor_of_total(floor, largest, roundings, terms.length, arithmetic)
    return result


@takes_function(np.mean)
def mean(
    arithmetic: Arithmetic, x: Any, axis: Any = None, *, keepdims: bool = False, **others: Any
) -> Ball:
    """The sum divided by the number of elements, which the formats are assumed to hold."""
    ball = _ball("np.mean", x, others)
    summed = total(arithmetic, ball, axis, keepdims=keepdims)
    count = ball.size / summed.size if summed.size else 0.0
    rule = arithmetic.rules["mean"]
    z = summed.value / count
    spread = summed.radius / count
    magnitude = np.abs(z) + spread
    # The terms may be divided before they are added, and each quotient underflows alone.
    underflow = rule.underflow + count * arithmetic.accumulated.underflow
    radius = spread + magnitude * rule.share + np.where(magnitude > 0.0, underflow, 0.0)
    radius = np.where(np.isnan(radius), summed.radius, radius)
    radius = np.where(np.isinf(z) & (summed.radius == 0.0), 0.0, radius)
    floor = None
    if summed.floor is not None:
        floor = np.maximum(summed.floor / count * (1.0 - rule.share) - underflow, 0.0)
    result = made(z, radius, arithmetic, summed.bounds, floor)
    if keepdims and ball.origin is not None and ball.origin.number == 1.0:
        result.origin = Origin(ball.origin.squared, count)
    return result


class _Terms(NamedTuple):
    """A sum's value, its gauge, what the terms' own radii add, and the number of non-zero terms."""

    ball: Ball
    value: Any
    gauge: Any
    spread: Any
    count: Any
    length: float

    @classmethod
    def of(cls, ball: Ball, axis: Any, keepdims: bool) -> _Terms:
        value = _add(ball.value, axis=axis, keepdims=keepdims)
        sizes = np.abs(ball.value)
        spread: Any = 0.0
        if ball.spread is not None:
            sizes = sizes + ball.spread
            spread = _add(ball.spread, axis=axis, keepdims=keepdims)
        gauge = _add(sizes, axis=axis, keepdims=keepdims)
        length = float(ball.size // value.size) if value.size else 0.0
        count: Any = length
        if np.count_nonzero(sizes) != sizes.size:
            count = _add(sizes != 0.0, axis=axis, keepdims=keepdims, dtype=np.float64)
        return cls(ball, value, gauge, spread, count, length)


def _cast(arithmetic: Arithmetic) -> float:
    """One more rounding per term where it is brought into a coarser format to be added."""
    return 1.0 if arithmetic.accumulated.roundoff > arithmetic.computed.roundoff else 0.0


def _accumulated(terms: _Terms, roundings: Any, additions: Any, arithmetic: Arithmetic) -> Any:
    share = arithmetic.accumulated.roundoff * roundings + additions * REFERENCE_ROUNDOFF
    # A number that is flushed to 0 is a further term, whose own effect is rounded as others are.
    underflow = roundings * arithmetic.accumulated.underflow * (1.0 + share)
    radius = terms.spread + terms.gauge * share + underflow
    if arithmetic.computed.roundoff > arithmetic.accumulated.roundoff:
        radius = radius + _final_rounding(terms.value, radius, roundings, arithmetic)
    return radius * (1.0 + (terms.length + 8.0) * REFERENCE_ROUNDOFF)


def _floor_of_terms(ball: Ball) -> Any:
    """The lower ends of terms that are at least 0."""
    least = ball.value if ball.spread is None else ball.value - ball.spread * (1.0 + 2.0**-51)
    least = np.where(np.isfinite(least), np.fmax(least, 0.0), 0.0)
    return least if ball.floor is None else np.fmax(least, ball.floor)


def _floor_of_total(
    floor: Any, largest: Any, roundings: Any, length: float, arithmetic: Arithmetic
) -> Any:
    """The lower end of a sum of terms that are at least 0 and add up to ``floor`` or more.

    Each rounding to nearest leaves 1 / (1 + u) of its operand. And as rounding is monotone, no sum
    is less than its ``largest`` term, however many terms there are.
    """
    one = 1.0 / (1.0 + arithmetic.accumulated.roundoff)
    share = np.exp(-roundings * math.log1p(arithmetic.accumulated.roundoff))
    least = np.maximum(floor * share, largest * one) * (1.0 - (length + 8.0) * REFERENCE_ROUNDOFF)
    least = least - roundings * arithmetic.accumulated.underflow
    if arithmetic.computed.roundoff > arithmetic.accumulated.roundoff:
        least = least * (1.0 - arithmetic.computed.roundoff) - arithmetic.computed.underflow
    return np.fmax(least, 0.0)


def _final_rounding(value: Any, radius: Any, roundings: Any, arithmetic: Arithmetic) -> Any:
    number = arithmetic.computed
    rounding = number.roundoff * (np.abs(value) + radius) + number.underflow
    return np.where(roundings > 0.0, rounding, 0.0)


def _finished(
    terms: _Terms,
    radius: Any,
    arithmetic: Arithmetic,
    bounds: known.Bounds,
    axis: Any,
    keepdims: bool,
) -> Ball:
    rule = _sum_rule(arithmetic)
    inside = terms.gauge + radius <= rule.largest
    if np.count_nonzero(inside) == inside.size:
        return made(terms.value, radius, arithmetic, bounds)
    ball = terms.ball
    exact_nan, unknown, certain = _special_terms(ball, terms, axis, keepdims, rule)
    value = np.where(~inside & (exact_nan | unknown), np.nan, terms.value)
    outside = np.where(exact_nan | certain, 0.0, np.inf)
    return made(value, np.where(inside, radius, outside), arithmetic, bounds)


def _sum_rule(arithmetic: Arithmetic) -> Rule:
    """Sums overflow in the narrower format, to NaN if either has no infinity to keep."""
    rule, number = arithmetic.rules["add"], arithmetic.accumulated
    if number.largest < rule.largest or (number.overflow_is_nan and not rule.overflow_is_nan):
        return rule._replace(
            largest=min(rule.largest, number.largest),
            overflow_is_nan=rule.overflow_is_nan or number.overflow_is_nan,
        )
    return rule


def _special_terms(
    ball: Ball, terms: _Terms, axis: Any, keepdims: bool, rule: Rule
) -> tuple[Any, Any, Any]:
    """Where a sum that is not finite is exactly NaN, possibly NaN, and certainly infinite."""

    def some(where: Any) -> Any:
        return _any(where, axis=axis, keepdims=keepdims)

    def added(what: Any) -> Any:
        return _add(what, axis=axis, keepdims=keepdims, dtype=np.float64)

    exact, nan, infinite = ball.radius == 0.0, np.isnan(ball.value), np.isinf(ball.value)
    exact_nan = some(nan & exact)
    wild = ~exact & np.isinf(ball.radius)
    up = wild if ball.bounds[1] == np.inf else np.zeros_like(wild)
    down = wild if ball.bounds[0] == -np.inf else np.zeros_like(wild)
    up, down = up | (infinite & (ball.value > 0.0)), down | (infinite & (ball.value < 0.0))
    # inf - inf needs two different terms, or two partial sums that overflow.
    clash = added(up) * added(down) - added(up & down) > 0.0
    finite = np.where(np.isfinite(ball.value) & ~wild, ball.value, 0.0)
    reach = np.where(np.isfinite(ball.value) & ~wild, ball.radius, 0.0)
    growth = 1.0 + 2.0 * rule.share * (terms.length + 1.0)
    rise = added(np.maximum(finite + reach, 0.0)) * growth > rule.largest
    fall = added(np.maximum(reach - finite, 0.0)) * growth > rule.largest
    clash = clash | (rise & some(down)) | (fall & some(up)) | (rise & fall)
    unknown = some(nan & ~exact) | clash
    certain = some(infinite & exact) & ~some(wild) & ~unknown
    if rule.overflow_is_nan:
        unknown = unknown | ~certain
    return exact_nan, unknown, certain


@takes_function(np.max)
def maximum(
    arithmetic: Arithmetic, x: Any, axis: Any = None, *, keepdims: bool = False, **others: Any
) -> Ball:
    """The largest element; those whose ball ends below it leave no trace in the radius."""
    ball = _ball("np.max", x, others)
    z = _most(ball.value, axis=axis, keepdims=keepdims)
    radius: Any = None
    if ball.spread is not None:
        best = _most(ball.value, axis=axis, keepdims=True)
        own = _most(np.where(ball.value == best, ball.spread, 0.0), axis=axis, keepdims=True)
        gap = best - ball.value
        # Roundings of this difference are relative to the two radii where it matters.
        over = ball.spread - gap + (own + ball.spread) * 2.0**-50
        over = np.where(np.isnan(over) & (ball.spread > 0.0), np.inf, over)
        radius = _most(np.fmax(over, own), axis=axis, keepdims=keepdims)
    nan = np.isnan(z)
    if np.count_nonzero(nan):  # formats differ in whether a NaN wins
        radius = np.where(nan, np.inf, 0.0 if radius is None else radius)
    return made(z, radius, arithmetic, ball.bounds)


@takes_function(np.min)
def minimum(
    arithmetic: Arithmetic, x: Any, axis: Any = None, *, keepdims: bool = False, **others: Any
) -> Ball:
    """The smallest element."""
    ball = _ball("np.min", x, others)
    flipped = made(-ball.value, ball.spread, arithmetic, known.negated(ball.bounds))
    result = maximum(arithmetic, flipped, axis, keepdims=keepdims)
    return made(-result.value, result.spread, arithmetic, ball.bounds)


@takes_ufunc(np.matmul)
def matmul(x: Ball, y: Ball) -> Ball:
    """Dot products in any order, products rounded in compute, sums in the accumulate format.

    Infinite or NaN operands give NaN where they are exactly NaN, and are unknown otherwise.
    """
    arithmetic = x.arithmetic
    terms = _product_terms(x, y)
    additions = np.maximum(terms.count - 1.0, 0.0)
    product = arithmetic.computed.roundoff
    added = arithmetic.accumulated.roundoff * (additions + _cast(arithmetic))
    share = product + added * (1.0 + product) + terms.count * REFERENCE_ROUNDOFF
    underflow = arithmetic.computed.underflow + arithmetic.accumulated.underflow
    radius = terms.spread + terms.gauge * share + terms.count * underflow * (1.0 + share)
    if product > arithmetic.accumulated.roundoff:
        radius = radius + _final_rounding(terms.value, radius, terms.count, arithmetic)
    radius = radius * (1.0 + (terms.length + 8.0) * REFERENCE_ROUNDOFF)
    return _multiplied(x, y, terms, radius, share)


def _product_terms(x: Ball, y: Ball) -> _Terms:
    x_size, y_size = np.abs(x.value), np.abs(y.value)
    gauge = np.matmul(x_size, y_size)
    spread: Any = 0.0
    if x.spread is not None:
        spread = np.matmul(x.spread, y_size if y.spread is None else y_size + y.spread)
    if y.spread is not None:
        spread = spread + np.matmul(x_size, y.spread)
    count = _products(x, y, x_size, y_size)
    value = np.matmul(x.value, y.value)
    return _Terms(x, value, gauge + spread, spread, count, float(x.shape[-1]))


def _products(x: Ball, y: Ball, x_size: Float64s, y_size: Float64s) -> Any:
    """How many products of each dot product are not exactly 0."""
    if np.count_nonzero(x_size) == x.size and np.count_nonzero(y_size) == y.size:
        return float(x.shape[-1])
    x_filled, y_filled = (x_size != 0.0), (y_size != 0.0)
    if x.spread is not None:
        x_filled = x_filled | (x.spread != 0.0)
    if y.spread is not None:
        y_filled = y_filled | (y.spread != 0.0)
    return np.matmul(x_filled.astype(np.float64), y_filled.astype(np.float64))


def _multiplied(x: Ball, y: Ball, terms: _Terms, radius: Any, share: Any) -> Ball:
    arithmetic = x.arithmetic
    rule = _sum_rule(arithmetic)
    inside = terms.gauge + radius <= rule.largest
    if np.count_nonzero(inside) == inside.size:
        return made(terms.value, radius, arithmetic)
    # Partial sums of both signs beyond the largest number can meet as inf - inf.
    (x_up, x_down), (y_up, y_down) = _signed_sizes(x), _signed_sizes(y)
    rise = np.matmul(x_up, y_up) + np.matmul(x_down, y_down)
    fall = np.matmul(x_up, y_down) + np.matmul(x_down, y_up)
    clash = ~(np.minimum(rise, fall) * (1.0 + share) <= rule.largest)
    unknown = clash | np.isnan(terms.value) | rule.overflow_is_nan
    x_nan, y_nan = (
        (np.isnan(ball.value) & (ball.radius == 0.0)).astype(np.float64) for ball in (x, y)
    )
    exact = np.matmul(x_nan, np.ones(y.shape)) + np.matmul(np.ones(x.shape), y_nan) > 0.0
    value = np.where(~inside & (unknown | exact), np.nan, terms.value)
    return made(value, np.where(inside, radius, np.where(exact, 0.0, np.inf)), arithmetic)


def _signed_sizes(x: Ball) -> tuple[Any, Any]:
    """How far the elements may be above and below 0."""
    return np.maximum(x.value + x.radius, 0.0), np.maximum(x.radius - x.value, 0.0)


def _ball(name: str, x: Any, others: dict[str, Any]) -> Ball:
    if others:
        refuse(f"{name} with {', '.join(others)}")
    if not isinstance(x, Ball):
        refuse(f"{name} of {type(x).__name__}")
    return x
