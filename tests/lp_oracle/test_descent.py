"""Coordinate descent: the rule table, what every round keeps, and how outcomes are decided."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from lp_oracle import (
    EXPERT_RULES,
    PRICE_WAR,
    TOKEN_RULES,
    ExpertRule,
    TokenRule,
    certify,
    certify_routing,
    coordinate_descent,
    dual_objective,
    dual_radius,
    exact,
    expert_step,
    expert_subgradient,
    solve_linprog,
    token_step,
)
from tests.lp_oracle.drawing import Array, drawn, integral_shapes

PAIRS = list(itertools.product(TOKEN_RULES, EXPERT_RULES))
INTERIOR = {"midpoint", "linear"}
CORNERS = [("k+1", "q+1"), ("k", "q")]
FRACTIONAL = [(2, 3, 1), (2, 5, 4), (3, 2, 1), (4, 3, 2), (5, 7, 3), (1, 6, 4)]


@pytest.fixture(scope="module")
def solved() -> list[tuple[Array, int, float]]:
    """Generic instances with an integer load, large enough for a rule to jam, and their optimum."""
    instances = drawn(0, 40, integral_shapes(12, smallest=3))
    return [(scores, k, solve_linprog(scores, k).objective) for scores, k in instances]


@pytest.mark.parametrize(("token_rule", "expert_rule"), PAIRS)
def test_rule_table(
    solved: list[tuple[Array, int, float]], token_rule: TokenRule, expert_rule: ExpertRule
) -> None:
    outcomes, reached = [], 0
    for scores, top_k, best in solved:
        trace = coordinate_descent(
            scores, top_k, token_rule=token_rule, expert_rule=expert_rule, rounds=300
        )
        outcomes.append(trace.outcome)
        gap = float(trace.dual_values[-1]) - best
        assert gap > -1e-9
        reached += gap < 1e-9
        if trace.outcome == "certified":
            assert abs((scores * trace.verdict.assignment).sum() - best) < 1e-9
    if token_rule in INTERIOR or expert_rule in INTERIOR:
        assert set(outcomes) == {"certified"}
        assert reached == len(solved)
    elif (token_rule, expert_rule) in CORNERS:
        assert outcomes.count("jammed") > 30
        assert 0 < reached < 20
    else:
        assert reached == len(solved)
        assert set(outcomes) == {"certified", "unfinished"}


@pytest.mark.parametrize(("token_rule", "expert_rule"), PAIRS)
def test_dual_never_increases(token_rule: TokenRule, expert_rule: ExpertRule) -> None:
    for scores, top_k in drawn(1, 8, integral_shapes(8) + FRACTIONAL):
        for given in (scores, np.rint(scores * 30).astype(int)):
            trace = coordinate_descent(
                given, top_k, token_rule=token_rule, expert_rule=expert_rule, rounds=12
            )
            radius = dual_radius(given, trace.token_multipliers, trace.expert_multipliers, top_k)
            steps = np.diff(np.array(trace.dual_values, dtype=object))
            if trace.minimises:
                assert (steps <= 2 * radius).all()


@pytest.mark.parametrize("expert_rule", ["q+1", "midpoint", "linear"])
def test_fractional_load_admits_that_other_ranks_do_not_minimise(expert_rule: ExpertRule) -> None:
    scores = [[1, 3, 5, 8, 9], [7, 4, 0, 2, 6]]
    trace = coordinate_descent(scores, 1, expert_rule=expert_rule, rounds=30)
    assert not trace.minimises
    beta = expert_step(scores, [0, 0], 1, rule=expert_rule)
    least = expert_step(scores, [0, 0], 1, rule="q")
    value = dual_objective(scores, [0, 0], beta, 1)
    assert value > dual_objective(scores, [0, 0], least, 1)
    assert not expert_subgradient(scores, [0, 0], beta, 1).contains(0).any()
    assert trace.outcome != "certified"
    assert trace.verdict.reason == "q = 2/5 is not an integer, so no routing has load q everywhere"
    least_trace = coordinate_descent(scores, 1, token_rule="k", expert_rule="q", rounds=30)
    assert least_trace.minimises
    assert (least_trace.token_rule, least_trace.expert_rule) == ("k", "q")


def test_rank_beyond_the_last_token_reads_the_last() -> None:
    """q = 8/5 of 2 tokens: ceil(q) + 1 = 3."""
    scores = np.random.default_rng(2).random((2, 5))
    beta = expert_step(scores, [0.0, 0.0], 4, rule="q+1")
    np.testing.assert_array_equal(beta, scores.min(axis=0))
    assert coordinate_descent(scores, 4, expert_rule="q+1", rounds=1).minimises


@pytest.mark.parametrize(("token_rule", "expert_rule"), PAIRS)
def test_drift_never_grows(token_rule: TokenRule, expert_rule: ExpertRule) -> None:
    rng = np.random.default_rng(3)
    for scores, top_k in drawn(4, 8, integral_shapes(7) + FRACTIONAL):
        start = rng.integers(-9, 10, scores.shape[1])
        trace = coordinate_descent(
            np.rint(scores * 10).astype(int),
            top_k,
            token_rule=token_rule,
            expert_rule=expert_rule,
            rounds=10,
            start=start,
        )
        drifts = list(trace.drifts)
        assert drifts == sorted(drifts, reverse=True)


@pytest.mark.parametrize(("token_rule", "expert_rule"), PAIRS)
def test_centring_changes_nothing_but_a_constant(
    token_rule: TokenRule, expert_rule: ExpertRule
) -> None:
    for scores, top_k in drawn(5, 6, integral_shapes(7) + FRACTIONAL):
        integers = np.rint(scores * 40).astype(int)
        plain, centred = (
            coordinate_descent(
                integers,
                top_k,
                token_rule=token_rule,
                expert_rule=expert_rule,
                rounds=8,
                centre=centre,
            )
            for centre in (False, True)
        )
        assert (plain.outcome, plain.rounds) == (centred.outcome, centred.rounds)
        assert plain.dual_values == centred.dual_values
        np.testing.assert_array_equal(plain.increments, centred.increments)
        shift = centred.expert_multipliers - plain.expert_multipliers
        assert (shift == shift[0]).all()
        assert (plain.token_multipliers - centred.token_multipliers == shift[0]).all()
        assert plain.rounds == 0 or centred.expert_multipliers.sum() == 0


def test_floats_and_rationals_end_alike() -> None:
    """Corners aside: their fixed points have margins of exactly zero, which rounding may part."""
    for scores, top_k in drawn(6, 20, integral_shapes(7)):
        for token_rule, expert_rule in [("midpoint", "midpoint"), ("k+1", "linear")]:
            rounded, true = (
                coordinate_descent(
                    given,
                    top_k,
                    token_rule=token_rule,  # type: ignore[arg-type]
                    expert_rule=expert_rule,  # type: ignore[arg-type]
                    rounds=40,
                )
                for given in (scores, exact(scores))
            )
            assert (rounded.outcome, rounded.rounds) == (true.outcome, true.rounds)
            assert true.radius == 0.0
            assert 0.0 <= rounded.radius < 1e-13
            errors = exact(rounded.increments) - true.increments
            assert rounded.rounds == 0 or np.abs(errors).max() <= rounded.rounds * rounded.radius


def test_certified_descent_gives_a_pair_that_certifies_exactly() -> None:
    for scores, top_k in drawn(7, 15, integral_shapes(7)):
        trace = coordinate_descent(exact(scores), top_k, expert_rule="midpoint")
        assert trace.outcome == "certified"
        certificate = certify(
            exact(scores),
            top_k,
            trace.verdict.assignment,
            trace.token_multipliers,
            trace.expert_multipliers,
        )
        assert certificate.certified, str(certificate)
        assert certificate.dual_value == trace.dual_values[-1]


def test_trace_replays_its_steps() -> None:
    scores = np.array([[3, 0, 4], [8, 6, 5], [2, 1, 7]])
    start = np.array([1, 0, 2])
    trace = coordinate_descent(scores, 1, token_rule="k", expert_rule="linear", start=start)
    beta = exact(start)
    for increment in trace.increments:
        alpha = token_step(scores, beta, 1, rule="k")
        after = expert_step(scores, alpha, 1, rule="linear")
        np.testing.assert_array_equal(after - beta, increment)
        beta = after
    np.testing.assert_array_equal(beta, trace.expert_multipliers)
    assert trace.increments.shape == (trace.rounds, 3)
    assert len(trace.dual_values) == trace.rounds + 1


def test_least_increment_never_decreases_and_certifies_once_positive() -> None:
    """The pair ((k+1)-th, q-th), uncentred, in exact arithmetic: the order-preserving map."""
    certified = 0
    rng = np.random.default_rng(8)
    for m, n, top_k in integral_shapes(6) * 3:
        scores = rng.integers(0, 60, (m, n))
        beta = exact(np.zeros(n, dtype=int))
        least: int | Fraction | None = None
        for _ in range(25):
            alpha = token_step(scores, beta, top_k, rule="k+1")
            after = expert_step(scores, alpha, top_k, rule="q")
            increment = (after - beta).min()
            assert least is None or increment >= least
            if increment > 0:
                assert certify_routing(scores, -beta, top_k).optimal
                certified += 1
            least, beta = increment, after
    assert certified > 100


def test_start_that_is_optimal_needs_no_round() -> None:
    trace = coordinate_descent([[3, 1], [1, 3]], 1, rounds=0)
    assert trace.outcome == "certified"
    assert trace.rounds == 0
    assert trace.increments.shape == (0, 2)
    assert trace.increments.dtype == object
    assert trace.drifts == ()
    assert trace.dual_values == (6,)
    # s - start is 2 0 and -2 0: one token each. s + start is not.
    assert coordinate_descent([[9, 0], [5, 0]], 1, rounds=0, start=[7, 0]).outcome == "certified"


def test_too_few_rounds_are_unfinished_not_jammed() -> None:
    scores = [[3, 0, 4], [8, 6, 5], [2, 1, 7]]
    assert coordinate_descent(scores, 1, rounds=0).outcome == "unfinished"
    assert coordinate_descent(scores, 1, rounds=1).outcome == "unfinished"
    assert coordinate_descent(scores, 1, rounds=2).outcome == "jammed"


def test_a_hundred_rounds_unless_told_otherwise() -> None:
    """The price war of this size takes 200."""
    trace = coordinate_descent(PRICE_WAR.scores(200), 1, token_rule="k+1", expert_rule="q")
    assert (trace.outcome, trace.rounds) == ("unfinished", 100)
