"""The price of the cheapest exchange, and what averaged rounds do with it and without it."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lp_oracle
from lp_oracle.instances import ALTERNATING, TIES_JAM
from properties.errors import ViolationError
from properties.judgement.optimality.averaging import (
    cheapest_exchange,
    exact_optimum,
    most_rounds,
    require_certified,
    require_exact_optimum,
    round_of,
    row_spread,
)


def price_by_enumeration(scores: Any, assignment: Any) -> Fraction:
    """Every alternating cycle: distinct tokens, each gives one expert and takes the next one's."""
    m, n = scores.shape
    prices = []
    for length in range(2, min(m, n) + 1):
        for tokens in itertools.permutations(range(m), length):
            for given in itertools.permutations(range(n), length):
                taken = (*given[1:], given[0])
                if assignment[tokens, given].all() and not assignment[tokens, taken].any():
                    loss = scores[tokens, given].sum() - scores[tokens, taken].sum()
                    prices.append(Fraction(int(loss), length))
    return min(prices)


@pytest.mark.parametrize(
    "shape", [(2, 2, 1), (4, 2, 1), (3, 3, 1), (3, 3, 2), (4, 4, 2), (6, 3, 1)]
)
def test_price_is_that_of_the_cheapest_cycle(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        scores = rng.integers(0, 40, shape[:2])
        x = exact_optimum(scores, shape[2]).assignment
        assert cheapest_exchange(scores, x) == price_by_enumeration(scores, x) >= 0


def test_price_of_an_assignment_that_is_not_optimal_is_negative() -> None:
    scores = np.array([[5, 0], [0, 5]])
    assert cheapest_exchange(scores, np.eye(2, dtype=int)) == 5
    assert cheapest_exchange(scores, np.eye(2, dtype=int)[::-1]) == -5


def test_increments_alternate_and_averages_do_not() -> None:
    """(2, 0), (0, 2) for ever after the first round; one average already rises everywhere."""
    scores, beta = ALTERNATING.scores, np.zeros(2, dtype=int)
    added = []
    for _ in range(9):
        step = round_of(scores, beta, 1)
        added.append(step.added.tolist())
        beta = beta + step.added
    assert added == [[0, 3], *([[2, 0], [0, 2]] * 4)]
    averaged = round_of(2 * scores, np.array(added[0]), 1)
    assert averaged.added.tolist() == [1, 3]  # in halves
    assert cheapest_exchange(scores, exact_optimum(scores, 1).assignment) == 1


def test_ties_hold_averages_above_the_optimum() -> None:
    scores = TIES_JAM.scores
    assert cheapest_exchange(scores, exact_optimum(scores, 1).assignment) == 0
    beta = np.zeros(5, dtype=int)
    assert not round_of(scores, beta, 1).added.any()
    alpha = lp_oracle.token_step(scores, beta, 1, rule="k+1")
    assert lp_oracle.dual_objective(scores, alpha, beta, 1) == 5 > TIES_JAM.optimum


def test_bound_on_the_rounds() -> None:
    scores = np.array([[0, 3], [1, 2]])
    assert row_spread(scores) == 3
    assert most_rounds(scores, Fraction(1)) == 46  # 144 / pi = 45.8
    assert most_rounds(scores, Fraction(1, 2)) == 184


def test_false_claims_are_violations() -> None:
    scores = np.array([[5, 0], [0, 4]])
    optimum = exact_optimum(scores, 1)
    require_certified(optimum, np.array([0, 0]), 4)
    with pytest.raises(ViolationError, match="the margin is 4"):
        require_certified(optimum, np.array([0, 0]), 5)
    with pytest.raises(ViolationError, match="not certified"):
        require_certified(optimum, np.array([9, 0]), 1)
    other = exact_optimum(np.array([[0, 5], [4, 0]]), 1)
    with pytest.raises(ViolationError, match=r"a gap of 9\.0"):
        require_exact_optimum(lp_oracle.perturbed_descent(scores, 1), other)
