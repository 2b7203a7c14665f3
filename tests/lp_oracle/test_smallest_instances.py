"""That pinned instances are the smallest: by counting where that is proved, else by exhausting.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from math import ceil
from typing import Any

import numpy as np
import pytest

from benchmarks import draw_counterexamples
from benchmarks.batched_descent import (
    best_values,
    descend,
    normal_forms,
    ranks_of,
    shapes_up_to,
    stay_above,
)
from benchmarks.counterexample_search import SEARCHES
from lp_oracle import EXPERT_RULES, INSTANCES, TOKEN_RULES, coordinate_descent
from tests.lp_oracle.drawing import best_value, drawn, integral_shapes

# The least demand of a vertex, and the least excess of its tight edges over it, by rule.
BOUNDS = {"k+1": (0, 1), "q+1": (0, 1), "k": (1, 0), "q": (1, 0)}
PAIRS: list[tuple[Any, Any]] = list(itertools.product(TOKEN_RULES, EXPERT_RULES))
TIES = [name for name in INSTANCES if name.startswith("TIES") and name != "TIES_JAM"]


def test_the_page_is_what_the_generator_writes() -> None:
    assert draw_counterexamples.PAGE.read_text(encoding="utf-8") == draw_counterexamples.page()


@pytest.mark.parametrize(
    "name", ["corners", "fractions", "off minimisers", "alternating", "local means"]
)
def test_the_search_finds_what_is_pinned(name: str) -> None:
    for line, confirmed in SEARCHES[name](False):
        assert confirmed, line


def least_shapes(token_rule: str, expert_rule: str) -> list[tuple[int, int]]:
    """Least shapes (M, N) on which the lemma of OPT-TIES allows a jam."""
    low, high = BOUNDS.get(token_rule, (1, 1))
    low_, high_ = BOUNDS.get(expert_rule, (1, 1))
    sides = range(1, 5)
    allowed = set()
    for a, b, a_, b_ in itertools.product(sides, repeat=4):
        if a * b > high * a + low_ * b and a_ * b_ > low * a_ + high_ * b_:
            allowed.add((a + a_, b + b_))
    smaller = {(m, n) for m, n in allowed if (m - 1, n) in allowed or (m, n - 1) in allowed}
    return sorted(allowed - smaller)


@pytest.mark.parametrize(
    ("token_rule", "expert_rule", "shapes"),
    [
        ("k+1", "q+1", [(3, 3)]),
        ("k", "q", [(3, 3)]),
        ("k+1", "q", [(3, 4), (4, 3)]),
        ("k", "q+1", [(3, 4), (4, 3)]),
        ("k+1", "midpoint", [(4, 4), (5, 3)]),
        ("k", "linear", [(4, 4), (5, 3)]),
        ("midpoint", "q+1", [(3, 5), (4, 4)]),
        ("linear", "q", [(3, 5), (4, 4)]),
        ("midpoint", "linear", [(4, 6), (5, 5), (6, 4)]),
    ],
)
def test_the_counts_allow_a_jam_from_these_shapes_on(
    token_rule: str, expert_rule: str, shapes: list[tuple[int, int]]
) -> None:
    assert least_shapes(token_rule, expert_rule) == shapes


@pytest.mark.parametrize("name", TIES)
def test_ties_are_pinned_on_the_first_of_these_shapes_with_an_integer_load(name: str) -> None:
    """But 4 x 6 and 6 x 4, which a count of positive margins excludes (see OPT-TIES)."""
    instance = INSTANCES[name]
    for pair in instance.pairs:
        least = least_shapes(*pair)
        shapes = [
            (m, n)
            for m, n, _ in shapes_up_to(25, integral=True)
            if any(m >= a and n >= b for a, b in least) and (m, n) not in [(4, 6), (6, 4)]
        ]
        assert instance.scores.shape == shapes[0]


@pytest.mark.parametrize("shape", [(4, 4, 1), (4, 4, 2), (4, 4, 3), (6, 3, 1), (3, 6, 2)])
def test_no_interior_pair_stays_above_on_scores_0_and_1(shape: tuple[int, int, int]) -> None:
    for s_BMN in normal_forms(shape[0], shape[1], 1):
        for pair in PAIRS:
            if pair[0] in ("midpoint", "linear") and pair[1] in ("midpoint", "linear"):
                assert not len(stay_above(s_BMN, shape[2], ranks_of(shape, *pair)))


def test_batches_descend_as_single_instances_do() -> None:
    """The search's float64 descent and optimum against the oracle's, in rationals."""
    for index, (scores, top_k) in enumerate(drawn(4, 48, integral_shapes(4))):
        integers = np.rint(scores * 9).astype(np.int64)
        pair = PAIRS[index % len(PAIRS)]
        ranks = ranks_of((*integers.shape, top_k), *pair)
        assert best_values(integers[None].astype(float), top_k)[0] == best_value(integers, top_k)
        trace = coordinate_descent(
            integers, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=6
        )
        states = descend(integers[None].astype(float), top_k, ranks, trace.rounds)
        for state, dual in zip(states, trace.dual_values, strict=True):
            assert abs(state.dual[0] - float(dual)) < 1e-9


def test_normal_forms_lose_nothing() -> None:
    """Every 2 x 3 instance of level 2 becomes one of them, by what changes no descent."""
    forms = {
        s.tobytes() for level in range(3) for chunk in normal_forms(2, 3, level) for s in chunk
    }
    for entries in itertools.product(range(3), repeat=6):
        s_MN = np.array(entries, dtype=np.float64).reshape(2, 3)
        s_MN -= s_MN.min(axis=1, keepdims=True)
        s_MN = s_MN[:, np.argsort(s_MN.sum(axis=0), kind="stable")]
        s_MN = s_MN[np.lexsort(s_MN.T[::-1])]
        assert s_MN.tobytes() in forms


def test_with_one_token_every_pair_is_optimal_at_once() -> None:
    for n, top_k, pair in itertools.product(range(2, 6), range(1, 5), PAIRS):
        if top_k >= n:
            continue
        scores = np.arange(n)[None] ** 2
        trace = coordinate_descent(scores, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=1)
        assert trace.dual_values[-1] == best_value(scores, top_k)
        assert ceil(trace.problem.load) == 1
