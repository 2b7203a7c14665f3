"""Bounds of whole arrays: each end by hand, and which operations keep them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties.rounding import Arithmetic, Ball
from properties.rounding import bounds as known
from properties.rounding.ball import lifted
from properties.rounding.bounds import FREE, NON_NEGATIVE, Bounds, Margin
from tests.rounding.simulation import FORMATS

FLOAT32 = FORMATS["float32"]
INF = math.inf

MARGIN = Margin(slack=0.25, step=0.5, largest=100.0)
NO_STEP = Margin(slack=0.25, step=0.0, largest=100.0)
NONE = Margin(slack=0.0, step=0.0, largest=1e6)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.0, 2.0, (0.25, 3.0)),
        (0.5, 2.0, (0.0, 3.0)),  # rounding keeps the sign
        (0.0, 2.0, (0.0, 3.0)),
        (-2.0, -0.5, (-3.0, 0.0)),
        (-2.0, 0.0, (-3.0, 0.0)),
        (-2.0, -1.0, (-3.0, -0.25)),
        (-200.0, 200.0, FREE),
        (150.0, INF, (100.0, INF)),  # what overflows may be cut off at the largest number
        (-INF, -150.0, (-INF, -100.0)),
    ],
)
def test_both_ends_move_outwards_up_to_zero_and_to_the_largest_number(
    low: float, high: float, expected: Bounds
) -> None:
    assert known.widened(low, high, MARGIN) == expected


def test_the_largest_number_itself_is_finite() -> None:
    assert known.widened(-80.0, 80.0, NO_STEP) == (-100.0, 100.0)


def test_bounds_of_results_by_hand() -> None:
    assert known.negated((1.0, 3.0)) == (-3.0, -1.0)
    assert known.negated(FREE) == FREE
    assert known.hull((1.0, 5.0), (3.0, 4.0)) == (1.0, 5.0)
    assert known.hull((3.0, 4.0), (1.0, 5.0)) == (1.0, 5.0)
    assert known.hull(FREE, (1.0, 2.0)) == known.hull((1.0, 2.0), FREE) == FREE
    assert known.added((1.0, 2.0), (10.0, 20.0), NONE) == (11.0, 22.0)
    assert known.multiplied((-1.0, 2.0), (-5.0, 3.0), NONE) == (-10.0, 6.0)
    assert known.divided((-1.0, 6.0), (2.0, 4.0), NONE) == (-0.5, 3.0)


@pytest.mark.parametrize(
    ("bounds", "finite"),
    [((0.0, 1.0), True), ((-INF, 1.0), False), ((0.0, INF), False), (FREE, False)],
)
def test_bounds_are_finite_at_both_ends_or_not(bounds: Bounds, finite: bool) -> None:
    assert known.is_finite(bounds) is finite


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (NON_NEGATIVE, NON_NEGATIVE, NON_NEGATIVE),
        ((0.5, INF), NON_NEGATIVE, NON_NEGATIVE),
        (NON_NEGATIVE, (0.5, INF), NON_NEGATIVE),
        ((-1.0, INF), NON_NEGATIVE, FREE),
        (NON_NEGATIVE, (-1.0, INF), FREE),
    ],
)
def test_where_zero_meets_infinity_the_sign_of_a_product_is_left(
    x: Bounds, y: Bounds, expected: Bounds
) -> None:
    assert known.multiplied(x, y, NONE) == expected


def test_where_infinity_meets_infinity_the_sign_of_a_quotient_is_left() -> None:
    assert known.divided(NON_NEGATIVE, (1.0, INF), NONE) == NON_NEGATIVE
    assert known.divided((-1.0, INF), (1.0, INF), NONE) == FREE
    assert known.divided((1.0, 2.0), NON_NEGATIVE, NONE) == FREE


def within(low: float, high: float) -> Ball:
    """Six numbers between two bounds."""
    middle = Ball(np.full((2, 3), (low + high) / 2), 0.125, FLOAT32)
    return np.minimum(np.maximum(middle, low), high)


MOVES: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "method reshape": lambda x: x.reshape(-1),
    "method swapaxes": lambda x: x.swapaxes(0, 1),
    "T": lambda x: x.T,
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "take": lambda x: np.take(x, [2, 0], axis=1),
    "stack": lambda x: np.stack([x, x]),
    "concatenate": lambda x: np.concatenate([x, x]),
    "under": lambda x: x.under(FORMATS["float64"]),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_only_moves_keeps_its_bounds(name: str) -> None:
    x = within(-0.5, 2.0)
    assert x.bounds == (-0.5, 2.0)
    assert MOVES[name](x).bounds == (-0.5, 2.0)


def test_joined_balls_have_the_bounds_of_all() -> None:
    parts = [within(0.0, 1.0), within(-2.0, 0.5), within(-1.0, 3.0)]
    assert np.concatenate(parts).bounds == (-2.0, 3.0)
    assert np.concatenate(parts[:2]).bounds == (-2.0, 1.0)
    assert np.stack(parts[1:]).bounds == (-2.0, 3.0)
    assert np.concatenate([within(0.0, 1.0), np.ones((1, 3))]).bounds == FREE


def test_branches_extrema_and_sums_have_bounds() -> None:
    low, high = within(-2.0, 1.0), within(-1.0, 3.0)
    assert np.where(low >= 0.0, low, high).bounds == (-2.0, 3.0)
    assert np.maximum(low, high).bounds == (-1.0, 3.0)
    assert np.minimum(low, high).bounds == (-2.0, 1.0)
    assert np.max(low, axis=0).bounds == np.min(low, axis=0).bounds == (-2.0, 1.0)
    assert np.sum(within(0.0, 1.0)).bounds == NON_NEGATIVE
    assert np.sum(low).bounds == FREE
    large = np.abs(Ball([3e38, 3e38], [1e30, 0.0], FLOAT32))
    assert np.isinf(np.sum(large).radius)
    assert np.sum(large).bounds == NON_NEGATIVE


def test_a_number_bounds_itself_and_a_decision_is_zero_or_one() -> None:
    assert lifted(0.5, FLOAT32).bounds == (0.5, 0.5)
    assert lifted(math.nan, Arithmetic()).bounds == FREE
    assert lifted(within(-1.0, 1.0) >= 0.0, FLOAT32).bounds == (0.0, 1.0)


def test_an_unknown_number_is_as_near_as_the_farther_bound() -> None:
    """From -3 it is 8 to 5 and 1 to -4; from 3 it is 2 and 7."""
    wide = Ball([-3.0, 3.0], [INF, INF], FORMATS["float64"])
    wide.bounds = (-4.0, 5.0)
    np.testing.assert_allclose(np.positive(wide).radius, [8.0, 7.0], rtol=1e-12)
    np.testing.assert_allclose((wide * 2.0).radius, [16.0, 14.0], rtol=1e-12)
    np.testing.assert_allclose((wide / 2.0).radius, [4.0, 3.5], rtol=1e-12)
