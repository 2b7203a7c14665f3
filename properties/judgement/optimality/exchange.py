"""The optimum without rounding and without a solver: exchange as long as an exchange gains.

For q = a/g in lowest terms, x is kept as whole parts of 1/g. Moving a part of token i from expert j
to expert l gains s_il - s_ij and keeps its row; moves around a cycle of experts keep every column
too. x is optimal if and only if no cycle gains (Klein 1967, for all flows): the difference to a
better x would consist of such cycles. And if none gains, the lengths of the longest paths between
experts are optimal multipliers beta, so the result carries its own proof.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from properties.errors import ViolationError
from properties.judgement.optimality.optimum import exact_dual, on_one_grid, value_of, written
from properties.protocol import Array

__all__ = ["ExactOptimum", "in_parts", "is_optimal", "optimum_by_exchange", "require_feasible"]


@dataclass(frozen=True, eq=False)
class ExactOptimum:
    """LP* as a ``Fraction``, and why it is that: x attains it, and so does D at alpha, beta.

    ``assignment`` (M, N) holds multiples of 1/g, ints where g = 1; alpha (M,) and beta (N,) are
    ``Fraction`` objects.
    """

    scores: Array
    top_k: int
    assignment: Array
    token_multipliers: Array
    expert_multipliers: Array

    @property
    def value(self) -> Fraction:
        """LP*."""
        return value_of(self.scores, self.assignment)


def optimum_by_exchange(scores_MN: Array, top_k: int) -> ExactOptimum:
    """Start from an assignment that ignores the scores, and exchange.

    Raises ViolationError if D at the multipliers is not the value of the assignment, which would
    refute strong duality.
    """
    (s_MN,), unit = on_one_grid(scores_MN)
    parts = _parts(scores_MN, top_k)
    counts_MN = _in_turn(scores_MN.shape, top_k * parts)
    while True:
        cycle, beta = _longest_paths(s_MN, counts_MN, parts)
        if cycle is None:
            break
        _exchange(counts_MN, cycle, parts)
    beta_N = _fractions(beta, unit)
    alpha_M = _fractions(
        [
            min(s_MN[i, j] - beta[j] for j in np.flatnonzero(counts).tolist())
            for i, counts in enumerate(counts_MN)
        ],
        unit,
    )
    found = ExactOptimum(scores_MN, top_k, _shares(counts_MN, parts), alpha_M, beta_N)
    dual = exact_dual(scores_MN, alpha_M, beta_N, top_k)
    if dual != found.value:
        raise ViolationError(
            f"no exchange gains at {found.value}, but D = {dual}: {written(scores_MN, top_k)}"
        )
    return found


def is_optimal(scores_MN: Array, assignment_MN: Array, top_k: int) -> bool:
    """Whether no exchange gains from x (M, N), which must be feasible, in whole parts of 1/g."""
    (s_MN,), _ = on_one_grid(scores_MN)
    parts = _parts(scores_MN, top_k)
    counts_MN = np.array(assignment_MN * parts, dtype=np.int64)
    return _longest_paths(s_MN, counts_MN, parts)[0] is None


def in_parts(assignment_MN: Array, top_k: int) -> Array:
    """A solver's x (M, N), rounded to whole parts of 1/g: ints where g = 1, else ``Fraction``."""
    parts = _parts(assignment_MN, top_k)
    counts_MN = np.rint(assignment_MN * parts).astype(np.int64)
    return _shares(counts_MN, parts)


def require_feasible(assignment_MN: Array, top_k: int, what: str) -> None:
    """Require rows of k, columns of q and entries in [0, 1], without rounding."""
    m, n = assignment_MN.shape
    load = Fraction(m * top_k, n)
    inside = ((assignment_MN >= 0) & (assignment_MN <= 1)).all()
    rows = (assignment_MN.sum(axis=1) == top_k).all()
    if not (inside and rows and (assignment_MN.sum(axis=0) == load).all()):
        raise ViolationError(
            f"{what} is not feasible for k = {top_k}, q = {load}: x = "
            f"{[[str(share) for share in row] for row in assignment_MN.tolist()]}"
        )


def _parts(scores_MN: Array, top_k: int) -> int:
    """g, the denominator of q."""
    m, n = scores_MN.shape
    return Fraction(m * top_k, n).denominator


def _shares(counts_MN: Array, parts: int) -> Array:
    shares_MN: Array = counts_MN if parts == 1 else counts_MN * Fraction(1, parts)
    return shares_MN


def _in_turn(shape: tuple[int, ...], per_token: int) -> Array:
    """Parts dealt to the experts in turn: per token at most g each, and a to each in the end."""
    m, n = shape
    turns = np.arange(m * per_token)
    counts_MN = np.zeros((m, n), dtype=np.int64)
    np.add.at(counts_MN, (turns // per_token, turns % n), 1)
    return counts_MN


def _longest_paths(
    s_MN: Array, counts_MN: Array, parts: int
) -> tuple[list[tuple[int, int, int]] | None, list[int]]:
    """A cycle of moves (token, from, to) that gains, or None and the longest path to each expert.

    Bellman and Ford from all experts at once: without a cycle that gains, N rounds suffice.
    """
    moves = _best_moves(s_MN.tolist(), counts_MN.tolist(), parts)
    length = [0] * s_MN.shape[1]
    reached_by: dict[int, tuple[int, int, int]] = {}
    for _ in range(len(length) + 1):
        last = -1
        for (start, end), (gain, token) in moves.items():
            if length[start] + gain > length[end]:
                length[end] = length[start] + gain
                reached_by[end] = token, start, end
                last = end
        if last < 0:
            return None, length
    return _cycle_before(last, reached_by), length


def _best_moves(
    scores: list[list[int]], counts: list[list[int]], parts: int
) -> dict[tuple[int, int], tuple[int, int]]:
    """For each two experts the largest gain of moving a part, and the token that has it."""
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for token, (values, held) in enumerate(zip(scores, counts, strict=True)):
        givers = [j for j, count in enumerate(held) if count > 0]
        takers = [j for j, count in enumerate(held) if count < parts]
        for j in givers:
            for other in takers:
                gain = values[other] - values[j]
                if other != j and ((j, other) not in best or gain > best[j, other][0]):
                    best[j, other] = gain, token
    return best


def _cycle_before(
    expert: int, reached_by: dict[int, tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Go back until an expert repeats; the moves since then are a cycle."""
    seen: list[int] = []
    while expert not in seen:
        seen.append(expert)
        expert = reached_by[expert][1]
    return [reached_by[visited] for visited in seen[seen.index(expert) :]]


def _exchange(counts_MN: Array, cycle: list[tuple[int, int, int]], parts: int) -> None:
    """Move as many parts around the cycle as there is room for."""
    moved_MN = np.zeros_like(counts_MN)
    for token, start, end in cycle:
        moved_MN[token, start] -= 1
        moved_MN[token, end] += 1
    # The cycle visits an expert once, so that no entry changes by more than one part.
    room_MN = np.where(moved_MN > 0, parts - counts_MN, counts_MN)
    counts_MN += moved_MN * room_MN[moved_MN != 0].min()


def _fractions(values: list[int], unit: int) -> Array:
    out = np.empty(len(values), dtype=object)
    out[:] = [Fraction(value, unit) for value in values]
    return out
