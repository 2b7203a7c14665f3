"""What the optimality properties judge by, held against small facts that can be checked by hand.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lp_oracle
from properties.judgement.optimality.certificate import exact_routing, exchanges
from properties.judgement.optimality.descent import block_excess
from properties.judgement.optimality.fixed_points import JAMMING, PAIRS, Pair, settle, tightness
from properties.judgement.optimality.optimum import (
    best_of_all,
    bracket,
    exact_dual,
    on_one_grid,
    value_of,
)
from properties.strategies.optimality import MIAN_CHOWLA, SHAPES, drawn_scores

Array = NDArray[Any]

CORNER = lp_oracle.INSTANCES["CORNER_JAM_TOP1"]


# Exact values --------------------------------------------------------------------------------


def test_numbers_of_all_kinds_share_one_grid() -> None:
    (ints, floats, fractions), unit = on_one_grid(
        np.array([3, 2**62]), np.array([0.5, -0.25]), np.array([Fraction(1, 3)], dtype=object)
    )
    assert unit == 12
    assert ints.tolist() == [36, 12 * 2**62]
    assert floats.tolist() == [6, -3]
    assert fractions.tolist() == [4]


def test_exact_dual_is_the_formula() -> None:
    s_MN = np.array([[3, 0, 4], [8, 6, 5], [2, 1, 7]])
    alpha, beta = np.array([2.5, 0.0, 1.0]), np.array([1, -1, 0.5])
    load = Fraction(2)
    hinges = sum(
        max(Fraction(0), Fraction(int(s_MN[i, j])) - Fraction(alpha[i]) - Fraction(beta[j]))
        for i, j in itertools.product(range(3), repeat=2)
    )
    expected = 2 * Fraction(3.5) + load * Fraction(0.5) + hinges
    assert exact_dual(s_MN, alpha, beta, 2) == expected


def test_value_of_takes_fractional_shares() -> None:
    x_MN = np.array([[Fraction(1, 3), Fraction(2, 3)], [0, 1]], dtype=object)
    assert value_of(np.array([[3, 6], [100, 0.5]]), x_MN) == Fraction(11, 2)


@pytest.mark.parametrize("name", sorted(lp_oracle.INSTANCES))
def test_bracket_finds_the_optimum_of_the_pinned_instances(name: str) -> None:
    instance = lp_oracle.INSTANCES[name]
    optimum = bracket(instance.scores, instance.top_k)
    assert optimum.lower == optimum.upper == instance.optimum
    assert exact_dual(instance.scores, *optimum.multipliers, instance.top_k) == instance.optimum


def test_best_of_all_needs_an_integer_load() -> None:
    assert best_of_all(CORNER.scores, 1) == 16
    with pytest.raises(ValueError, match="q must be an integer"):
        best_of_all(np.ones((2, 3)), 1)


def test_bracket_agrees_with_trying_all_assignments() -> None:
    rng = np.random.default_rng(5)
    for m, n, top_k in [(2, 2, 1), (3, 3, 2), (4, 2, 1), (2, 4, 2)]:
        scores = rng.random((m, n))
        optimum = bracket(scores, top_k)
        assert optimum.lower <= best_of_all(scores, top_k) <= optimum.upper


# Blocks and certificates ---------------------------------------------------------------------


def test_block_excess_is_zero_exactly_on_the_interval() -> None:
    # f(a) = 2 a + max(0, 5 - a) + max(0, 3 - a) + max(0, 0 - a): flat from the 3rd to the 2nd.
    scores, fixed = np.array([[5, 3, 0]]), np.array([0, 0, 0])
    points = [-1, 0, 1.5, 3, 4, 6]
    excess = [block_excess(scores, fixed, np.array([a]), Fraction(2))[0] for a in points]
    assert excess == [1, 0, 0, 0, 1, 4]


def test_exact_routing_sees_what_float64_rounds_away() -> None:
    scores, bias = np.array([[2.0**-60, 0.0], [0.0, 1.0]]), np.array([1.0, 1.0])
    truth = exact_routing(scores, bias, 1)
    assert truth.margin == Fraction(1, 2**60)
    assert truth.is_certified()
    assert not truth.is_certified(2.0**-60)
    assert not lp_oracle.certify_routing(scores, bias, 1).optimal


def test_exchanges_are_the_feasible_neighbours() -> None:
    x_MN = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]])
    neighbours = {tuple(map(tuple, other.tolist())) for other in exchanges(x_MN, Fraction(1), 99)}
    assert len(neighbours) == 3
    for other in neighbours:
        matrix = np.array(other)
        assert (matrix.sum(axis=0) == 2).all()
        assert (matrix.sum(axis=1) == 2).all()
        assert set(matrix.ravel().tolist()) == {0, 1}


# Fixed points --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        ([[0.0, 0.0], [0.0, 1.0]], "forest"),
        ([[0.0, 0.0], [0.0, 0.0]], "cycle"),
        ([[1.0, -1.0], [2.0, 3.0]], "forest"),
        ([[1e-12, -1e-12], [0.0, 1e-12]], "cycle"),
        ([[1e-12, -1e-12], [0.0, 1.0]], "forest"),
        ([[0.0, 1e-9], [3e-9, 1e-8]], "cycle"),
    ],
)
def test_tightness_looks_for_cycles_at_the_least_clear_scale(
    margins: list[list[float]], expected: str
) -> None:
    assert tightness(np.array(margins), 1e-9, 0.25) == expected


@pytest.mark.parametrize("pair", JAMMING)
def test_both_jamming_pairs_rest_with_a_forest_of_tight_edges(pair: Pair) -> None:
    scores = 8.0 - CORNER.scores if pair == ("k", "q") else CORNER.scores.astype(np.float64)
    top_k = 2 if pair == ("k", "q") else 1
    found = settle(scores, top_k, pair, np.zeros(3), 50)
    assert found is not None
    assert not lp_oracle.certify_routing(scores, -found.beta, top_k).optimal
    assert abs(found.constant) <= 2.0 * found.slack
    assert found.tightness(scores, top_k) == "forest"


def test_fixed_points_with_exact_ties_are_told_apart_from_counterexamples() -> None:
    ties = lp_oracle.INSTANCES["TIES_JAM"]
    scores = ties.scores.astype(np.float64)
    found = settle(scores, ties.top_k, ("midpoint", "midpoint"), np.zeros(5), 600)
    assert found is not None
    assert not lp_oracle.certify_routing(scores, -found.beta, ties.top_k).optimal
    assert found.tightness(scores, ties.top_k) == "cycle"


def test_opposite_corners_rest_at_the_optimum_and_never_with_constant_zero() -> None:
    rng = np.random.default_rng(3)
    for pair in [pair for pair in PAIRS if pair in {("k+1", "q"), ("k", "q+1")}]:
        for _ in range(20):
            m, n, top_k = SHAPES[rng.integers(120)]
            scores = drawn_scores("uniform", rng, (m, n))
            found = settle(scores, top_k, pair, np.zeros(n), 600)
            assert found is not None
            assert abs(found.constant) > 2.0 * found.slack
            assert lp_oracle.certify_routing(scores, -found.beta, top_k).optimal


def test_two_rows_or_two_columns_never_rest_above_the_optimum() -> None:
    rng = np.random.default_rng(7)
    narrow = [shape for shape in SHAPES if 2 in shape[:2] and shape[0] * shape[1] <= 24]
    for pair, (m, n, top_k) in itertools.product(JAMMING, narrow):
        scores = rng.permutation(m * n).reshape(m, n)
        trace = lp_oracle.coordinate_descent(
            scores, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=200
        )
        assert trace.dual_values[-1] == bracket(scores, top_k).upper


# Inputs --------------------------------------------------------------------------------------


def test_sums_of_two_members_are_different() -> None:
    sums = [a + b for a, b in itertools.combinations_with_replacement(MIAN_CHOWLA, 2)]
    assert len(set(sums)) == len(sums)
