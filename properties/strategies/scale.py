"""Inputs of the solver at scale: any scores in shapes beyond those that people read.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.optimality import Problem, uniform_seeds
from properties.strategies.score_classes import PATTERNS, REALS, drawn_scores, tied_scores

MOST_TOKENS = 160
MOST_EXPERTS = 24

# The size of the report: tokens of a micro-batch, routed experts, top_k.
REPORT_SHAPE = (8960, 896, 16)
REPORT_SEED = 1

CLASSES = (*PATTERNS, *REALS, "masked", "one direction", "beyond float64")


def large_problems() -> st.SearchStrategy[Problem]:
    """Every class of ties and of reals in up to 160 x 24, for any top_k and any load."""
    return uniform_seeds().map(_large_problem)


def _large_problem(seed: int) -> Problem:
    """The smaller the seed, the fewer tokens: so failures shrink."""
    rng = np.random.default_rng(seed)
    m = 1 + seed * MOST_TOKENS // 2**24
    n = int(rng.integers(1, MOST_EXPERTS + 1))
    kind = CLASSES[rng.integers(len(CLASSES))]
    return Problem(_scores(kind, rng, (m, n)), int(rng.integers(1, n + 1)), kind)


def _scores(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    if kind in PATTERNS:
        return tied_scores(kind, rng, shape)
    if kind in REALS:
        return drawn_scores(kind, rng, shape)
    if kind == "masked":
        return np.where(rng.random(shape) < 0.2, -1e9, rng.random(shape))
    if kind == "beyond float64":
        return 2**60 + rng.integers(0, 2 ** rng.choice([2, 8, 20]), shape)
    # Tokens differ in how strongly they prefer, and agree in what: near-ties everywhere.
    logits = rng.standard_normal((shape[0], 1)) * rng.standard_normal(shape[1])
    return 1.0 / (1.0 + np.exp(-logits))


def report_scores() -> Array:
    """Scores at the size of the report, (8960, 896) float64."""
    return batch_scores(*REPORT_SHAPE[:2], REPORT_SEED)


def batch_scores(m: int, n: int, seed: int) -> Array:
    """Sigmoids (M, N) float64 of normal logits with an offset per expert.

    Computed in place, so that drawing them leaves no higher peak of memory.
    """
    rng = np.random.default_rng(seed)
    scores_MN = rng.standard_normal((m, n))
    scores_MN += rng.standard_normal(n)
    np.negative(scores_MN, out=scores_MN)
    np.exp(scores_MN, out=scores_MN)
    scores_MN += 1.0
    return np.reciprocal(scores_MN, out=scores_MN)
