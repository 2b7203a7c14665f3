"""Scores as integers: which are exact, what is clipped, and how many bits levels take."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lp_oracle import certified_optimum, exact
from lp_oracle.at_scale import grid
from lp_oracle.at_scale.grid import Range, deciding_range, fits_float64, score_grid, token_blocks

Array = NDArray[Any]


@pytest.mark.parametrize(
    ("scores", "fits"),
    [
        (np.array([[2**53, -(2**53)]]), True),
        (np.array([[2**53 + 1, 0]]), False),
        (np.array([[0, -(2**53) - 1]]), False),
        (np.array([[2**64 - 1]], dtype=np.uint64), False),
        (np.array([[True, False]]), True),
        (np.zeros((1, 2)), True),
        (np.zeros((1, 2), dtype=np.float32), True),
        (np.zeros((1, 2), dtype=np.longdouble), np.dtype(np.longdouble).itemsize <= 8),
        (exact([[1, 2]]), False),
    ],
)
def test_what_float64_holds(scores: Array, fits: bool) -> None:
    assert fits_float64(scores) is fits


@pytest.mark.parametrize(
    ("scores", "is_exact"),
    [
        (np.array([[0.5, 0.25]]), True),
        (np.array([[1.0, 2.0**-60]]), False),
        (np.array([[0.5, -3.0]], dtype=np.longdouble), np.dtype(np.longdouble).itemsize <= 8),
        (np.array([[3, -5], [7, 0]]), True),
        (np.array([[2**48, 1]]), False),
        (exact([[Fraction(1, 3), Fraction(-2, 5)]]), True),
        (exact([[Fraction(1, 3**40), 1]]), False),
        # 48 bits over the common denominator: none is left over, and none is needed.
        (exact([[Fraction(2**48 - 1, 3), Fraction(1, 3)]]), True),
    ],
)
def test_levels_stand_for_the_scores_and_say_whether_they_are_exact(
    scores: Array, is_exact: bool
) -> None:
    found = score_grid(scores)
    assert found.is_exact is is_exact
    assert np.abs(found.levels).max() <= 2**48
    unit = Fraction(2) ** found.exponent / found.denominator
    errors = np.abs(found.levels.astype(object) * unit - exact(scores))
    assert errors.max() <= (0 if is_exact else unit / 2)
    np.testing.assert_allclose(
        found.values(found.levels), scores.astype(np.float64), rtol=2.0**-52, atol=float(unit) / 2
    )


def test_levels_have_as_many_bits_as_are_asked_for() -> None:
    assert score_grid(np.array([[15, 1]]), 4).levels.tolist() == [[15, 1]]
    # 16 has one bit too many: it is halved, and 1 rounds to the even 0.
    assert score_grid(np.array([[16, 1]]), 4).levels.tolist() == [[8, 0]]
    assert score_grid(np.array([[3, -1]]), 4).levels.tolist() == [[12, -4]]
    # 3 and -5 over 5 leave one bit.
    assert score_grid(exact([[Fraction(3, 5), -1]]), 4).levels.tolist() == [[6, -10]]


def test_scores_outside_the_deciding_range_are_its_ends() -> None:
    scores = np.array([[100.0, 0.5, -7.0, -1.0]])
    found = score_grid(scores, 48, Range(-1.0, 1.0))
    assert found.values(found.levels).tolist() == [[1.0, 0.5, -1.0, -1.0]]
    assert found.is_exact is False


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        # Cutoffs 1 and 2 of the one row, 0 and 1 of the other: 128 more to both sides.
        ([[-1e6, 0, 1, 2, 50], [-1e6, 0, 0, 1, 1]], Range(-128.0, 130.0)),
        # The second and third largest, 2 and 1; 64 more to both sides.
        ([[-63, 0, 1, 2, 66]], None),
        ([[-64, 0, 1, 2, 66]], Range(-63.0, 66.0)),
        ([[-63, 0, 1, 2, 67]], Range(-63.0, 66.0)),
        ([[0, 0, 1, 2, 50]], None),
        # Cutoffs that are all alike tell no size.
        ([[-9e9, 0, 1, 1, 1]], None),
    ],
)
def test_the_deciding_range_is_64_times_that_of_the_cutoffs(
    scores: list[list[float]], found: Range | None
) -> None:
    assert deciding_range(np.array(scores, dtype=np.float64), 2) == found


def test_integers_and_the_choice_of_every_expert_have_no_deciding_range() -> None:
    scores = np.array([[-(10**6), 0, 1], [0, 1, 2]])
    assert deciding_range(scores.astype(np.float64), 1) is not None
    assert deciding_range(scores, 1) is None
    assert deciding_range(scores.astype(np.float64), 3) is None


def test_the_cutoffs_of_evenly_spaced_tokens_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_SAMPLED_TOKENS", 2)
    scores = np.array([[-1e6, 0, 1], [0, 5, 90], [0, 1, 2], [0, 5, 90]])
    assert deciding_range(scores, 1) == Range(-128.0, 130.0)


def test_blocks_cover_the_tokens_and_hold_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_BLOCK_ENTRIES", 8)
    assert list(token_blocks(5, 4)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(token_blocks(2, 9)) == [slice(0, 1), slice(1, 2)]


@pytest.mark.parametrize("top_k", [1, 3, 6])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    scores = np.random.default_rng(6).random((24, 6))
    whole = certified_optimum(scores, top_k)
    monkeypatch.setattr(grid, "_BLOCK_ENTRIES", 12)
    cut = certified_optimum(scores, top_k)
    assert cut.proof == whole.proof == "strict margins"
    np.testing.assert_array_equal(cut.assignment, whole.assignment)
    np.testing.assert_array_equal(cut.token_multipliers, whole.token_multipliers)
    np.testing.assert_array_equal(cut.expert_multipliers, whole.expert_multipliers)
