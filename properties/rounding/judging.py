"""The distance of an implementation's numbers from a ball, in units of its radius."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.rounding.arithmetic import Float64s
from properties.rounding.ball import Ball

__all__ = ["ratio"]


def ratio(actual: Any, ball: Ball) -> Float64s:
    """abs(actual - value) / radius, elementwise: at most 1 inside the ball.

    0 where both are equal, equal infinities and NaN for NaN included; inf for any difference from
    an exact value, and for NaN against a number or the reverse. NaN where the radius is infinite:
    nothing is known there. ``actual`` is a plain array of the ball's shape, of any real format.
    Raises ValueError for another shape, and TypeError for a Ball.
    """
    if isinstance(actual, Ball):
        raise TypeError("the first argument of ratio is a plain array, not a Ball")
    found: Float64s = np.asarray(actual).astype(np.float64)
    if found.shape != ball.shape:
        raise ValueError(f"the array has shape {found.shape}, but the ball {ball.shape}")
    value, radius = ball.value, ball.radius
    with np.errstate(all="ignore"):
        distance = np.abs(found - value)
        ratios = np.where(radius == 0.0, np.inf, distance / radius)
    ratios = np.where(np.isnan(found) | np.isnan(value), np.inf, ratios)
    same = (found == value) | (np.isnan(found) & np.isnan(value))
    ratios = np.where(same, 0.0, ratios)
    return np.where(np.isinf(radius), np.nan, ratios)
