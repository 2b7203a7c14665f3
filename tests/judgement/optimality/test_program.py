"""What the properties of the linear program judge by, against vertices found one by one.

Legend: M tokens, N routed experts; q = M top_k / N = a/g in lowest terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lp_oracle
from properties.errors import ViolationError
from properties.judgement.optimality.exchange import (
    in_parts,
    is_optimal,
    optimum_by_exchange,
    require_feasible,
)
from properties.judgement.optimality.optimum import best_of_all, exact_dual, value_of
from properties.judgement.optimality.program import best_in_parts, require_vertex
from properties.strategies.score_classes import PATTERNS, REALS, drawn_scores, tied_scores

Array = NDArray[Any]

SHAPES = [(1, 2, 1), (1, 4, 3), (2, 2, 1), (2, 3, 1), (2, 3, 2), (3, 2, 1), (2, 4, 1), (2, 4, 3)]
SHAPES += [(4, 2, 1), (3, 3, 1), (3, 3, 2), (2, 3, 3)]

EDGE = tuple[int, int]


def vertices(m: int, n: int, top_k: int) -> Iterator[dict[EDGE, Fraction]]:
    """Every feasible x whose entries strictly between 0 and 1 are fixed by the sums.

    A vertex is a point that no two others have in the middle, so moving its free entries must break
    a sum: they are the only solution of the sums, which leaf after leaf then determines.
    """
    edges = list(itertools.product(range(m), range(n)))
    for choice in itertools.product((0, 1, None), repeat=m * n):
        x = {
            edge: Fraction(value)
            for edge, value in zip(edges, choice, strict=True)
            if value is not None
        }
        left = {("token", i): Fraction(top_k) for i in range(m)}
        left |= {("expert", j): Fraction(m * top_k, n) for j in range(n)}
        for (i, j), value in x.items():
            left["token", i] -= value
            left["expert", j] -= value
        if solve(left, {edge for edge in edges if edge not in x}, x):
            yield x


def solve(left: dict[Any, Fraction], free: set[EDGE], x: dict[EDGE, Fraction]) -> bool:
    """Take leaves off until none is left; whether that ends with nothing free and all sums met."""
    while free:
        touching = {
            vertex: [e for e in free if e[vertex[0] == "expert"] == vertex[1]] for vertex in left
        }
        leaf = next((v for v, touched in touching.items() if len(touched) == 1), None)
        if leaf is None:
            return False
        (i, j), value = touching[leaf][0], left[leaf]
        if not 0 < value < 1:
            return False
        x[i, j] = value
        left["token", i] -= value
        left["expert", j] -= value
        free.discard((i, j))
    return not any(left.values())


def scores_of(m: int, n: int) -> Iterator[Array]:
    rng = np.random.default_rng([m, n])
    yield from (tied_scores(pattern, rng, (m, n)) for pattern in PATTERNS)
    yield from (drawn_scores(kind, rng, (m, n)) for kind in REALS)


@pytest.mark.parametrize(("m", "n", "top_k"), SHAPES)
def test_every_vertex_has_entries_in_parts_of_1_over_g(m: int, n: int, top_k: int) -> None:
    parts = Fraction(m * top_k, n).denominator
    found = list(vertices(m, n, top_k))
    assert found
    assert all((value * parts).denominator == 1 for x in found for value in x.values())
    for s_MN in scores_of(m, n):
        values = [
            sum(Fraction(s_MN[edge].item()) * share for edge, share in x.items()) for x in found
        ]
        assert max(values) == optimum_by_exchange(s_MN, top_k).value
        assert max(values) == best_in_parts(s_MN, top_k)


def test_one_more_constraint_can_leave_halves_only() -> None:
    """2 x 2, k = 1: x_11 = x_22 = t by the sums, and x_11 + x_22 = 1 leaves t = 1/2."""
    for x in vertices(2, 2, 1):
        assert x[0, 0] == x[1, 1]
        assert x[0, 0] + x[1, 1] != 1


def test_exchange_proves_its_own_optimum() -> None:
    for m, n, top_k in [(3, 3, 2), (5, 4, 3), (6, 9, 4), (1, 5, 2), (4, 4, 4)]:
        for s_MN in scores_of(m, n):
            found = optimum_by_exchange(s_MN, top_k)
            require_feasible(found.assignment, top_k, "x")
            multipliers = found.token_multipliers, found.expert_multipliers
            assert exact_dual(s_MN, *multipliers, top_k) == found.value
            assert is_optimal(s_MN, found.assignment, top_k)
            if (m, n, top_k) == (3, 3, 2):
                assert found.value == best_of_all(s_MN, top_k)


def test_what_is_not_optimal_is_told_apart_without_a_tolerance() -> None:
    s_MN = np.array([[1.0, 1.0], [1.0, np.nextafter(1.0, 2.0)]])
    best, other = np.eye(2, dtype=np.int64), 1 - np.eye(2, dtype=np.int64)
    assert is_optimal(s_MN, best, 1)
    assert not is_optimal(s_MN, other, 1)
    assert optimum_by_exchange(s_MN, 1).value - value_of(s_MN, other) == Fraction(1, 2**52)


def test_parts_are_those_of_the_load() -> None:
    x_MN = np.array([[1.0, 0.5000000001, 0.4999999999], [0.3333, 1.0, 0.6667]])
    assert in_parts(x_MN, 2).tolist()[1] == [Fraction(1, 3), 1, Fraction(2, 3)]
    assert in_parts(np.array([[0.9999999, 1e-9]] * 2), 1).tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("x", "what"),
    [
        ([[2, -1], [-1, 2]], "not feasible"),
        ([[1, 1], [0, 0]], "not feasible"),
        ([[1, 0], [1, 0]], "not feasible"),
    ],
)
def test_what_is_not_feasible_is_refused(x: list[list[int]], what: str) -> None:
    with pytest.raises(ViolationError, match=what):
        require_feasible(np.array(x), 1, "x")


@pytest.mark.parametrize(
    ("x", "what"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], "no vertex"),
        ([[1.1, -0.1], [-0.1, 1.1]], "leaves"),
        ([[1.0, 0.0], [1.0, 0.0]], "not feasible"),
        ([[1.0, 0.001], [0.0, 1.0]], "from whole parts"),
    ],
)
def test_what_is_no_vertex_is_refused(x: list[list[float]], what: str) -> None:
    solution = lp_oracle.solve_linprog([[1, 0], [0, 1]], 1)
    assert require_vertex(solution, 1, "s").tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ViolationError, match=what):
        require_vertex(replace(solution, assignment=np.array(x)), 1, "s")
