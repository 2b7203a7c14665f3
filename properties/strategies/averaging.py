"""Inputs of the properties on drift, averaging and perturbed descent, all decided by one seed.

For drifts scores are integers, which keep the rounds exact: patterns of ties as they are, reals
scaled to a largest entry of 2^20 and rounded. A smaller seed means a smaller shape, so failures
shrink; readable matrices drawn beside them would be most of the cases (``uniform_seeds``).

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.optimality import Problem, uniform_seeds
from properties.strategies.score_classes import PATTERNS, REALS, drawn_scores, tied_scores
from properties.strategies.shapes import any_shapes, balanced_shapes, shape_of

__all__ = ["DriftInputs", "averages", "drifts", "every_problem"]

MOST_EDGES = 80
LARGEST_SIDE = 8
LARGEST = 2**20
SCALES = (0, -14, 7, 100)


@dataclass(frozen=True, eq=False)
class DriftInputs:
    """int64 scores (M, N) with 1 <= K < N, an integer beta (N,) to start from, and their class."""

    scores: Array
    top_k: int
    start: Array
    kind: str


def drifts() -> st.SearchStrategy[DriftInputs]:
    """Any class of scores and starts of their size; a quarter may have a fractional load."""

    def seeded(seed: int) -> DriftInputs:
        rng = np.random.default_rng(seed)
        any_load = rng.random() < 0.25
        shapes = any_shapes(6, with_cutoff=True) if any_load else balanced_shapes(MOST_EDGES)
        m, n, top_k = shape_of(seed, rng, shapes)
        scores, kind = _whole_scores(rng, (m, n))
        size = int(scores.max() - scores.min()) + 1
        start = rng.integers(-size, size, n, endpoint=True) * rng.integers(2)
        return DriftInputs(scores, top_k, start, kind)

    return uniform_seeds().map(seeded)


def averages() -> st.SearchStrategy[DriftInputs]:
    """Any class of scores with an integer load, from beta = 0."""

    def seeded(seed: int) -> DriftInputs:
        rng = np.random.default_rng(seed)
        m, n, top_k = shape_of(seed, rng, balanced_shapes(MOST_EDGES))
        scores, kind = _whole_scores(rng, (m, n))
        return DriftInputs(scores, top_k, np.zeros(n, dtype=np.int64), kind)

    return uniform_seeds().map(seeded)


def every_problem() -> st.SearchStrategy[Problem]:
    """Ties as integers and as scaled floats, and reals of every scale; q of any kind, K = N too."""

    def seeded(seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        m, n, top_k = shape_of(seed, rng, any_shapes(LARGEST_SIDE, with_cutoff=False))
        scale = 2.0 ** rng.choice(SCALES)
        if rng.random() < 0.4:
            kind = _one_of(rng, REALS)
            return Problem(drawn_scores(kind, rng, (m, n)) * scale, top_k, kind)
        kind = _one_of(rng, PATTERNS)
        scores = tied_scores(kind, rng, (m, n)) - rng.integers(2)
        return Problem(scores * scale if rng.random() < 0.3 else scores, top_k, kind)

    return uniform_seeds().map(seeded)


def _whole_scores(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, str]:
    if rng.random() < 0.4:
        kind = _one_of(rng, PATTERNS)
        return tied_scores(kind, rng, shape), kind
    kind = _one_of(rng, REALS)
    reals = drawn_scores(kind, rng, shape)
    reals = reals - reals.min()
    return np.rint(reals * (LARGEST / reals.max())).astype(np.int64), kind


def _one_of(rng: np.random.Generator, classes: Mapping[str, object]) -> str:
    names = tuple(classes)
    return names[rng.integers(len(names))]
