"""The dual objective, its half-step intervals and its subgradients."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import numpy as np
import pytest

from lp_oracle import (
    EXPERT_RULES,
    TOKEN_RULES,
    dual_objective,
    dual_radius,
    exact,
    expert_interval,
    expert_step,
    expert_subgradient,
    solve_linprog,
    token_interval,
    token_step,
    token_subgradient,
)
from lp_oracle.descent import ExpertRule, TokenRule
from lp_oracle.dual import order_statistic
from tests.lp_oracle.drawing import best_value, drawn, integral_shapes

FRACTIONAL = [(2, 3, 1), (2, 5, 4), (3, 2, 1), (4, 3, 2), (5, 7, 3), (1, 6, 4)]
SHAPES = integral_shapes(8) + FRACTIONAL


def test_hand_computed_value() -> None:
    scores = [[3, 0], [1, 2]]
    # 1 (1 + 1) + 1 (1 + 0) + hinges 1, 0, 0, 1
    assert dual_objective(scores, [1, 1], [1, 0], 1) == 5
    assert isinstance(dual_objective(scores, [1, 1], [1, 0], 1), Fraction)
    assert dual_objective(np.array(scores, dtype=np.float32), [1, 1], [1, 0], 1) == 5.0


def test_integer_scores_do_not_overflow_or_round() -> None:
    big = 2**62
    scores = np.array([[big + 1, -big], [big, big]], dtype=np.int64)
    # 0 from the multipliers; each row keeps what exceeds alpha = -2^62: 2^63 + 1, 0, 2^63, 2^63.
    value = dual_objective(scores, [-big, -big], [0, 0], 1)
    assert value == -2 * big + 3 * 2**63 + 1


def test_float_multipliers_of_exact_scores_are_taken_exactly() -> None:
    value = dual_objective([[3, 0], [1, 2]], [0.1, 0.2], [0.3, 0.0], 1)
    tenth, fifth, third = Fraction(0.1), Fraction(0.2), Fraction(0.3)
    hinges = (3 - tenth - third) + (1 - fifth - third) + (2 - fifth)
    assert value == tenth + fifth + third + hinges
    with pytest.raises(ValueError, match="nan has no exact value"):
        dual_objective([[3, 0]], [np.nan], [0, 0], 1)


def test_weak_duality_is_exact_for_rational_multipliers() -> None:
    rng = np.random.default_rng(0)
    for m, n, top_k in [(3, 3, 1), (2, 4, 2), (2, 5, 1), (4, 3, 2)]:
        scores = rng.integers(0, 10, (m, n))
        best = best_value(scores, top_k)
        for _ in range(20):
            alpha = exact(rng.integers(-20, 20, m)) * Fraction(1, 3)
            beta = exact(rng.integers(-20, 20, n)) * Fraction(1, 7)
            assert dual_objective(scores, alpha, beta, top_k) >= best


def test_weak_duality_against_the_solver() -> None:
    rng = np.random.default_rng(1)
    for scores, top_k in drawn(2, 30, SHAPES):
        best = solve_linprog(scores, top_k)
        alpha, beta = rng.normal(size=scores.shape[0]), rng.normal(size=scores.shape[1])
        assert dual_objective(scores, alpha, beta, top_k) > best.objective
        tight = dual_objective(scores, best.token_multipliers, best.expert_multipliers, top_k)
        assert abs(float(tight) - best.objective) < 1e-9


def test_radius_covers_the_rounding_and_is_not_idle() -> None:
    rng = np.random.default_rng(4)
    worst = 0.0
    for scores, top_k in drawn(3, 60, SHAPES):
        alpha, beta = rng.normal(size=scores.shape[0]), rng.normal(size=scores.shape[1])
        beta *= 10.0 ** rng.integers(-5, 9)
        value = dual_objective(scores, alpha, beta, top_k)
        true = dual_objective(exact(scores), exact(alpha), exact(beta), top_k)
        radius = dual_radius(scores, alpha, beta, top_k)
        error = abs(exact([value])[0] - true)
        assert error <= radius
        worst = max(worst, float(error) / radius)
    assert worst > 0.01
    assert dual_radius([[1, 2]], [0], [0, 0], 1) == 0.0


def test_radius_counts_every_term_by_its_size() -> None:
    """4 u of k |alpha| = 4, q sum |beta| = 12, and of the edges 1 + 4 + 8 and 2 + 4 + 16."""
    assert dual_radius([[1.0, -2.0]], [-4.0], [8.0, -16.0], 1) == 51 * 2.0**-51


@pytest.mark.parametrize("rule", get_args(TokenRule))
def test_token_step_minimises(rule: TokenRule) -> None:
    rng = np.random.default_rng(5)
    for scores, top_k in drawn(6, 8, SHAPES):
        beta = exact(rng.integers(-3, 4, scores.shape[1])) * Fraction(1, 5)
        scores = exact(np.rint(scores * 20).astype(int)) * Fraction(1, 20)
        alpha = token_step(scores, beta, top_k, rule=rule)
        assert token_interval(scores, beta, top_k).contains(alpha).all()
        assert token_subgradient(scores, alpha, beta, top_k).contains(0).all()
        least = dual_objective(scores, alpha, beta, top_k)
        for offset in range(-12, 13):
            moved = alpha.copy()
            moved[0] += Fraction(offset, 16)
            inside = token_interval(scores, beta, top_k).contains(moved)[0]
            value = dual_objective(scores, moved, beta, top_k)
            assert (value == least) if inside else (value > least)


@pytest.mark.parametrize("rule", get_args(ExpertRule))
def test_expert_step_minimises(rule: ExpertRule) -> None:
    rng = np.random.default_rng(7)
    # For a fractional q only rank ceil(q), the rule "q", is a minimiser.
    for scores, top_k in drawn(8, 8, SHAPES if rule == "q" else integral_shapes(8)):
        alpha = exact(rng.integers(-3, 4, scores.shape[0])) * Fraction(1, 5)
        scores = exact(np.rint(scores * 20).astype(int)) * Fraction(1, 20)
        beta = expert_step(scores, alpha, top_k, rule=rule)
        assert expert_interval(scores, alpha, top_k).contains(beta).all()
        assert expert_subgradient(scores, alpha, beta, top_k).contains(0).all()
        least = dual_objective(scores, alpha, beta, top_k)
        for offset in range(-12, 13):
            moved = beta.copy()
            moved[0] += Fraction(offset, 16)
            inside = expert_interval(scores, alpha, top_k).contains(moved)[0]
            value = dual_objective(scores, alpha, moved, top_k)
            assert (value == least) if inside else (value > least)


def test_float_steps_keep_zero_in_the_subgradient() -> None:
    rng = np.random.default_rng(9)
    for scores, top_k in drawn(10, 40, integral_shapes(10)):
        beta = rng.normal(size=scores.shape[1]) * 10.0 ** rng.integers(-3, 6)
        for token_rule in TOKEN_RULES:
            alpha = token_step(scores, beta, top_k, rule=token_rule)
            assert token_subgradient(scores, alpha, beta, top_k).contains(0).all()
            for expert_rule in EXPERT_RULES:
                after = expert_step(scores, alpha, top_k, rule=expert_rule)
                assert expert_subgradient(scores, alpha, after, top_k).contains(0).all()


def test_subgradients_tell_a_point_beside_the_interval() -> None:
    for scores, top_k in drawn(11, 20, integral_shapes(8)):
        beta = np.zeros(scores.shape[1])
        lower, upper = token_interval(scores, beta, top_k)
        for alpha in (lower - 1e-9, upper + 1e-9):
            assert not token_subgradient(scores, alpha, beta, top_k).contains(0).any()
        alpha = (lower + upper) / 2
        lower, upper = expert_interval(scores, alpha, top_k)
        for beta in (lower - 1e-9, upper + 1e-9):
            assert not expert_subgradient(scores, alpha, beta, top_k).contains(0).any()


def test_subgradient_radius_widens_both_ends() -> None:
    scores, zeros = [[2, 1, 0]], [0, 0, 0]
    assert token_subgradient(scores, [1], zeros, 1) == (np.array([-1]), np.array([0]))
    widened = token_subgradient(scores, [1], zeros, 1, radius=1.0)
    assert widened == (np.array([-2]), np.array([1]))
    # q = 1/3 and the margins 1, 0 and -1: the second counts perhaps, with the radius all do.
    lower, upper = expert_subgradient(scores, [1], zeros, 1)
    assert (lower.tolist(), upper.tolist()) == (
        [1 / 3 - 1, 1 / 3 - 1, 1 / 3],
        [1 / 3 - 1, 1 / 3, 1 / 3],
    )
    lower, upper = expert_subgradient(scores, [1], zeros, 1, radius=1.0)
    assert (lower.tolist(), upper.tolist()) == ([1 / 3 - 1] * 3, [1 / 3] * 3)


def test_interval_is_exact_for_rationals_and_widened_by_a_radius() -> None:
    third = token_interval(exact([[1, 2, 3]]) * Fraction(1, 3), [0, 0, 0], 1)
    assert third.contains(np.array([Fraction(2, 3)])).all()
    assert not third.contains(np.array([Fraction(2, 3) - Fraction(1, 10**30)])).any()
    assert third.contains(np.array([Fraction(2, 3) - Fraction(1, 10**30)]), 1e-20).all()


def test_fractional_load_has_a_single_minimiser() -> None:
    scores = np.array([[1, 3, 5, 8, 9], [7, 4, 0, 2, 6]])
    lower, upper = expert_interval(scores, [0, 0], 1)
    np.testing.assert_array_equal(lower, scores.max(axis=0))
    np.testing.assert_array_equal(upper, lower)


def test_linear_rules_are_the_quantiles_of_numpy() -> None:
    for scores, top_k in drawn(12, 20, SHAPES):
        share = 1 - top_k / scores.shape[1]
        alpha = token_step(scores, np.zeros(scores.shape[1]), top_k, rule="linear")
        np.testing.assert_allclose(alpha, np.quantile(scores, share, axis=1), rtol=1e-13)
        beta = expert_step(scores, np.zeros(scores.shape[0]), top_k, rule="linear")
        np.testing.assert_allclose(beta, np.quantile(scores, share, axis=0), rtol=1e-13)


def test_interpolation_never_leaves_its_ends() -> None:
    rng = np.random.default_rng(13)
    values = np.sort(rng.normal(size=(2, 5000)) * 10.0 ** rng.integers(-20, 20, 5000), axis=0)
    for numerator in range(1, 40):
        inside = order_statistic(values, 1 + Fraction(numerator, 40), axis=0)
        assert (values[0] <= inside).all()
        assert (inside <= values[1]).all()
