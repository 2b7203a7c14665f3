"""What ``certified_optimum`` calls a proof: rounding allowances, gaps and units, by hand.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lp_oracle import certified_optimum, dual_objective, exact
from lp_oracle.at_scale import augmentation, grid, optimum
from lp_oracle.at_scale.optimum import (
    GAP_TOLERANCE,
    _is_strict,
    _margin_error,
    _Pair,
    _proof,
    _require_feasible,
)
from lp_oracle.problem import SMALLEST, require_summable

Array = NDArray[Any]

DIAGONAL = np.eye(2, dtype=bool)
ZEROS = np.zeros(2)


def close(size: float, difference: float) -> Array:
    return np.array([[size + difference, size], [size, size + difference]])


@pytest.mark.parametrize("x", [[[1, 0, 1]], [[0, 1, 1]], [[0, 1, 0]]])
def test_a_choice_is_strict_only_above_every_other(x: list[list[int]]) -> None:
    assert not _is_strict(np.array([[3.0, 2.0, 1.0]]), np.array(x, dtype=bool), 0)
    assert _is_strict(np.array([[3.0, 2.0, 1.0]]), np.array([[1, 1, 0]], dtype=bool), 0)


@pytest.mark.parametrize("size", [1.0, 1024.0])
def test_scores_that_were_rounded_need_more_than_that_between_them(size: float) -> None:
    """Each is off by u |s|, doubled for s - beta: two differ for certain beyond 8 u |s|."""
    last_place = np.spacing(size)
    near, far = close(size, last_place), close(size, 8 * last_place)
    alpha = np.full(2, size)
    assert _Pair(near, DIAGONAL, alpha, ZEROS, fits=True).judged() == (True, 0.0)
    assert not _Pair(near, DIAGONAL, alpha, ZEROS, fits=False).judged()[0]
    assert _Pair(far, DIAGONAL, alpha, ZEROS, fits=False).judged() == (True, 0.0)


def test_scores_are_as_wide_as_their_rounding_on_either_side() -> None:
    """3 + 2 e and 3, each off by less than 2 e but more than e: neither is surely larger."""
    e = 2.0**-51
    reduced = np.array([[2.0 + 2 * e, 2.0]])
    assert _is_strict(reduced, np.array([[True, False]]), 0)
    assert _is_strict(reduced, np.array([[True, False]]), np.array([[0.0, e]]))
    assert not _is_strict(reduced, np.array([[True, False]]), np.array([[0.0, 2 * e]]))
    assert not _is_strict(reduced, np.array([[True, False]]), np.array([[2 * e, 0.0]]))


def test_a_margin_errs_by_both_of_its_differences() -> None:
    """2 u (3 + 1); at zero what underflows is left."""
    assert _margin_error(np.array([3.0]), np.array([-1.0])) == [2.0**-50]
    assert _margin_error(np.array([0.0]), np.array([0.0])) == [SMALLEST]
    assert _margin_error(np.array([3]), np.array([-1])) == 0


@pytest.mark.parametrize("entries", [2, 2**19], ids=["a token at a time", "all at once"])
def test_gaps_of_all_tokens_add_up_and_are_rounded_upwards(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """Each token chooses 0 and leaves 3; alpha is 1: 2 and 1 are lost, for both."""
    monkeypatch.setattr(grid, "_BLOCK_ENTRIES", entries)
    scores = np.array([[3, 0], [0, 3]])
    alpha, beta = np.array([1, 1]), np.array([0, 0])
    strict, gap = _Pair(scores, ~DIAGONAL, alpha, beta, fits=True).judged()
    assert not strict
    assert 6.0 <= gap <= 6.0 * (1.0 + 2.0**-51)


def test_a_gap_counts_as_rounding_up_to_its_share() -> None:
    assert _proof(True, 9.0, 1.0) == "strict margins"
    assert _proof(False, 0.0, 1.0) == "complementary slackness"
    assert _proof(False, GAP_TOLERANCE, 1.0) == "gap"
    assert _proof(False, float(np.nextafter(GAP_TOLERANCE, 1.0)), 1.0) == "none"


@pytest.mark.parametrize("x", [[[1, 1], [0, 0]], [[1, 0], [1, 0]]], ids=["rows", "columns"])
def test_rows_and_columns_have_to_add_up(x: list[list[int]]) -> None:
    _require_feasible(DIAGONAL, 1, 1)
    with pytest.raises(AssertionError, match="wrong sums"):
        _require_feasible(np.array(x, dtype=bool), 1, 1)


@pytest.mark.parametrize(
    ("scores", "proof"),
    [
        (np.random.default_rng(0).random((4, 2)), "none"),
        (np.random.default_rng(1).integers(0, 9, (4, 2)), "none"),
        # 2 of 2^41 are lost, which counts as rounding, though it is none.
        (np.array([[2**40, 2**40 + 1], [2**40 + 1, 2**40]]), "gap"),
    ],
    ids=["floats", "integers", "a small loss"],
)
def test_what_is_lost_is_said_in_the_unit_of_the_scores(
    monkeypatch: pytest.MonkeyPatch, scores: Array, proof: str
) -> None:
    """x is exchanged for its reverse, which has the right sums."""
    original = optimum.Augmentation.assignment
    monkeypatch.setattr(
        optimum.Augmentation, "assignment", lambda self: np.array(original(self)[::-1])
    )
    found = certified_optimum(scores, 1)
    alpha, beta = found.token_multipliers, found.expert_multipliers
    worth = Fraction((exact(scores) * found.assignment.astype(int)).sum())
    gap = Fraction(dual_objective(exact(scores), alpha, beta, 1)) - worth
    assert gap > 0
    assert found.gap == pytest.approx(float(gap), rel=1e-12)
    assert found.proof == proof


def test_choosing_every_expert_is_strict() -> None:
    found = certified_optimum([[1, 2], [3, 4]], 2)
    assert (found.proof, found.gap, found.objective) == ("strict margins", 0.0, 10.0)


def test_bits_run_out_at_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "LARGEST", 0)
    told: list[str] = []
    with pytest.raises(ArithmeticError, match="no multipliers fit beside scores of 16 bits"):
        certified_optimum([[9, 0], [5, 0]], 1, progress=told.append)
    outgrown = [line.split(" bits;")[0].split()[-1] for line in told if "outgrew" in line]
    assert outgrown == ["48", "40", "32", "24", "16"]


def test_masks_that_do_not_decide_are_not_looked_at_again() -> None:
    scores = np.random.default_rng(4).random((96, 12))
    scores[::3, 5] = -1e9
    told: list[str] = []
    assert certified_optimum(scores, 3, progress=told.append).certified
    assert not any("do decide" in line for line in told)


def test_sums_of_scores_have_to_stay_within_float64() -> None:
    """8 tokens with 2 of 2 experts: 16 scores below 2^1016."""
    require_summable(np.full((8, 2), -(2.0**1016)), 16)
    assert certified_optimum(np.full((8, 2), 2.0**1016), 2).objective == 2.0**1020
    beyond = np.full((8, 2), float(np.nextafter(2.0**1016, np.inf)))
    with pytest.raises(ValueError, match="16 scores of this size add up beyond float64"):
        require_summable(-beyond, 16)
    with pytest.raises(ValueError, match="16 scores of this size add up beyond float64"):
        certified_optimum(beyond, 2)
