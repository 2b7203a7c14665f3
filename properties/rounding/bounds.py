"""Bounds that hold for every element of a ball, whatever its radius says.

A radius turns infinite where something may overflow, and then says nothing any more. But
exp(-abs(x)) stays in [0, 1] and 1 + exp(-abs(x)) in [1, 2] even so. Balls carry such a pair of
numbers for the whole array, so that a sigmoid of an unknown number is bounded again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

Bounds = tuple[float, float]

FREE: Bounds = (-math.inf, math.inf)
NON_NEGATIVE: Bounds = (0.0, math.inf)

__all__ = [
    "FREE",
    "NON_NEGATIVE",
    "Bounds",
    "Margin",
    "added",
    "divided",
    "hull",
    "is_finite",
    "multiplied",
    "negated",
    "widened",
]


class Margin(NamedTuple):
    """How far rounding may carry a result across a bound, and where it overflows."""

    slack: float
    step: float
    largest: float


def widened(low: float, high: float, margin: Margin) -> Bounds:
    """Move both ends outwards by a relative slack and by a step, but not across 0.

    Rounding and flushing to zero keep signs. An end that may overflow becomes infinite.
    """
    least = low - margin.slack * abs(low) - margin.step if low > -math.inf else low
    most = high + margin.slack * abs(high) + margin.step if high < math.inf else high
    least = max(least, 0.0) if low >= 0.0 else least
    most = min(most, 0.0) if high <= 0.0 else most
    return (
        min(least, margin.largest) if least >= -margin.largest else -math.inf,
        max(most, -margin.largest) if most <= margin.largest else math.inf,
    )


def is_finite(bounds: Bounds) -> bool:
    """Whether both ends are finite."""
    return bounds[0] > -math.inf and bounds[1] < math.inf


def negated(x: Bounds) -> Bounds:
    """Bounds of -x."""
    return FREE if x is FREE else (-x[1], -x[0])


def hull(x: Bounds, y: Bounds) -> Bounds:
    """Bounds of something that is x or y."""
    return FREE if x is FREE or y is FREE else (min(x[0], y[0]), max(x[1], y[1]))


def added(x: Bounds, y: Bounds, margin: Margin) -> Bounds:
    """Bounds of the rounded x + y."""
    if x is FREE or y is FREE:
        return FREE
    return widened(x[0] + y[0], x[1] + y[1], margin)


def multiplied(x: Bounds, y: Bounds, margin: Margin) -> Bounds:
    """Bounds of the rounded x y, as far as it is a number."""
    if x is FREE or y is FREE:
        return FREE
    corners = [a * b for a in x for b in y]
    if any(math.isnan(corner) for corner in corners):
        return NON_NEGATIVE if x[0] >= 0.0 and y[0] >= 0.0 else FREE
    return widened(min(corners), max(corners), margin)


def divided(x: Bounds, y: Bounds, margin: Margin) -> Bounds:
    """Bounds of the rounded x / y for positive y, as far as it is a number."""
    if x is FREE or not y[0] > 0.0:
        return FREE
    corners = [a / b for a in x for b in y]
    if any(math.isnan(corner) for corner in corners):
        return NON_NEGATIVE if x[0] >= 0.0 else FREE
    return widened(min(corners), max(corners), margin)
