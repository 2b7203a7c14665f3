"""Strict margins and exact loads: when they prove a routing optimal, and what a refusal says."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from lp_oracle import certify, certify_routing, coordinate_descent, exact, solve_linprog
from tests.lp_oracle.drawing import best_value, drawn, integral_shapes


def test_certified_routing_is_the_linear_program_s_optimum() -> None:
    certified = 0
    for scores, top_k in drawn(1, 80, integral_shapes(8)):
        solution = solve_linprog(scores, top_k)
        trace = coordinate_descent(
            scores, top_k, token_rule="linear", expert_rule="linear", rounds=1
        )
        verdict = certify_routing(scores, -trace.expert_multipliers, top_k)
        assert verdict.optimal == (verdict.reason is None)
        if verdict.optimal:
            certified += 1
            assert abs((scores * verdict.assignment).sum() - solution.objective) < 1e-9
    assert 20 < certified < 60


def test_never_a_wrong_certificate_on_tied_scores() -> None:
    certified = 0
    rng = np.random.default_rng(2)
    for m, n, top_k in integral_shapes(4) * 15:
        scores = rng.integers(0, 3, (m, n))
        bias = exact(rng.integers(-4, 5, n)) * Fraction(1, 3)
        verdict = certify_routing(scores, bias, top_k)
        if verdict.optimal:
            certified += 1
            assert (scores * verdict.assignment).sum() == best_value(scores, top_k)
    assert certified > 10


def test_gives_multipliers_that_certify_the_pair_exactly() -> None:
    scores = np.array([[9, 2, 4], [3, 8, 1], [5, 6, 7]])
    bias = np.array([0, 0, 1])
    verdict = certify_routing(scores, bias, 1)
    assert verdict.optimal
    assert verdict.margin == 2
    first_out = np.sort(scores + bias, axis=1)[:, -2]
    assert certify(scores, 1, verdict.assignment, first_out, -bias).certified


def test_float_margins_are_sound_down_to_one_ulp() -> None:
    """s + b rounds monotonically: a tie after rounding is refused, a difference is real."""
    above = np.nextafter(0.5, 1.0)
    assert certify_routing([[above, 0.5], [0.5, above]], [0.0, 0.0], 1).optimal
    merged = certify_routing([[above, 0.5], [0.5, above]], [8.0, 8.0], 1)
    assert not merged.optimal
    assert merged.margin == 0.0


def test_radius_demands_a_margin_above_twice_its_size() -> None:
    scores = np.array([[0.75, 0.5], [0.5, 0.75]])
    assert certify_routing(scores, [0.0, 0.0], 1, radius=0.12499).optimal
    refused = certify_routing(scores, [0.0, 0.0], 1, radius=0.125)
    assert not refused.optimal
    assert refused.reason is not None
    assert "least margin between a token's k-th and (k+1)-th" in refused.reason
    assert certify_routing([[3, 1], [1, 3]], [0, 0], 1, radius=0.999).optimal
    assert not certify_routing([[3, 1], [1, 3]], [0, 0], 1, radius=1.0).optimal


def test_radius_covers_every_score_inside_it() -> None:
    rng = np.random.default_rng(3)
    certified = 0
    for scores, top_k in drawn(4, 60, integral_shapes(6)):
        trace = coordinate_descent(scores, top_k, token_rule="midpoint", expert_rule="midpoint")
        bias, radius = -trace.expert_multipliers, 10.0 ** rng.uniform(-4, -1.5)
        verdict = certify_routing(scores, bias, top_k, radius=radius)
        if verdict.optimal:
            certified += 1
            moved = scores + radius * rng.choice([-1.0, 1.0], scores.shape)
            best = solve_linprog(moved, top_k).objective
            assert abs((moved * verdict.assignment).sum() - best) < 1e-9
    assert 10 < certified < 60


def test_reason_names_the_condition_that_fails() -> None:
    tied = certify_routing([[1, 1], [0, 1]], [0, 0], 1)
    assert "least margin" in str(tied.reason)
    assert "is 0, not above 0" in str(tied.reason)
    crowded = certify_routing([[2, 1], [2, 1]], [0, 0], 1)
    assert crowded.reason == "2 of 2 experts miss the load q = 1; expert 0 has 2"
    np.testing.assert_array_equal(crowded.loads, [2, 0])
    fractional = certify_routing([[3, 2, 1], [1, 3, 2]], [0, 0, 0], 1)
    assert fractional.reason == "q = 2/3 is not an integer, so no routing has load q everywhere"


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_ties_go_to_the_lowest_experts(dtype: type) -> None:
    """32 of 64 experts at 1, the others at 0: of these the first eight are taken."""
    scores = np.tile(np.array([1, 0], dtype=dtype), (2, 32))
    verdict = certify_routing(scores, np.zeros(64), 40)
    assert np.flatnonzero(verdict.loads).tolist() == sorted([*range(0, 64, 2), *range(1, 17, 2)])
    assert set(verdict.loads.tolist()) == {0, 2}


def test_choosing_every_expert_is_optimal() -> None:
    verdict = certify_routing([[1, 1], [1, 1], [0, 1]], [0, 0], 2)
    assert verdict.optimal
    assert verdict.margin == float("inf")
    np.testing.assert_array_equal(verdict.loads, [3, 3])


@pytest.mark.parametrize("radius", [-1.0, float("nan"), float("inf")])
def test_bad_radius(radius: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number of at least 0"):
        certify_routing([[1, 0]], [0, 0], 1, radius=radius)
