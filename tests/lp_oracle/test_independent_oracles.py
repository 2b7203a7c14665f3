"""Independent oracles agree, exactly, with each other and with ``solve_linprog``.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lp_oracle import INSTANCES, certified_optimum, solve_linprog
from properties.judgement.optimality.exchange import in_parts, optimum_by_exchange
from properties.judgement.optimality.optimum import value_of
from properties.strategies.score_classes import PATTERNS, REALS, drawn_scores, tied_scores
from tests.lp_oracle.oracles import (
    brute_force,
    copied_columns,
    highs,
    load_of,
    min_cost_flow,
    worth,
)

Array = NDArray[Any]

TINY = [(1, 3, 2), (2, 2, 1), (2, 3, 1), (2, 3, 2), (3, 2, 1), (3, 3, 1), (3, 3, 2), (4, 2, 1)]
TINY += [(2, 4, 2), (2, 4, 3), (3, 4, 2), (4, 3, 2), (5, 2, 1), (6, 2, 1), (3, 3, 3)]
INTEGRAL = [(12, 6, 2), (20, 8, 2), (30, 12, 4), (8, 8, 1), (9, 12, 4), (24, 4, 3), (7, 7, 3)]
FRACTIONAL = [(11, 6, 2), (7, 12, 5), (13, 9, 4), (10, 4, 1), (5, 7, 6), (1, 5, 2)]
MINIMUM_1 = [(4, 4, 1), (12, 3, 1), (30, 6, 1), (3, 6, 2), (2, 8, 4), (5, 20, 4), (40, 8, 1)]


def scores(shape: tuple[int, int], seed: int) -> Iterator[tuple[str, Array]]:
    """Every class of ties, and every class of reals on a grid of 2^-20 of the largest."""
    rng = np.random.default_rng(seed)
    for pattern in PATTERNS:
        yield pattern, tied_scores(pattern, rng, shape) - 1
    for kind in REALS:
        reals = drawn_scores(kind, rng, shape)
        yield kind, np.rint(reals / reals.max() * 2**20).astype(np.int64)


def by_exchange(scores_MN: Array, top_k: int) -> Fraction:
    return optimum_by_exchange(scores_MN, top_k).value


@pytest.mark.parametrize(("m", "n", "top_k"), TINY)
def test_brute_force(m: int, n: int, top_k: int) -> None:
    for kind, s_MN in scores((m, n), 1):
        expected = worth(s_MN, top_k, brute_force(s_MN, top_k))
        assert by_exchange(s_MN, top_k) == expected, kind
        assert worth(s_MN, top_k, highs(s_MN, top_k, "highs-ds")) == expected, kind


@pytest.mark.parametrize("method", ["highs-ds", "highs-ipm"])
@pytest.mark.parametrize(("m", "n", "top_k"), INTEGRAL + FRACTIONAL)
def test_dual_simplex_and_interior_point(m: int, n: int, top_k: int, method: str) -> None:
    for kind, s_MN in scores((m, n), 2):
        expected = by_exchange(s_MN, top_k)
        ours = in_parts(solve_linprog(s_MN, top_k, method=method).assignment, top_k)  # type: ignore[arg-type]
        if kind != "close" and kind != "within 1e-6":
            assert worth(s_MN, top_k, highs(s_MN, top_k, method)) == expected, kind
            assert value_of(s_MN, ours) == expected, kind
        # HiGHS stops 1e-7 of the largest score away, which tells such scores apart no more.
        assert value_of(s_MN, ours) <= expected, kind


@pytest.mark.parametrize(("m", "n", "top_k"), TINY + INTEGRAL + FRACTIONAL)
def test_min_cost_flow(m: int, n: int, top_k: int) -> None:
    for kind, s_MN in scores((m, n), 3):
        flow = worth(s_MN, top_k, min_cost_flow(s_MN, top_k))
        assert flow == by_exchange(s_MN, top_k), kind


@pytest.mark.parametrize(("m", "n", "top_k"), TINY + INTEGRAL + FRACTIONAL)
def test_optimum_at_scale(m: int, n: int, top_k: int) -> None:
    for kind, s_MN in scores((m, n), 5):
        found = certified_optimum(s_MN, top_k)
        assert found.gap == 0, kind
        assert value_of(s_MN, in_parts(found.assignment, top_k)) == by_exchange(s_MN, top_k), kind


@pytest.mark.parametrize(("m", "n", "top_k"), [(160, 32, 4), (90, 50, 7), (224, 28, 4)])
def test_min_cost_flow_of_larger_batches(m: int, n: int, top_k: int) -> None:
    s_MN = np.random.default_rng([m, n]).integers(0, 2**20, (m, n))
    ours = in_parts(solve_linprog(s_MN, top_k).assignment, top_k)
    at_scale = in_parts(certified_optimum(s_MN, top_k).assignment, top_k)
    assert value_of(s_MN, at_scale) == value_of(s_MN, ours)
    assert worth(s_MN, top_k, min_cost_flow(s_MN, top_k)) == value_of(s_MN, ours)


@pytest.mark.parametrize(("m", "n", "top_k"), MINIMUM_1)
def test_copied_columns_where_a_pair_has_one_copy(m: int, n: int, top_k: int) -> None:
    assert min(top_k, load_of(np.zeros((m, n)), top_k)) == 1
    for kind, s_MN in scores((m, n), 4):
        assert worth(s_MN, top_k, copied_columns(s_MN, top_k)) == by_exchange(s_MN, top_k), kind


@pytest.mark.parametrize(("m", "n", "top_k"), [(3, 3, 2), (4, 4, 3), (6, 4, 2), (12, 6, 2)])
def test_copied_columns_reuse_an_edge_elsewhere(m: int, n: int, top_k: int) -> None:
    """Scores of a single 1: worth 1, but its copies are worth min(k, q)."""
    s_MN = np.zeros((m, n), dtype=np.int64)
    s_MN[0, 0] = 1
    counts_MN = copied_columns(s_MN, top_k)
    assert counts_MN[0, 0] == min(top_k, load_of(s_MN, top_k)) > 1
    with pytest.raises(AssertionError):
        worth(s_MN, top_k, counts_MN)
    assert by_exchange(s_MN, top_k) == worth(s_MN, top_k, min_cost_flow(s_MN, top_k)) == 1


@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_pinned_optima(name: str) -> None:
    instance = INSTANCES[name]
    s_MN, top_k = instance.scores, instance.top_k
    assert by_exchange(s_MN, top_k) == instance.optimum
    assert worth(s_MN, top_k, highs(s_MN, top_k, "highs-ipm")) == instance.optimum
    assert worth(s_MN, top_k, min_cost_flow(s_MN, top_k)) == instance.optimum
