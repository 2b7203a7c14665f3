"""What the optimality properties draw: every class is drawn, and generic means generic.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lp_oracle import exact
from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find
from properties.strategies.optimality import GenericInstance, Problem
from properties.strategies.score_classes import (
    PATTERNS,
    REALS,
    drawn_scores,
    perturbed,
    tied_scores,
)
from properties.strategies.shapes import (
    SEEDS,
    SHAPES,
    ShapeClasses,
    any_shapes,
    balanced_shapes,
    shape_of,
)
from tests.lp_oracle.drawing import is_generic

Array = NDArray[Any]

OF_GENERIC = ("OPT-FIXED", "OPT-REACH", "OPT-DUALS")
OF_ANY = ("OPT-WEAK", "OPT-STEP", "OPT-DESCENT", "OPT-CERT", "OPT-VERTEX", "OPT-DUALS")
OF_ANY += ("OPT-INVARIANT", "OPT-CROSS")

# How often at least each class of generic scores, and each class of shapes, is drawn.
FEWEST_PER_HUNDRED = 2


@cache
def drawn(property_id: str) -> tuple[dict[str, Any], ...]:
    """The inputs of every case of the gate lane."""
    cases: list[dict[str, Any]] = []
    entry = replace(find(property_id), function=lambda subject, **inputs: cases.append(inputs))
    outcome = judge(entry, subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "passed", outcome.message
    return tuple(cases)


def problems_of(property_id: str, *, generic: bool) -> Iterator[Any]:
    """The instances, or the problems, among the inputs of the gate lane."""
    for case in drawn(property_id):
        for value in case.values():
            for inner in (value, *vars(value).values()):
                if isinstance(inner, GenericInstance if generic else Problem):
                    yield inner


def classes_of(m: int, n: int, top_k: int) -> Iterator[str]:
    if top_k == 1:
        yield "k = 1"
    if top_k == n - 1:
        yield "k = n - 1"
    if m * top_k == n:
        yield "q = 1"
    yield "integer q" if m * top_k % n == 0 else "fractional q"


# What the gate lane draws --------------------------------------------------------------------


@pytest.mark.parametrize("property_id", OF_GENERIC)
def test_every_class_of_generic_scores_is_drawn(property_id: str) -> None:
    instances = list(problems_of(property_id, generic=True))
    kinds = Counter(instance.kind for instance in instances)
    assert set(kinds) == {*PATTERNS, *REALS}
    assert min(kinds.values()) >= FEWEST_PER_HUNDRED * len(instances) // 100


@pytest.mark.parametrize("property_id", OF_ANY)
def test_every_class_of_any_scores_is_drawn(property_id: str) -> None:
    kinds = Counter(problem.kind for problem in problems_of(property_id, generic=False))
    assert set(kinds) - {"readable"} == {*PATTERNS, *REALS}
    assert sum(kinds.values()) == len(drawn(property_id))


@pytest.mark.parametrize(
    ("property_id", "generic"),
    [(name, True) for name in OF_GENERIC] + [(name, False) for name in OF_ANY],
)
def test_every_class_of_shapes_is_drawn(property_id: str, generic: bool) -> None:
    found = Counter(
        name
        for problem in problems_of(property_id, generic=generic)
        for name in classes_of(*problem.scores.shape, problem.top_k)
    )
    expected = {"k = 1", "k = n - 1", "q = 1", "integer q"}
    assert set(found) == (expected if generic else expected | {"fractional q"})
    cases = len(drawn(property_id))
    assert min(found.values()) >= FEWEST_PER_HUNDRED * cases // 100


@pytest.mark.parametrize("property_id", [*OF_GENERIC, *OF_ANY])
def test_hardly_any_case_is_drawn_twice(property_id: str) -> None:
    cases = drawn(property_id)
    written = {repr([list(vars(value).items()) for value in case.values()]) for case in cases}
    assert len(written) >= 0.9 * len(cases)


# Generic means generic -----------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_perturbed_scores_are_generic(pattern: str) -> None:
    rng = np.random.default_rng(1)
    for shape in [(2, 2), (2, 5), (3, 3), (4, 3), (3, 5), (4, 4)]:
        for _ in range(6):
            assert is_generic(perturbed(pattern, rng, shape))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_alone_are_not_generic(pattern: str) -> None:
    rng = np.random.default_rng(2)
    assert not all(is_generic(tied_scores(pattern, rng, (4, 4))) for _ in range(20))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_float64_holds_perturbed_scores_of_the_largest_size(pattern: str) -> None:
    rng = np.random.default_rng(3)
    shape = (2, PATTERNS[pattern].edges // 2)
    for _ in range(20):
        scores = perturbed(pattern, rng, shape)
        assert 0 < scores.min() <= scores.max() <= 2**53
        assert (scores.astype(np.float64).astype(np.int64) == scores).all()
    with pytest.raises(ValueError, match="scores are too many"):
        perturbed(pattern, rng, (3, PATTERNS[pattern].edges // 2))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_perturbation_adds_each_power_of_two_once(pattern: str) -> None:
    scores = perturbed(pattern, np.random.default_rng(4), (3, 4))
    levels = scores >> 12
    assert 0 <= levels.min() <= levels.max() < 2 ** PATTERNS[pattern].bits
    assert sorted((scores - (levels << 12)).ravel()) == [2**e for e in range(12)]


@pytest.mark.parametrize("kind", REALS)
def test_reals_are_generic_on_small_shapes(kind: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        assert is_generic(exact(drawn_scores(kind, rng, (3, 4))))


# Classes are what their names say ------------------------------------------------------------


def each(pattern: str) -> Iterator[Array]:
    rng = np.random.default_rng(6)
    for shape in [(2, 3), (5, 4), (8, 8), (1, 6)]:
        for _ in range(10):
            yield tied_scores(pattern, rng, shape)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_levels_stay_within_their_bits(pattern: str) -> None:
    for scores in each(pattern):
        assert 0 <= scores.min() <= scores.max() < 2 ** PATTERNS[pattern].bits


def equal_rows(scores: Array) -> bool:
    return len(np.unique(scores, axis=0)) < len(scores)


def constant_row(scores: Array) -> bool:
    return bool((scores == scores[:, :1]).all(axis=1).any())


def one_best_expert(scores: Array) -> bool:
    best = scores == scores.max(axis=1, keepdims=True)
    return bool((best.sum(axis=1) == 1).all() and best.all(axis=0).any())


NAMED: dict[str, Callable[[Array], bool]] = {
    "all equal": lambda scores: len(np.unique(scores)) == 1,
    "duplicated tokens": lambda scores: len(scores) == 1 or equal_rows(scores),
    "constant rows": constant_row,
    "constant columns": lambda scores: constant_row(scores.T),
    "one expert wins": one_best_expert,
}


@pytest.mark.parametrize("pattern", NAMED)
def test_patterns_are_what_they_are_called(pattern: str) -> None:
    assert all(NAMED[pattern](scores) for scores in each(pattern))


@pytest.mark.parametrize("pattern", ["close", "within 1e-6"])
def test_close_scores_lie_within_a_millionth_of_each_other(pattern: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        if pattern == "close":
            scores = perturbed(pattern, rng, (4, 6)).ravel()
        else:
            scores = drawn_scores(pattern, rng, (4, 6)).ravel()
        levels = np.unique(np.rint(scores / scores.min()))
        assert len(levels) <= 2
        for level in levels:
            same = scores[np.rint(scores / scores.min()) == level]
            assert float(same.max() - same.min()) <= 1e-6 * float(same.min())


def test_heavy_tails_outweigh_the_rest() -> None:
    rng = np.random.default_rng(8)
    for draw in (
        lambda: tied_scores("heavy tail", rng, (12, 8)),
        lambda: drawn_scores("heavy", rng, (12, 8)),
    ):
        scores = np.sort(draw().ravel())
        assert scores[-10:].sum() > scores[:-20].sum()


def test_one_real_expert_wins() -> None:
    rng = np.random.default_rng(9)
    assert all(one_best_expert(drawn_scores("one wins", rng, (6, 5))) for _ in range(20))


# Shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "classes",
    [balanced_shapes(40), balanced_shapes(576), any_shapes(6, True), any_shapes(8, False)],
)
def test_smaller_seeds_give_smaller_shapes(classes: ShapeClasses) -> None:
    for members in classes.values():
        sizes = [m * n for m, n, _ in members]
        assert sizes == sorted(sizes)
    smallest = {shape_of(0, np.random.default_rng(seed), classes) for seed in range(99)}
    assert smallest == {members[0] for members in classes.values()}
    largest = {shape_of(SEEDS - 1, np.random.default_rng(seed), classes) for seed in range(99)}
    assert largest == {members[-1] for members in classes.values()}


def test_balanced_shapes_have_an_integer_load_and_a_cutoff() -> None:
    for m, n, top_k in SHAPES:
        assert m * top_k % n == 0
        assert 1 <= top_k < n
    for members in balanced_shapes(40).values():
        assert all(m * n <= 40 for m, n, _ in members)
