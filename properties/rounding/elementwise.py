"""Elementwise operations on balls.

Each handler encloses the exact operation on all numbers within the radii (``spread``), and adds the
rounding of an implementation, relative to the largest result in reach (``magnitude``), and its
underflow, except where the result is exactly 0. Where that is not enough to stay finite, or an
operand is not, :mod:`properties.rounding.extended` works with the ends of intervals.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from properties.rounding import bounds as known
from properties.rounding import extended
from properties.rounding.arithmetic import Float64s, Rule
from properties.rounding.ball import Ball, Origin, made
from properties.rounding.decision import Bools
from properties.rounding.dispatch import takes_ufunc

# An argument of exp beyond this has left the range of every format.
_FAR = 1e4

# The radius of the operands' radii rounds, too.
_ROUNDED_UP = 1.0 + 2.0**-50


@takes_ufunc(np.add)
def add(x: Ball, y: Ball) -> Ball:
    """x + y; adding an exact 0 is exact."""
    rule = x.arithmetic.rules["add"]
    bounds = known.added(x.bounds, y.bounds, rule.margin)
    return _sum(x, y, x.value + y.value, rule, bounds, extended.add)


@takes_ufunc(np.subtract)
def subtract(x: Ball, y: Ball) -> Ball:
    """x - y; subtracting an exact 0 is exact."""
    rule = x.arithmetic.rules["add"]
    bounds = known.added(x.bounds, known.negated(y.bounds), rule.margin)
    return _sum(x, y, x.value - y.value, rule, bounds, extended.subtract)


def _sum(
    x: Ball, y: Ball, z: Float64s, rule: Rule, bounds: known.Bounds, interval: extended.Binary
) -> Ball:
    spread: Any = None
    magnitude = np.abs(z)
    if x.spread is not None or y.spread is not None:
        spread = _either(x.spread, y.spread, z)
        magnitude = magnitude + spread
    radius = _rounded(magnitude, spread, rule)
    for term in (x, y):
        if np.count_nonzero(term.value) != term.size:
            zero = _exactly(term.value == 0.0, term)
            radius = np.where(zero, 0.0 if spread is None else spread, radius)
    inside = magnitude <= rule.reach
    if _all(inside):
        origin = x.origin if interval is extended.add and y.bounds[0] >= 0.0 else None
        floor = _floor_of_sum(x, y, interval, rule)
        return _from(origin, made(z, radius, x.arithmetic, bounds, floor))
    return extended.binary(interval, x, y, z, radius, inside, rule, bounds)


def _floor_of_sum(x: Ball, y: Ball, interval: extended.Binary, rule: Rule) -> Any:
    if x.floor is None or interval is not extended.add or y.bounds[0] < 0.0:
        return None
    return _lowered(x.floor + y.bounds[0], rule)


@takes_ufunc(np.multiply)
def multiply(x: Ball, y: Ball) -> Ball:
    """x y; factors that are exactly 0, 1 or -1 add no rounding."""
    rule = x.arithmetic.rules["multiply"]
    z = x.value * y.value
    x_size, y_size = np.abs(x.value), np.abs(y.value)
    spread: Any = None
    magnitude = x_size * y_size
    if x.spread is not None:
        spread = (y_size if y.spread is None else y_size + y.spread) * x.spread
    if y.spread is not None:
        crossed = x_size * y.spread
        spread = crossed if spread is None else spread + crossed
    if spread is not None:
        magnitude = magnitude + spread
    radius = _rounded(magnitude, spread, rule, x, y)
    for factor, size in ((x, x_size), (y, y_size)):
        radius = _unrounded(radius, spread, size == 1.0, factor)
    bounds = known.multiplied(x.bounds, y.bounds, rule.margin)
    inside = magnitude <= rule.reach
    if _all(inside):
        return made(z, radius, x.arithmetic, bounds)
    return extended.binary(extended.multiply, x, y, z, radius, inside, rule, bounds)


@takes_ufunc(np.divide)
def divide(x: Ball, y: Ball) -> Ball:
    """x / y; dividing by exactly 1 or -1, or an exact 0 by what is not 0, adds no rounding."""
    rule = x.arithmetic.rules["divide"]
    z = x.value / y.value
    y_size = np.abs(y.value)
    y_least = _least_divisor(y, y_size)
    spread: Any = None
    magnitude = np.abs(z)
    if y.spread is not None:
        # x/v - x/y = (x/y) (y - v)/v: the farther end is the lower one, unless it is the nearer.
        below, above = (y_size - y_least) / y_least, y.spread / (y_size + y.spread)
        spread = magnitude * np.maximum(below, above)
    if x.spread is not None:
        own = x.spread / y_least
        spread = own if spread is None else spread + own
    if spread is not None:
        magnitude = magnitude + spread
    radius = _unrounded(_rounded(magnitude, spread, rule, x), spread, y_size == 1.0, y)
    bounds = known.divided(x.bounds, y.bounds, rule.margin)
    inside = magnitude <= rule.reach
    low, high = extended.safe_divisors(x.arithmetic.computed)
    if not (_all(inside) and _all(y_least >= low) and _all(y_size <= high)):
        inside = inside & (y_least >= low) & (y_size <= high)
        return extended.binary(extended.divide, x, y, z, radius, inside, rule, bounds)
    if y.origin is not None and y.origin.squared is x:
        radius = np.minimum(radius, _most_over_root(x, y_least, y.origin) + np.abs(z))
    return made(z, _capped(radius, z, bounds), x.arithmetic, bounds)


def _most_over_root(x: Ball, root_least: Any, origin: Origin) -> Any:
    """How large x over the root of the mean of its own squares may come out: sqrt(n) and roundings.

    No sum of squares is less than one of them, for rounding is monotone. What remains is the
    rounding of that square, of its quotient by n, of eps and the root, and of x itself, of which
    the square may have been taken before it was stored; a square may also underflow.
    """
    arithmetic, rules = x.arithmetic, x.arithmetic.rules
    kept = (1.0 - arithmetic.computed.roundoff) / (1.0 + arithmetic.accumulated.roundoff) ** 2
    for operation in ("square", "mean", "add"):
        kept *= max(1.0 - rules[operation].share, 0.0)
    kept *= max(1.0 - rules["sqrt"].share, 0.0) ** 2
    grown = (1.0 + rules["divide"].share) * (1.0 + rules["store"].share) ** 2
    lost = 4.0 * (arithmetic.computed.underflow + arithmetic.accumulated.underflow)
    if not kept > 0.0:
        return np.inf
    return grown * np.sqrt(origin.number / kept * (1.0 + lost / np.square(root_least)))


def _from(origin: Origin | None, ball: Ball) -> Ball:
    """The ball as a statistic of squares, if it is one."""
    ball.origin = origin
    return ball


def _least_divisor(y: Ball, size: Any) -> Any:
    if y.spread is None:
        return size
    least = size - y.spread
    return least if y.floor is None else np.maximum(least, y.floor)


@takes_ufunc(np.square)
def square(x: Ball) -> Ball:
    """x x, never negative."""
    rule = x.arithmetic.rules["square"]
    z = np.square(x.value)
    spread: Any = None
    magnitude = z
    if x.spread is not None:
        spread = (2.0 * np.abs(x.value) + x.spread) * x.spread
        magnitude = z + spread
    radius = _unrounded(_rounded(magnitude, spread, rule, x), spread, z == 1.0, x)
    inside = magnitude <= rule.reach
    if _all(inside):
        floor = None
        if x.spread is not None:
            size = np.abs(x.value)
            floor = _lowered(np.square(np.maximum(size - x.spread - size * 2.0**-51, 0.0)), rule)
        return _from(Origin(x, 1.0), made(z, radius, x.arithmetic, known.NON_NEGATIVE, floor))
    return extended.unary(extended.square, x, z, radius, inside, rule, known.NON_NEGATIVE)


@takes_ufunc(np.sqrt)
def sqrt(x: Ball) -> Ball:
    """The square root. Where x may be negative and is not known to be a sum of squares: unknown."""
    rule = x.arithmetic.rules["sqrt"]
    z = np.sqrt(x.value)
    low, high = (math.sqrt(max(end, 0.0)) for end in x.bounds)
    bounds = known.widened(low, high, rule.margin)
    if x.spread is None:
        radius, inside = _rounded(z, None, rule), z <= rule.reach
    else:
        least = x.value - x.spread
        if x.floor is not None:
            least = np.maximum(least, x.floor)
        spread = z - np.sqrt(least)  # the farther side of a concave function
        if x.floor is not None or (x.bounds[0] >= 0.0 and not _all(least >= x.bounds[0])):
            above = np.sqrt(x.value + x.spread) - z
            below = z - np.sqrt(np.maximum(least, x.bounds[0]))
            spread = np.maximum(above, below)
        magnitude = z + spread
        radius, inside = _rounded(magnitude, spread, rule), magnitude <= rule.reach
    if _all(inside):
        floor = None if x.floor is None else _lowered(np.sqrt(x.floor), rule)
        return _from(x.origin, made(z, radius, x.arithmetic, bounds, floor))
    return extended.unary(extended.sqrt, x, z, radius, inside, rule, bounds)


@takes_ufunc(np.exp)
def exp(x: Ball) -> Ball:
    """The exponential; its rounding grows with the argument. exp(-inf) is exactly 0."""
    rule = x.arithmetic.rules["exp"]
    z = np.exp(x.value)
    size = np.abs(x.value)
    spread: Any = None
    magnitude = z
    if x.spread is not None:
        # exp(v + r) - exp(v) without cancellation, even where exp(v) underflows.
        spread = -np.exp(x.value + x.spread) * np.expm1(-x.spread)
        magnitude = z + spread
        size = size + x.spread
    share = rule.share + rule.per_argument * np.minimum(size, _FAR)
    radius = magnitude * share + rule.underflow
    if spread is not None:
        radius = radius + spread
    if np.count_nonzero(magnitude) != magnitude.size:
        radius = np.where(_exactly(x.value == -np.inf, x), 0.0, radius)
    top = x.bounds[1]
    slack = 2.0 * (rule.share + rule.per_argument * min(abs(top), _FAR))
    high = math.exp(top) if top < 709.0 else math.inf
    bounds = known.widened(0.0, high, rule.margin._replace(slack=slack))
    inside = magnitude * (1.0 + share) <= rule.reach
    if _all(inside):
        return made(z, radius, x.arithmetic, bounds)
    return extended.unary(extended.exp, x, z, radius, inside, rule, bounds, share)


@takes_ufunc(np.tanh)
def tanh(x: Ball) -> Ball:
    """The hyperbolic tangent, within [-1, 1] for every argument; exactly +-1 at infinities."""
    rule = x.arithmetic.rules["tanh"]
    z = np.tanh(x.value)
    magnitude = np.abs(z)
    spread: Any = None
    if x.spread is not None:
        # tanh is odd and concave above 0: the side towards 0 is the farther one.
        spread = magnitude - np.tanh(np.abs(x.value) - x.spread)
    radius = _rounded(magnitude if spread is None else magnitude + spread, spread, rule)
    farthest = magnitude + (1.0 + 2.0**-51)
    radius = np.minimum(radius, farthest)
    if x.least_size is not None:  # an argument that overflowed: between its least size and 1
        least = np.tanh(x.least_size)
        ends = np.maximum(1.0 - magnitude, magnitude - least) + rule.share
        radius = np.where(x.least_size > 0.0, np.fmin(radius, ends), radius)
    finite = np.isfinite(x.value)
    if not _all(finite):
        radius = np.where(np.isnan(radius), np.where(np.isnan(z), np.inf, farthest), radius)
        radius = np.where(_exactly(~finite, x), 0.0, radius)
    return made(z, radius, x.arithmetic, (-1.0, 1.0))


@takes_ufunc(np.positive)
def positive(x: Ball) -> Ball:
    """Writing to memory: one rounding to storage, unless x is exact and storage has it."""
    number = x.arithmetic.stored
    rule = x.arithmetic.rules["store"]
    v = x.value
    size = np.abs(v) if x.spread is None else np.abs(v) + x.spread
    radius = _rounded(size, x.spread, rule)
    if x.spread is None or np.count_nonzero(x.spread) != x.size:
        held = number.rounded(v)
        radius = np.where(_exactly((held == v) | np.isnan(v), x), 0.0, radius)
    inside = (size <= rule.reach) | (radius == 0.0)
    if not _all(inside):
        v, radius = extended.unwritten(x, radius, inside, rule)
    bounds = x.bounds
    if bounds is not known.FREE:
        bounds = known.widened(*bounds, rule.margin)
    return made(v, _capped(radius, v, bounds), x.arithmetic, bounds)


@takes_ufunc(np.negative)
def negative(x: Ball) -> Ball:
    """-x, exact."""
    return made(-x.value, x.spread, x.arithmetic, known.negated(x.bounds))


@takes_ufunc(np.absolute)
def absolute(x: Ball) -> Ball:
    """abs(x), exact."""
    high = max(abs(x.bounds[0]), abs(x.bounds[1]))
    return made(np.abs(x.value), x.spread, x.arithmetic, (0.0, high))


def _rounded(magnitude: Any, spread: Any, rule: Rule, *factors: Ball) -> Any:
    """The radius: what the operands' radii do, plus rounding, plus underflow.

    An exact 0 does not underflow. A magnitude of 0 is one, except that it may have underflown in
    the reference, too, where there are ``factors``: then one of them has to be an exact 0.
    """
    radius = magnitude * rule.share
    if spread is not None:
        radius = radius + spread * _ROUNDED_UP
    radius = radius + rule.underflow
    if np.count_nonzero(magnitude) != magnitude.size:
        zero = magnitude == 0.0
        if factors:
            zero = zero & reduce(np.logical_or, (_exactly(f.value == 0.0, f) for f in factors))
        radius = np.where(zero, 0.0, radius)
    return radius


def _lowered(floor: Any, rule: Rule) -> Any:
    """The lower end of a result that is at least ``floor`` before it is rounded."""
    return np.maximum(floor * (1.0 - rule.share) - rule.underflow, 0.0)


def _unrounded(radius: Any, spread: Any, where: Any, operand: Ball) -> Any:
    """Take the rounding away ``where`` the operand is exact."""
    if not np.count_nonzero(where):
        return radius
    return np.where(_exactly(where, operand), 0.0 if spread is None else spread, radius)


def _exactly(where: Any, operand: Ball) -> Bools:
    exact: Bools = where if operand.spread is None else where & (operand.spread == 0.0)
    return exact


def _either(x_spread: Any, y_spread: Any, z: Any) -> Any:
    if x_spread is None or y_spread is None:
        only = y_spread if x_spread is None else x_spread
        return only if only.shape == z.shape else np.broadcast_to(only, z.shape)
    return x_spread + y_spread


def _capped(radius: Any, z: Any, bounds: known.Bounds) -> Any:
    """Shorten the radius to the farther bound."""
    if not known.is_finite(bounds):
        return radius
    farthest = np.maximum(bounds[1] - z, z - bounds[0])
    return np.where(radius > farthest, farthest, radius)


def _all(where: Any) -> bool:
    return int(np.count_nonzero(where)) == int(where.size)
