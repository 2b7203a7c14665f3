"""Dual descent of many small instances at once, in float64: what the search for instances needs.

Midpoints of small integers are exact for tens of rounds, linear statistics are not; what is found
here is confirmed by ``lp_oracle`` in rationals.

Legend of shapes: B instances, M tokens, N routed experts, A assignments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lp_oracle import EXPERT_RULES, TOKEN_RULES, AssignmentProblem

Array = NDArray[Any]
Shape = tuple[int, int, int]

CHUNK = 100_000
NOTHING = 1e-9  # below it a difference of duals or margins is rounding


class Ranks(NamedTuple):
    """Descending ranks that a pair of rules reads at one shape, and the target load q."""

    token: Fraction
    expert: Fraction
    load: Fraction


def ranks_of(shape: Shape, token_rule: Any, expert_rule: Any) -> Ranks:
    """The ranks of two rules at (M, N, top_k)."""
    problem = AssignmentProblem(np.zeros(shape[:2]), shape[2])
    token = TOKEN_RULES[token_rule](problem)
    return Ranks(token, EXPERT_RULES[expert_rule](problem), problem.load)


# Instances -----------------------------------------------------------------------------------


def shapes_up_to(entries: int, integral: bool) -> list[Shape]:
    """(M, N, top_k), k < N, with this many entries at most and an integer load or not, in order."""
    sides = [(m, n) for m in range(2, entries + 1) for n in range(2, entries // m + 1)]
    found = [(m, n, k) for m, n in sides for k in range(1, n) if (m * k % n == 0) is integral]
    return sorted(found, key=lambda shape: (shape[0] * shape[1], shape))


def normal_forms(m: int, n: int, level: int) -> Iterator[Array]:
    """All instances with largest score ``level``, chunks of (B, M, N).

    Rows ascend and have a least score of 0, column sums ascend: so the order of tokens and experts
    and constants added to rows are used up. Several may still be the same up to those.
    """
    rows = np.array([r for r in itertools.product(range(level + 1), repeat=n) if min(r) == 0])
    chosen = itertools.combinations_with_replacement(range(len(rows)), m)
    while True:
        flat = itertools.chain.from_iterable(itertools.islice(chosen, CHUNK))
        indices = np.fromiter(flat, dtype=np.int64).reshape(-1, m)
        if not len(indices):
            return
        s_BMN = rows[indices]
        ordered = (np.diff(s_BMN.sum(axis=1), axis=1) >= 0).all(axis=1)
        s_BMN = s_BMN[ordered & (s_BMN.max(axis=(1, 2)) == level)]
        if len(s_BMN):
            yield s_BMN.astype(np.float64)


def size_of(s_MN: Array) -> tuple[int, int, list[list[int]]]:
    """What "smaller" compares at one shape: largest score, sum of scores, rows."""
    return int(s_MN.max()), int(s_MN.sum()), s_MN.astype(int).tolist()


def is_generic(s_MN: Array) -> bool:
    """Whether no alternating cycle of scores cancels."""
    m, n = s_MN.shape
    for length in range(2, min(m, n) + 1):
        for rows in itertools.permutations(range(m), length):
            for columns in itertools.permutations(range(n), length):
                shifted = (*columns[1:], columns[0])
                if s_MN[rows, columns].sum() == s_MN[rows, shifted].sum():
                    return False
    return True


# The optimum ---------------------------------------------------------------------------------


@cache
def assignments(shape: Shape) -> Array:
    """Feasible x in multiples of 1/g, g the denominator of q, (A, M N): all vertices, and more."""
    m, n, top_k = shape
    load = Fraction(m * top_k, n)
    parts = load.denominator
    rows = [r for r in itertools.product(range(parts + 1), repeat=n) if sum(r) == top_k * parts]
    partial: dict[tuple[int, ...], list[tuple[int, ...]]] = {(0,) * n: [()]}
    for _ in range(m):
        longer: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for (sums, starts), row in itertools.product(partial.items(), rows):
            total = tuple(a + b for a, b in zip(sums, row, strict=True))
            if max(total) <= load.numerator:
                longer.setdefault(total, []).extend(start + row for start in starts)
        partial = longer
    return np.array(partial[(load.numerator,) * n], dtype=np.float64) / parts


def best_values(s_BMN: Array, top_k: int) -> Array:
    """LP* of each instance (B,), by enumeration."""
    _, m, n = s_BMN.shape
    x_AE = assignments((m, n, top_k))
    flat = s_BMN.reshape(len(s_BMN), -1)
    pieces = [(flat[i : i + 20_000] @ x_AE.T).max(axis=1) for i in range(0, len(flat), 20_000)]
    return np.concatenate(pieces) if pieces else np.zeros(0)


# The descent ---------------------------------------------------------------------------------


def order_statistics(values: Array, rank: Fraction, axis: int) -> Array:
    """The value at a descending rank along ``axis``; ranks beyond the ends mean the ends."""
    size = values.shape[axis]
    rank = min(max(rank, Fraction(1)), Fraction(size))
    ascending = np.sort(values, axis=axis)
    upper: Array = ascending.take(size - math.floor(rank), axis=axis)
    lower = ascending.take(size - math.ceil(rank), axis=axis)
    between: Array = upper + float(rank - math.floor(rank)) * (lower - upper)
    return between


def token_steps(s_BMN: Array, beta_BN: Array, rank: Fraction) -> Array:
    """alpha (B, M)."""
    return order_statistics(s_BMN - beta_BN[:, None, :], rank, 2)


def expert_steps(s_BMN: Array, alpha_BM: Array, rank: Fraction) -> Array:
    """beta (B, N)."""
    return order_statistics(s_BMN - alpha_BM[:, :, None], rank, 1)


def dual_values(s_BMN: Array, alpha_BM: Array, beta_BN: Array, top_k: int, load: Fraction) -> Array:
    """D of each instance (B,)."""
    hinges = np.maximum(s_BMN - alpha_BM[:, :, None] - beta_BN[:, None, :], 0).sum(axis=(1, 2))
    values: Array = top_k * alpha_BM.sum(axis=1) + float(load) * beta_BN.sum(axis=1) + hinges
    return values


class Rounds(NamedTuple):
    """The state at the beginning of a round: multipliers and D."""

    alpha: Array
    beta: Array
    dual: Array


def descend(s_BMN: Array, top_k: int, ranks: Ranks, rounds: int) -> Iterator[Rounds]:
    """The start beta = 0, and so many rounds."""
    beta_BN = np.zeros((len(s_BMN), s_BMN.shape[2]))
    for taken in range(rounds + 1):
        alpha_BM = token_steps(s_BMN, beta_BN, ranks.token)
        yield Rounds(alpha_BM, beta_BN, dual_values(s_BMN, alpha_BM, beta_BN, top_k, ranks.load))
        if taken < rounds:
            beta_BN = expert_steps(s_BMN, alpha_BM, ranks.expert)


def loads_of(s_BMN: Array, beta_BN: Array, top_k: int) -> tuple[Array, Array]:
    """Loads (B, N) of top-k of s - beta, and whether no token has a tie at its cutoff (B,)."""
    reduced = s_BMN - beta_BN[:, None, :]
    ordered = np.sort(reduced, axis=2)[:, :, ::-1]
    strict = (ordered[:, :, top_k - 1] - ordered[:, :, top_k] > NOTHING).all(axis=1)
    chosen = reduced > ordered[:, :, top_k, None] + NOTHING / 2
    return chosen.sum(axis=1), strict


def stay_above(s_BMN: Array, top_k: int, ranks: Ranks) -> Array:
    """Indices of the instances whose dual is above LP* after 12 rounds, and still after 400.

    Descents that approach LP* geometrically are above it after 12 rounds but not after 400.
    """
    best = best_values(s_BMN, top_k)
    *_, last = descend(s_BMN, top_k, ranks, 12)
    indices = np.flatnonzero(last.dual - best > NOTHING)
    if len(indices):
        *_, last = descend(s_BMN[indices], top_k, ranks, 400)
        indices = indices[last.dual - best[indices] > 1e-6]
    return indices
