"""Instances for these tests, and their optimum by enumeration.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lp_oracle import AssignmentProblem, exact

Array = NDArray[Any]


def integral_shapes(largest: int, smallest: int = 2) -> list[tuple[int, int, int]]:
    """Every (m, n, k) with sides in smallest..largest, k < n and an integer load m k / n."""
    sides = range(smallest, largest + 1)
    return [(m, n, k) for m in sides for n in sides for k in range(1, n) if m * k % n == 0]


def drawn(seed: int, count: int, shapes: list[tuple[int, int, int]]) -> Iterator[tuple[Array, int]]:
    """``count`` matrices of uniform scores, which are generic with probability one, and top_k."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        m, n, top_k = shapes[rng.integers(len(shapes))]
        yield rng.random((m, n)), top_k


def best_value(scores: Array, top_k: int) -> Fraction:
    """The exact optimum, row by row over all column sums that the rows so far can have.

    Row and column sums are multiples of 1/g, g the denominator of q, and the constraint matrix is
    totally unimodular: some optimal x has entries in {0, 1/g, ..., 1}.
    """
    problem = AssignmentProblem(scores, top_k)
    parts = problem.load.denominator
    full = int(problem.load * parts)
    rows = list(_compositions(problem.n, top_k * parts, parts))
    best: dict[tuple[int, ...], Any] = {(0,) * problem.n: Fraction(0)}
    for scores_N in exact(scores):
        reached: dict[tuple[int, ...], Any] = {}
        for (sums, value), row in itertools.product(best.items(), rows):
            new = tuple(a + b for a, b in zip(sums, row, strict=True))
            if max(new) <= full:
                gain = value + sum(s * x for s, x in zip(scores_N, row, strict=True))
                reached[new] = max(reached.get(new, gain), gain)
        best = reached
    return Fraction(best[(full,) * problem.n]) / parts


def _compositions(length: int, total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All tuples of this length and total with entries in 0..largest."""
    if length == 1:
        if total <= largest:
            yield (total,)
        return
    for first in range(min(total, largest) + 1):
        for rest in _compositions(length - 1, total - first, largest):
            yield (first, *rest)


def is_generic(scores: Array) -> bool:
    """Whether no simple alternating cycle of entries sums to zero."""
    m, n = scores.shape
    for length in range(2, min(m, n) + 1):
        for rows in itertools.permutations(range(m), length):
            for columns in itertools.permutations(range(n), length):
                shifted = (*columns[1:], columns[0])
                if scores[rows, columns].sum() == scores[rows, shifted].sum():
                    return False
    return True
