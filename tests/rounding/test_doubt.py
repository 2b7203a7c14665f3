"""Decisions: what is in doubt, what stays with it, and where doubt makes a ball."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from properties.rounding import Ball, Decision
from tests.rounding.simulation import FORMATS

FLOAT32 = FORMATS["float32"]
INF = np.inf


def exact(*values: float) -> Ball:
    return Ball.exact(np.array(values), FLOAT32)


def unsure() -> Ball:
    """Two numbers, of which the first could be negative."""
    return Ball([0.1, 0.3], [0.2, 0.2], FLOAT32)


def test_balls_that_touch_compare_in_any_way_and_equal_exact_numbers_do_not() -> None:
    touching = Ball([1.0], [0.5], FLOAT32) >= Ball([2.0], [0.5], FLOAT32)
    np.testing.assert_array_equal(touching.doubt, [True])
    mixed = Ball([1.0, 1.0, 5.0], [0.0, 0.25, 1.0], FLOAT32) >= 1.0
    np.testing.assert_array_equal(mixed.doubt, [False, True, False])
    zeros = exact(0.0, 0.0)
    for one_sided in (np.greater_equal(unsure(), zeros), np.less_equal(zeros, unsure())):
        np.testing.assert_array_equal(one_sided, [True, True])
        np.testing.assert_array_equal(one_sided.doubt, [True, False])


def test_kinds_of_numbers_are_in_doubt_where_anything_is_possible() -> None:
    known = exact(1.0, INF, np.nan)
    wide = Ball([1.0, 2.0], [0.5, INF], FLOAT32)
    for kind in (np.isfinite, np.isinf, np.isnan):
        np.testing.assert_array_equal(kind(known), kind(known.value))
        assert kind(known).doubt is None
        np.testing.assert_array_equal(kind(wide), kind(wide.value))
        np.testing.assert_array_equal(kind(wide).doubt, [False, True])
        chosen = np.where(kind(wide), 3.0, 1.0)
        np.testing.assert_allclose(chosen.radius, [0.0, 2.0], rtol=1e-14)


def test_a_decision_counts_as_itself_on_either_side() -> None:
    for product in (
        np.multiply(unsure() >= 0.0, exact(2.0, 2.0)),
        exact(2.0, 2.0) * (unsure() >= 0.0),
    ):
        np.testing.assert_array_equal(product.value, [2.0, 2.0])
        assert product.radius[0] >= 2.0
        assert product.radius[1] == 0.0
    certain = exact(1.0, 2.0) * (exact(1.0, 2.0) >= 1.5)
    np.testing.assert_array_equal(certain.value, [0.0, 2.0])
    np.testing.assert_array_equal(certain.radius, [0.0, 0.0])


def test_decisions_without_doubt_are_indexed_reshaped_and_combined() -> None:
    sure = exact(1.0, 2.0) >= 1.5
    assert sure[1:].doubt is None
    np.testing.assert_array_equal(sure.reshape(2, 1), [[False], [True]])
    assert sure.reshape(2, 1).doubt is None
    assert np.squeeze(sure.reshape(2, 1)).doubt is None
    both = sure & (exact(1.0, 2.0) <= 3.0)
    assert isinstance(both, Decision)
    np.testing.assert_array_equal(both, [False, True])
    assert both.doubt is None


def test_decisions_in_doubt_keep_outcome_and_doubt() -> None:
    doubted = unsure() >= 0.2
    np.testing.assert_array_equal(doubted, [False, True])
    for same in (doubted & True, doubted[:], doubted.reshape(2), ~~doubted):
        np.testing.assert_array_equal(same, [False, True])
        np.testing.assert_array_equal(same.doubt, [True, True])
    square = Ball([[0.1, 0.3], [-2.0, 2.0]], np.full((2, 2), 0.2), FLOAT32) >= 0.2
    flat = square.reshape(4, order="F")
    np.testing.assert_array_equal(flat, [False, False, True, True])
    np.testing.assert_array_equal(flat.doubt, [True, False, True, False])


def test_every_way_to_a_decision_leads_to_a_ball_in_its_arithmetic() -> None:
    sure, doubted = exact(1.0, 2.0) >= 1.5, unsure() >= 0.0
    for decision in (
        doubted[:],
        doubted.reshape(2),
        doubted & True,
        np.squeeze(sure.reshape(2, 1)) & doubted,
        (sure & sure) & doubted,
    ):
        chosen = np.where(decision, 1.0, 0.0)
        assert isinstance(chosen, Ball)
        assert chosen.arithmetic is FLOAT32
        np.testing.assert_allclose(chosen.radius, [1.0, 0.0], rtol=1e-14)


def test_other_functions_of_decisions_give_plain_arrays_of_the_outcomes() -> None:
    doubted = Ball([[0.1, 0.3], [-5.0, 0.1]], np.full((2, 2), 0.2), FLOAT32) >= 0.0
    for plain, expected in (
        (doubted + doubted, [[True, True], [False, True]]),
        (doubted == True, [[True, True], [False, True]]),  # noqa: E712
        (np.logical_and.reduce(doubted), [False, True]),
        (np.logical_and.reduce(doubted, axis=1), [True, False]),
        (np.logical_and(doubted, True, out=np.zeros((2, 2), bool)), [[True, True], [False, True]]),
    ):
        assert not isinstance(plain, Decision)
        np.testing.assert_array_equal(plain, expected)


def test_branches_are_read_without_a_warning() -> None:
    chosen = np.where(unsure() >= 0.0, np.array([1e40, 1.0]), 0.0)
    np.testing.assert_array_equal(chosen.radius, [INF, 0.0])


def test_a_ball_over_two_branches_holds_both_to_the_last_digit() -> None:
    """0.1 + 0.7 is rounded down in float64."""
    chosen = np.where(Ball([0.1], [0.2], FORMATS["float64"]) >= 0.0, 0.7, -0.1)
    apart = Fraction(0.7) + Fraction(0.1)
    assert Fraction(0.7 + 0.1) < apart
    assert apart <= Fraction(float(chosen.radius[0])) <= apart * (1 + Fraction(2) ** -48)


def test_two_equal_infinite_branches_are_one() -> None:
    chosen = np.where(unsure() >= 0.0, exact(INF, INF), exact(INF, 1.0))
    np.testing.assert_array_equal(chosen.radius, [0.0, 0.0])


def test_the_larger_of_two_holds_what_reaches_beyond_it_to_the_last_digit() -> None:
    """0.9 - (0.7 - 0.1) is rounded down in float64."""
    arithmetic = FORMATS["float64"]
    beyond = Fraction(0.9) - (Fraction(0.7) - Fraction(0.1))
    assert Fraction(0.9 - (0.7 - 0.1)) < beyond
    larger = np.maximum(Ball([0.7], [0.0], arithmetic), Ball([0.1], [0.9], arithmetic))
    smaller = np.minimum(Ball([-0.7], [0.0], arithmetic), Ball([-0.1], [0.9], arithmetic))
    for extreme in (larger, smaller):
        found = Fraction(float(extreme.radius[0]))
        assert beyond <= found <= beyond * (1 + Fraction(2) ** -48)


def test_extrema_with_infinities_and_nan() -> None:
    wide = Ball([1.0], [INF], FLOAT32)
    np.testing.assert_array_equal(np.maximum(exact(INF), wide).radius, [INF])
    with_radius = np.maximum(Ball([np.nan, 1.0], [0.0, 0.5], FLOAT32), exact(0.0, 0.0))
    np.testing.assert_array_equal(with_radius.radius, [INF, 0.5])
    without = np.maximum(exact(np.nan, 1.0), exact(0.0, 0.0))
    np.testing.assert_array_equal(without.radius, [INF, 0.0])


def test_exact_balls_join_to_an_exact_ball() -> None:
    joined = np.concatenate([exact(1.0), exact(2.0), np.ones(1)])
    assert joined.spread is None
