"""Near edges and where multipliers start, by numbers worked out by hand.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import numpy as np
import pytest

from lp_oracle.at_scale import grid, near_edges
from lp_oracle.at_scale.near_edges import NearEdges, gather_near_edges, middle_multipliers
from lp_oracle.at_scale.sampled_descent import (
    _middle_of_experts,
    _samples,
    starting_multipliers,
)

ALPHA = np.array([10, 20])
BETA = np.array([1, 2, 3, 4])
MARGINS = np.array([[1, -2, 3, -4], [9, 7, -6, -5]])
LEVELS = MARGINS + ALPHA[:, None] + BETA


def near(alpha: list[int], beta: list[int], within: int) -> NearEdges:
    none = np.zeros(0, dtype=np.int64)
    return NearEdges(none, none, within, none, none, np.array(alpha), np.array(beta))


@pytest.mark.parametrize(
    ("alpha", "beta", "reach"),
    [
        ([10, 20], [5, -5], 100),
        # A margin falls by as much as both rise, 3 + 2; it rises by as much as both fall, 1 + 2.
        ([13, 19], [7, -7], 95),
        ([7, 21], [3, -3], 95),
        ([11, 20], [5, -5], 99),
    ],
)
def test_reach_is_what_drift_leaves_of_the_width(
    alpha: list[int], beta: list[int], reach: int
) -> None:
    assert near([10, 20], [5, -5], 100).reach(np.array(alpha), np.array(beta)) == reach


@pytest.mark.parametrize("entries", [4, 2**19], ids=["a token at a time", "all at once"])
def test_near_edges_are_those_of_the_least_margins(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """Sizes 1 2 3 4 5 6 7 9: two per token, four, leave the fifth as the width."""
    monkeypatch.setattr(grid, "_BLOCK_ENTRIES", entries)
    found = gather_near_edges(LEVELS, ALPHA, BETA, 2)
    assert found.within == 5
    assert found.token.tolist() == [0, 0, 0, 0, 1]
    assert found.expert.tolist() == [0, 1, 2, 3, 3]
    assert found.row_sums.tolist() == [0, 2]
    assert found.column_sums.tolist() == [1, 1, 0, 0]
    assert found.column_sums.dtype == np.int64
    assert found.margins(LEVELS, ALPHA, BETA).tolist() == [1, -2, 3, -4, -5]
    assert found.positions_of(np.array([1, 0]), np.array([3, 2])).tolist() == [4, 2]


def test_the_width_is_judged_by_evenly_spaced_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_edges, "_SAMPLED_TOKENS", 1)
    assert gather_near_edges(LEVELS, ALPHA, BETA, 2).within == 3
    assert gather_near_edges(LEVELS[:1], ALPHA[:1], BETA, 1).within == 2
    assert len(gather_near_edges(LEVELS, ALPHA, BETA, 4).token) == 8


@pytest.mark.parametrize("entries", [3, 2**19], ids=["a token at a time", "all at once"])
def test_tokens_start_in_the_middle(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """s - beta is 8 -2 1 and -5 -2 -10: between 8 and 1, -2 and -5; below -2 and -10."""
    monkeypatch.setattr(grid, "_BLOCK_ENTRIES", entries)
    levels = np.array([[9, 0, 4], [-4, 0, -7]])
    beta = np.array([1, 2, 3])
    assert middle_multipliers(levels, beta, 1).tolist() == [4, -4]
    assert middle_multipliers(levels, beta, 2).tolist() == [-1, -8]
    assert middle_multipliers(levels, beta, 3).tolist() == [-3, -11]


def test_experts_start_in_the_middle_and_centred() -> None:
    """s - alpha is 15 12, -4 -9 and 5 2 with q = 1: middles 13, -7 and 3; their mean is 3."""
    levels = np.array([[19, 14, 0], [0, -7, -60], [9, 4, -60]])
    alpha = np.array([4, 2, 50])
    assert _middle_of_experts(levels, alpha, 1).tolist() == [10, -10, 0]


def test_experts_of_a_fractional_load_start_at_its_ceiling() -> None:
    """q = 3/2: the second largest of each, 5 and 1, is the only minimiser; their mean is 3."""
    levels = np.array([[9, 5, 0], [2, 1, 0]])
    assert _middle_of_experts(levels, np.zeros(3, dtype=np.int64), 1).tolist() == [2, -2]


def test_samples_are_nested_and_large_enough_to_have_a_quantile() -> None:
    """256 tokens, k = 2 of 8: a 64th has 8 choices, a 16th 32, of which each expert gets 4."""
    levels = np.arange(256 * 8).reshape(256, 8)
    first, second = list(_samples(levels, 2)), list(_samples(levels, 2))
    assert [len(sample) for sample in first] == [16, 64]
    rows = [sample[:, 0].tolist() for sample in first]
    assert all(row == sorted(row) for row in rows)
    assert set(rows[0]) < set(rows[1])
    assert rows == [sample[:, 0].tolist() for sample in second]
    assert [len(sample) for sample in _samples(levels[:, :4], 2)] == [16, 64]
    assert [len(sample) for sample in _samples(levels[:, :3], 3)] == [4, 16, 64]


def test_start_is_zero_only_where_every_expert_is_chosen() -> None:
    levels = np.array([[9, 0], [5, 0]])
    every = starting_multipliers(levels, 2)
    assert every.tolist() == [0, 0]
    assert every.dtype == np.int64
    # alpha 4 and 2, margins 5 3 and -4 -2, middles 4 and -3; from then on 3.5 apart.
    assert np.diff(starting_multipliers(levels, 1)).item() == -7
