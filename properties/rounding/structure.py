"""Selecting, comparing and rearranging balls: nothing here rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from properties.rounding import bounds as known
from properties.rounding.arithmetic import Arithmetic
from properties.rounding.ball import Ball, lifted, made
from properties.rounding.decision import Decision
from properties.rounding.dispatch import refuse, takes_function, takes_ufunc

# Functions of one array that move elements: the value and the radius go the same way.
_VIEWS: tuple[Callable[..., Any], ...] = (
    np.broadcast_to,
    np.copy,
    np.expand_dims,
    np.flip,
    np.moveaxis,
    np.ravel,
    np.repeat,
    np.reshape,
    np.squeeze,
    np.swapaxes,
    np.take,
    np.take_along_axis,
    np.transpose,
)
_COMPARISONS = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)
_KINDS = (np.isfinite, np.isinf, np.isnan)

__all__ = ["concatenate", "maximum", "minimum", "stack", "where"]


def _register_view(function: Callable[..., Any]) -> None:
    def view(arithmetic: Arithmetic, x: Any, *args: Any, **kwargs: Any) -> Ball:
        if any(isinstance(argument, Ball) for argument in (*args, *kwargs.values())):
            refuse(f"np.{function.__name__} with a Ball for an index")
        if "out" in kwargs:
            refuse(f"np.{function.__name__} with out")
        ball = lifted(x, arithmetic)
        spread = None if ball.spread is None else function(ball.spread, *args, **kwargs)
        return made(function(ball.value, *args, **kwargs), spread, arithmetic, ball.bounds)

    takes_function(function)(view)


def _register_comparison(ufunc: np.ufunc) -> None:
    def compare(x: Ball, y: Ball) -> Decision:
        outcome = ufunc(x.value, y.value)
        if x.spread is None and y.spread is None:
            return Decision.of(outcome, None, x.arithmetic)
        return Decision.of(outcome, _overlap(x, y), x.arithmetic)

    takes_ufunc(ufunc)(compare)


def _register_kind(ufunc: np.ufunc) -> None:
    def classify(x: Ball) -> Decision:
        doubt = None if x.spread is None else np.isinf(x.spread)
        return Decision.of(ufunc(x.value), doubt, x.arithmetic)

    takes_ufunc(ufunc)(classify)


def _overlap(x: Ball, y: Ball) -> Any:
    """Where numbers of the two balls may compare in any way. NaN differences are not apart."""
    reach = x.radius + y.radius
    return ~(np.abs(x.value - y.value) > reach) & (reach > 0.0)


for _function in _VIEWS:
    _register_view(_function)
for _ufunc in _COMPARISONS:
    _register_comparison(_ufunc)
for _kind in _KINDS:
    _register_kind(_kind)


@takes_function(np.shape)
def _shape(arithmetic: Arithmetic, x: Ball) -> tuple[int, ...]:
    del arithmetic
    return x.shape


@takes_function(np.ndim)
def _ndim(arithmetic: Arithmetic, x: Ball) -> int:
    del arithmetic
    return x.ndim


@takes_function(np.size)
def _size(arithmetic: Arithmetic, x: Ball) -> int:
    del arithmetic
    return x.size


@takes_function(np.where)
def where(arithmetic: Arithmetic, condition: Any, *branches: Any) -> Ball:
    """One of two branches; where the condition is in doubt, the ball reaches over both.

    The value is that of the branch which the values choose.
    """
    if isinstance(condition, Ball) or len(branches) != 2:
        refuse("np.where without a boolean condition and two branches")
    x, y = (lifted(branch, arithmetic) for branch in branches)
    chosen = np.asarray(condition)
    value = np.where(chosen, x.value, y.value)
    radius: Any = None
    if x.spread is not None or y.spread is not None:
        radius = np.where(chosen, x.radius, y.radius)
    doubt = condition.doubt if isinstance(condition, Decision) else None
    if doubt is not None and np.count_nonzero(doubt):
        both = np.maximum(_reach(x, value), _reach(y, value))
        radius = np.where(doubt, both, 0.0 if radius is None else radius)
        value = np.where(doubt & (np.isnan(x.value) | np.isnan(y.value)), np.nan, value)
    return made(value, radius, arithmetic, known.hull(x.bounds, y.bounds))


def _reach(x: Ball, value: Any) -> Any:
    """The radius that a ball around ``value`` needs to hold x, too."""
    apart = np.abs(x.value - value) * (1.0 + 2.0**-50)
    apart = np.where(x.value == value, 0.0, apart)
    return np.where(np.isnan(apart), np.inf, apart + x.radius)


@takes_ufunc(np.maximum)
def maximum(x: Ball, y: Ball) -> Ball:
    """The larger of two; a smaller one out of reach leaves no trace in the radius."""
    bounds = (max(x.bounds[0], y.bounds[0]), max(x.bounds[1], y.bounds[1]))
    return _extreme(x, y, np.maximum(x.value, y.value), x.value >= y.value, bounds)


@takes_ufunc(np.minimum)
def minimum(x: Ball, y: Ball) -> Ball:
    """The smaller of two."""
    bounds = (min(x.bounds[0], y.bounds[0]), min(x.bounds[1], y.bounds[1]))
    return _extreme(x, y, np.minimum(x.value, y.value), x.value <= y.value, bounds)


def _extreme(x: Ball, y: Ball, z: Any, first: Any, bounds: known.Bounds) -> Ball:
    radius: Any = None
    if x.spread is not None or y.spread is not None:
        own, other = np.where(first, x.radius, y.radius), np.where(first, y.radius, x.radius)
        gap = np.abs(x.value - y.value)
        # Roundings of this difference are relative to the two radii where it matters.
        over = other - gap + (own + other) * 2.0**-50
        over = np.where(np.isnan(over), np.inf, np.maximum(own, over))
        radius = np.where(_overlap(x, y), over, own)
    nan = np.isnan(z)
    if np.count_nonzero(nan):  # formats differ in whether a NaN wins
        radius = np.where(nan, np.inf, 0.0 if radius is None else radius)
    return made(z, radius, x.arithmetic, bounds)


@takes_function(np.stack)
def stack(arithmetic: Arithmetic, arrays: Sequence[Any], axis: int = 0) -> Ball:
    """Balls and plain arrays on a new axis."""
    return _joined(np.stack, arithmetic, arrays, axis)


@takes_function(np.concatenate)
def concatenate(arithmetic: Arithmetic, arrays: Sequence[Any], axis: int | None = 0) -> Ball:
    """Balls and plain arrays along an axis."""
    return _joined(np.concatenate, arithmetic, arrays, axis)


def _joined(
    join: Callable[..., Any], arithmetic: Arithmetic, arrays: Sequence[Any], axis: int | None
) -> Ball:
    balls = [lifted(array, arithmetic) for array in arrays]
    bounds = balls[0].bounds
    for ball in balls[1:]:
        bounds = known.hull(bounds, ball.bounds)
    spread = None
    if any(ball.spread is not None for ball in balls):
        spread = join([ball.radius for ball in balls], axis=axis)
    return made(join([ball.value for ball in balls], axis=axis), spread, arithmetic, bounds)
