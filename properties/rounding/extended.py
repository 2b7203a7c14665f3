"""What elementwise operations do at infinities, on overflow and at singular divisors.

The handlers in :mod:`properties.rounding.elementwise` call in here for the few elements whose
error is not finite at first sight. An interval [low, high] in the extended reals, cut by the bounds
of the operands, then decides between a finite radius after all, a certain infinity, an infinite
radius, and a possible NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from properties.rounding import bounds as known
from properties.rounding.arithmetic import Float64s, Format, Rule
from properties.rounding.ball import Ball, made
from properties.rounding.decision import Bools

# The ends of an interval round, too: a few units more than the handlers' own allowance.
_ENDS = 2.0**-49

__all__ = [
    "Binary",
    "Interval",
    "Unary",
    "add",
    "binary",
    "divide",
    "ends",
    "exp",
    "multiply",
    "safe_divisors",
    "sqrt",
    "square",
    "subtract",
    "unary",
    "unwritten",
]


class Interval(NamedTuple):
    """All results in reach, and where NaN is one of them."""

    low: Float64s
    high: Float64s
    nan: Bools | bool = False

    @property
    def holds_zero(self) -> Bools:
        return (self.low <= 0.0) & (self.high >= 0.0)

    @property
    def holds_infinity(self) -> Bools:
        return np.isinf(self.low) | np.isinf(self.high)

    @property
    def size(self) -> Float64s:
        return np.maximum(np.abs(self.low), np.abs(self.high))


Unary = Callable[[Interval], Interval]
Binary = Callable[[Interval, Interval, Format], Interval]


def ends(x: Ball) -> Interval:
    """The numbers in a ball, within its bounds; NaN where they may be NaN."""
    low, high = x.value - x.radius, x.value + x.radius
    anything = np.isinf(x.radius)
    low = np.where(anything, x.bounds[0], np.maximum(low, x.bounds[0]))
    high = np.where(anything, x.bounds[1], np.minimum(high, x.bounds[1]))
    return Interval(np.fmin(low, x.value), np.fmax(high, x.value), np.isnan(x.value))


def add(x: Interval, y: Interval, number: Format) -> Interval:
    del number
    nan = ((x.high == np.inf) & (y.low == -np.inf)) | ((x.low == -np.inf) & (y.high == np.inf))
    return Interval(x.low + y.low, x.high + y.high, nan)


def subtract(x: Interval, y: Interval, number: Format) -> Interval:
    return add(x, Interval(-y.high, -y.low), number)


def multiply(x: Interval, y: Interval, number: Format) -> Interval:
    del number
    nan = (x.holds_zero & y.holds_infinity) | (y.holds_zero & x.holds_infinity)
    corners = (x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high)
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners), nan)


@lru_cache(maxsize=64)
def safe_divisors(number: Format) -> tuple[float, float]:
    """Sizes of divisors whose rounded reciprocal neither overflows nor leaves the normal range."""
    return 1.0 / number.largest, 0.5 / number.smallest_normal


def divide(x: Interval, y: Interval, number: Format) -> Interval:
    low, high = safe_divisors(number)
    singular = y.holds_zero | (np.minimum(np.abs(y.low), np.abs(y.high)) < low)
    # The reciprocal of a huge divisor may be flushed to zero before it meets x.
    huge = y.size > high
    nan = (x.holds_infinity & huge) | (x.holds_zero & singular)
    corners = (x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high)
    lost = np.where(huge & ~np.isinf(y.low), x.size * number.underflow, 0.0)
    return Interval(
        np.where(singular, -np.inf, np.minimum.reduce(corners) - lost),
        np.where(singular, np.inf, np.maximum.reduce(corners) + lost),
        nan,
    )


def square(x: Interval) -> Interval:
    first, second = np.square(x.low), np.square(x.high)
    least = np.where(x.holds_zero, 0.0, np.minimum(first, second))
    return Interval(least, np.maximum(first, second))


def sqrt(x: Interval) -> Interval:
    return Interval(np.sqrt(np.maximum(x.low, 0.0)), np.sqrt(np.maximum(x.high, 0.0)), x.low < 0.0)


def exp(x: Interval) -> Interval:
    return Interval(np.exp(x.low), np.exp(x.high))


def unary(
    interval: Unary,
    x: Ball,
    z: Any,
    radius: Any,
    inside: Any,
    rule: Rule,
    bounds: known.Bounds,
    share: Any = None,
) -> Ball:
    """The ball of a unary operation, its elements outside ``inside`` done anew."""
    operand = ends(x)
    result = interval(operand)
    special = _Special.of(x)
    return _settled(x, (special,), z, radius, inside, result, rule, bounds, share)


def binary(
    interval: Binary,
    x: Ball,
    y: Ball,
    z: Any,
    radius: Any,
    inside: Any,
    rule: Rule,
    bounds: known.Bounds,
) -> Ball:
    """The ball of a binary operation, its elements outside ``inside`` done anew."""
    result = interval(ends(x), ends(y), x.arithmetic.computed)
    special = (_Special.of(x), _Special.of(y))
    return _settled(x, special, z, radius, inside, result, rule, bounds, None)


class _Special(NamedTuple):
    """Where an operand is exactly NaN, possibly NaN, exactly infinite, exactly 0, or any number."""

    exact_nan: Bools
    unknown: Bools
    exact_infinity: Bools
    exact_zero: Bools
    anything: Bools

    @classmethod
    def of(cls, x: Ball) -> _Special:
        exact, nan = x.radius == 0.0, np.isnan(x.value)
        zero = (x.value == 0.0) & exact
        infinity = np.isinf(x.value) & exact
        return cls(nan & exact, nan & ~exact, infinity, zero, np.isinf(x.radius))


def _settled(
    x: Ball,
    special: tuple[_Special, ...],
    z: Any,
    radius: Any,
    inside: Any,
    result: Interval,
    rule: Rule,
    bounds: known.Bounds,
    share: Any,
) -> Ball:
    low, high = result.low, result.high
    exact_nan, unknown, infinite, zero, anything = (
        _anywhere(which) for which in zip(*special, strict=True)
    )
    certain = (low == high) & np.isinf(low) & (low == z) & infinite
    spread = np.maximum(_gap(high, z), _gap(z, low))
    magnitude = np.abs(z) + spread
    share = (rule.share if share is None else share) + _ENDS
    exactly_zero = (magnitude == 0.0) & (zero | infinite)
    anew = spread + magnitude * share + np.where(exactly_zero, 0.0, rule.underflow)
    overflow = ~(magnitude * (1.0 + share) <= rule.reach)
    # One bound of an operand may make the radius finite, yet so large that all would pass. Only
    # bounds of the result on both sides lead back from an infinite radius.
    anew = np.where(inside, radius, np.where(overflow | anything, np.inf, anew))
    if known.is_finite(bounds):
        anew = np.minimum(anew, np.maximum(bounds[1] - z, z - bounds[0]))

    unknown = ~inside & (unknown | np.isnan(z) | result.nan)
    if rule.overflow_is_nan:
        unknown = unknown | (~inside & overflow & ~certain)
    exact_nan = ~inside & exact_nan
    anew = np.where(certain, 0.0, anew)
    anew = np.where(unknown | np.isnan(anew), np.inf, anew)
    anew = np.where(exact_nan, 0.0, anew)
    value = np.where(unknown | exact_nan, np.nan, z)
    settled = made(value, anew, x.arithmetic, bounds)
    # What overflows becomes infinite, or in a unit that truncates the largest number.
    least = np.fmax(np.where(z > 0.0, low, -high), 0.0)
    least = np.fmax(least * np.maximum(1.0 - share, 0.0) - rule.underflow, 0.0)
    settled.least_size = np.where(unknown | exact_nan, 0.0, np.fmin(least, rule.largest))
    return settled


def _anywhere(masks: tuple[Bools, ...]) -> Any:
    """Where one of the operands has the property."""
    return masks[0] if len(masks) == 1 else masks[0] | masks[1]


def _gap(high: Any, low: Any) -> Any:
    """high - low, 0 for equal infinities."""
    return np.where(high == low, 0.0, high - low)


def unwritten(x: Ball, radius: Any, inside: Any, rule: Rule) -> tuple[Any, Any]:
    """Value and radius of stored numbers, where those outside ``inside`` may overflow."""
    value = x.value
    if rule.overflow_is_nan:
        value = np.where(inside, value, np.nan)
    return value, np.where(inside, radius, np.inf)
