"""Wrong arguments are refused with a message that names what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lp_oracle import (
    AssignmentProblem,
    certify,
    certify_routing,
    coordinate_descent,
    dual_objective,
    exact,
    expert_interval,
    expert_step,
    expert_subgradient,
    solve_linprog,
    token_interval,
    token_step,
)

SCORES = [[0.5, 0.25], [0.125, 0.75]]

ENTRY_POINTS: list[Callable[[Any, Any], object]] = [
    AssignmentProblem,
    solve_linprog,
    coordinate_descent,
    lambda scores, top_k: certify_routing(scores, [0, 0], top_k),
    lambda scores, top_k: dual_objective(scores, [0, 0], [0, 0], top_k),
    lambda scores, top_k: token_interval(scores, [0, 0], top_k),
    lambda scores, top_k: expert_interval(scores, [0, 0], top_k),
    lambda scores, top_k: certify(scores, top_k, np.eye(2), [0, 0], [0, 0]),
]


@pytest.mark.parametrize("call", ENTRY_POINTS)
@pytest.mark.parametrize(
    ("scores", "top_k", "error", "message"),
    [
        (SCORES, 0, ValueError, r"top_k = 0 must lie in 1\.\.2, the number of experts"),
        (SCORES, 3, ValueError, r"top_k = 3 must lie in 1\.\.2"),
        (SCORES, -1, ValueError, r"top_k = -1 must lie in 1\.\.2"),
        (SCORES, 1.0, TypeError, r"top_k = 1\.0 is not an integer"),
        ([[0.5, np.nan]], 1, ValueError, r"scores\[\(0, 1\)\] is nan; every entry must be finite"),
        ([[0.5, 1], [-np.inf, 0]], 1, ValueError, r"scores\[\(1, 0\)\] is -inf"),
        ([0.5, 0.25], 1, ValueError, r"scores has shape \(2,\); a matrix"),
        (np.zeros((0, 2)), 1, ValueError, r"shape \(0, 2\); at least one token and one expert"),
        (np.zeros((2, 0)), 1, ValueError, r"shape \(2, 0\); at least one token and one expert"),
        ([[1j, 0]], 1, TypeError, r"scores has dtype complex128; real numbers are needed"),
        ([["a", "b"]], 1, TypeError, r"scores has dtype <U1; real numbers are needed"),
        ([[None, Fraction(1)]], 1, TypeError, r"None is not a real number"),
        (np.array([[Fraction(1), np.nan]]), 1, ValueError, r"nan has no exact value"),
    ],
)
def test_bad_problem(
    call: Callable[[Any, Any], object],
    scores: Any,
    top_k: Any,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        call(scores, top_k)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dual_objective(SCORES, [0], [0, 0], 1), r"token_multipliers has shape \(1,\)"),
        (lambda: dual_objective(SCORES, [0, 0], [0], 1), r"expert_multipliers has shape \(1,\)"),
        (lambda: token_interval(SCORES, [0, np.nan], 1), r"expert_multipliers\[\(1,\)\] is nan"),
        (lambda: expert_interval(SCORES, [[0, 0]], 1), r"token_multipliers has shape \(1, 2\)"),
        (lambda: certify_routing(SCORES, [0, -np.inf], 1), r"bias\[\(1,\)\] is -inf"),
        (lambda: certify(SCORES, 1, np.eye(3), [0, 0], [0, 0]), r"assignment has shape \(3, 3\)"),
        (lambda: certify(SCORES, 1, np.eye(2), [0], [0, 0]), r"token_multipliers has shape \(1,\)"),
        (
            lambda: certify(SCORES, 1, np.eye(2), [0, 0], [0]),
            r"expert_multipliers has shape \(1,\)",
        ),
        (
            lambda: certify(SCORES, 1, np.eye(2), [0, 0], [0, 0], bound_multipliers=[0]),
            r"bound_multipliers has shape \(1,\)",
        ),
        (lambda: token_step(SCORES, [0], 1, rule="k"), r"expert_multipliers has shape \(1,\)"),
        (lambda: expert_step(SCORES, [0], 1, rule="q"), r"token_multipliers has shape \(1,\)"),
        (
            lambda: expert_subgradient(SCORES, [0, np.inf], [0, 0], 1),
            r"token_multipliers\[\(1,\)\] is inf",
        ),
        (lambda: coordinate_descent(SCORES, 1, start=[0.0]), r"start has shape \(1,\)"),
        (lambda: coordinate_descent(SCORES, 1, rounds=-1), r"rounds = -1 must not be negative"),
    ],
)
def test_bad_vectors_and_counts(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: coordinate_descent(SCORES, 1, token_rule="k-1"),  # type: ignore[arg-type]
            r"token_rule 'k-1' is unknown; use one of k\+1, k, midpoint, linear",
        ),
        (
            lambda: coordinate_descent(SCORES, 1, expert_rule="k"),  # type: ignore[arg-type]
            r"expert_rule 'k' is unknown; use one of q\+1, q, midpoint, linear",
        ),
        (
            lambda: token_step(SCORES, [0, 0], 1, rule="q"),  # type: ignore[arg-type]
            r"token_rule 'q' is unknown",
        ),
        (
            lambda: expert_step(SCORES, [0, 0], 1, rule="k+1"),  # type: ignore[arg-type]
            r"expert_rule 'k\+1' is unknown",
        ),
        (
            lambda: solve_linprog(SCORES, 1, method="simplex"),  # type: ignore[arg-type]
            r"method 'simplex' is unknown; use one of highs, highs-ds, highs-ipm",
        ),
    ],
)
def test_unknown_names(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: coordinate_descent(SCORES, 2),
        lambda: token_interval(SCORES, [0, 0], 2),
        lambda: expert_interval(SCORES, [0, 0], 2),
        lambda: token_step(SCORES, [0, 0], 2, rule="k"),
        lambda: expert_step(SCORES, [0, 0], 2, rule="q"),
    ],
)
def test_choosing_every_expert_leaves_no_interval(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"top_k = 2 equals the number of experts.*use top_k < N"):
        call()


def test_problem_keeps_its_own_read_only_copy() -> None:
    scores = np.array(SCORES)
    problem = AssignmentProblem(scores, np.int64(1))  # type: ignore[arg-type]
    scores[0, 0] = 9.0
    assert problem.scores[0, 0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        problem.scores[0, 0] = 1.0
    assert (problem.m, problem.n, problem.load, problem.is_integral) == (2, 2, Fraction(1), True)
    assert type(problem.top_k) is int


def test_numbers_are_in_the_arithmetic_of_the_scores() -> None:
    third = Fraction(1, 3)
    assert AssignmentProblem(exact(SCORES), 1).number(third) is third
    rounded = AssignmentProblem(np.array(SCORES), 1).number(third)
    assert type(rounded) is float
    assert rounded == 1 / 3


def test_exact_keeps_values_and_shapes() -> None:
    third = Fraction(1, 3)
    values = exact(np.array([[0.1, 2], [third, np.float32(0.1)]], dtype=object))
    assert values.shape == (2, 2)
    assert values[0, 0] == Fraction(0.1) != Fraction(1, 10)
    assert values[1, 0] == third
    assert values[1, 1] == Fraction(float(np.float32(0.1)))
    assert type(exact(np.array([Fraction(4, 2)]))[0]) is int
    assert exact(np.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(ValueError, match="inf has no exact value; use finite numbers"):
        exact([np.inf])
