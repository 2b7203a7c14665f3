"""Augmentation and strict margins on instances small enough to follow by hand.

PAIR: two tokens want expert 0, by 9 and by 5; the middles are alpha = 4 and 2, the margins 5 -4 and
3 -2. Expert 0 has a token too many, expert 1 one too few; the way over token 0 costs 5 + 4, over
token 1 it costs 3 + 2.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lp_oracle import certified_optimum
from lp_oracle.at_scale import augmentation, grid, optimum
from lp_oracle.at_scale.augmentation import LARGEST, Augmentation, OverflowingMultipliersError
from lp_oracle.at_scale.strictness import _distances, make_strict

Array = NDArray[Any]

PAIR = np.array([[9, 0], [5, 0]])


def silent(message: str) -> None:
    del message


def started(levels: Array, top_k: int, parts: int = 1) -> Augmentation:
    return Augmentation(levels, top_k, parts, np.zeros(levels.shape[1], dtype=np.int64))


def test_one_phase_moves_the_token_that_loses_least() -> None:
    solved = started(PAIR, 1)
    assert solved.alpha.tolist() == [4, 2]
    assert (solved.phases, solved.excess.tolist()) == (0, [0, 0, 1, -1])
    assert solved.complete(silent, patient=False)
    assert (solved.phases, solved.excess.tolist()) == (1, [0, 0, 0, 0])
    assert solved.assignment().tolist() == [[True, False], [False, True]]
    assert (solved.alpha.tolist(), solved.beta.tolist()) == ([9, 5], [0, -5])


def test_choosing_near_edges_anew_keeps_what_was_moved() -> None:
    solved = started(PAIR, 1)
    solved.complete(silent, patient=False)
    solved._gather(1)
    assert solved.excess.tolist() == [0, 0, 0, 0]
    assert solved.assignment().tolist() == [[True, False], [False, True]]


def test_nothing_moves_beyond_the_reach() -> None:
    """Past it edges that are not near could change sides."""
    solved = started(PAIR, 1)
    assert not solved._phase(4)
    assert (solved.phases, solved.alpha.tolist()) == (0, [4, 2])
    assert solved._phase(5)
    assert (solved.phases, solved.excess.tolist()) == (1, [0, 0, 0, 0])


@pytest.mark.parametrize("entries", [24, 2**19], ids=["two tokens at a time", "all at once"])
def test_excess_counts_edges_that_are_not_near(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """The last token and the last expert have no near edge."""
    monkeypatch.setattr(grid, "_BLOCK_ENTRIES", entries)
    levels = np.array([[(5 * i + 7 * j) % 31 for j in range(12)] for i in range(6)])
    levels[-1] = 1000 * np.arange(12)[::-1]
    levels[:, -1] = -5000
    solved = started(levels, 2)
    chosen = levels - solved.alpha[:, None] > 0
    assert 5 not in solved.edges.token
    assert 11 not in solved.edges.expert
    assert solved.excess.tolist() == [*(2 - chosen.sum(axis=1)), *(chosen.sum(axis=0) - 1)]


def test_units_that_the_flow_solver_cannot_count_are_refused() -> None:
    levels = np.array([[2, 1, 0], [0, 1, 2]])
    started(levels, 2, 2**29 - 1)
    with pytest.raises(ValueError, match=r"^2 tokens \* 2 experts in parts of 1/536870912 exceed"):
        started(levels, 2, 2**29)


def test_multipliers_end_at_52_bits() -> None:
    started(PAIR, 1).shift(np.array([LARGEST - 5, 0, 0, 0]))
    with pytest.raises(OverflowingMultipliersError, match="need more than 52 bits"):
        started(PAIR, 1).shift(np.array([LARGEST - 4, 0, 0, 0]))
    with pytest.raises(OverflowingMultipliersError, match="need more than 52 bits"):
        started(PAIR, 1).shift(np.array([0, 0, 0, LARGEST]))


# Ten of twenty tokens have to leave expert 0, each at a price of its own: one a phase.
QUEUE = np.array([[gap, 0] for gap in range(1, 21)])


def test_who_is_patient_does_not_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "PATIENCE", 1)
    hasty = started(QUEUE, 1)
    assert not hasty.complete(silent, patient=False)
    assert hasty.excess.any()
    patient = started(QUEUE, 1)
    assert patient.complete(silent, patient=True)
    assert patient.phases == 10
    assert patient.assignment()[:, 0].tolist() == [False] * 10 + [True] * 10


def test_solving_bit_by_bit_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of 5 bits are solved at once, from beta = 0 here."""
    monkeypatch.setattr(augmentation, "PATIENCE", 1)
    monkeypatch.setattr(
        optimum, "starting_multipliers", lambda levels, top_k: np.zeros(2, dtype=np.int64)
    )
    told: list[str] = []
    solved = optimum._scaled(QUEUE, 1, 1, told.append)
    assert told[0] == "leading bits of the scores, 0 left out"
    assert not solved.excess.any()
    found = certified_optimum(QUEUE, 1)
    assert (found.proof, found.objective) == ("strict margins", sum(range(11, 21)))


def test_phases_are_counted() -> None:
    assert certified_optimum([[3, 1], [1, 3]], 1).phases == 0


def test_a_single_token_beside_many_experts_is_solved() -> None:
    """q = 1/6: every expert takes a sixth, whatever the scores."""
    found = certified_optimum(np.arange(6.0)[None], 1)
    np.testing.assert_allclose(found.assignment, np.full((1, 6), 1 / 6), rtol=1e-15)
    assert found.certified


def test_distances_follow_the_arcs_into_every_vertex() -> None:
    tails, heads = np.array([0, 1]), np.array([1, 2])
    found = _distances(tails, heads, np.array([-3, 1]), 3)
    assert found is not None
    assert found.tolist() == [0, -3, -2]
    assert found.dtype == np.int64
    assert _distances(np.array([1, 0]), np.array([0, 1]), np.array([-1, 0]), 2) is None


WIDE = np.array([[2**40, 0], [0, 2**40]])


@pytest.mark.parametrize(("reach", "margin"), [(2**30 + 1, 2**30), (2**30, 2**25)])
def test_margins_stay_within_the_reach(
    monkeypatch: pytest.MonkeyPatch, reach: int, margin: int
) -> None:
    """No distance is needed here: an edge that is not near keeps more than reach - 0."""
    monkeypatch.setattr(Augmentation, "reach", property(lambda self: reach))
    assert make_strict(started(WIDE, 1)) == margin


@pytest.mark.parametrize(
    ("levels", "top_k", "parts"),
    [
        (WIDE, 2, 1),  # nothing to be strict about
        (WIDE * 0, 1, 1),  # a tie
        (np.array([[2**40, 0, 2**39]]), 1, 3),  # q = 1/3
    ],
)
def test_where_no_margin_can_be_strict_nothing_is_shifted(
    levels: Array, top_k: int, parts: int
) -> None:
    solved = started(levels, top_k, parts)
    solved.complete(silent, patient=True)
    alpha, beta = solved.alpha.tolist(), solved.beta.tolist()
    assert make_strict(solved) == 0
    assert (solved.alpha.tolist(), solved.beta.tolist()) == (alpha, beta)
