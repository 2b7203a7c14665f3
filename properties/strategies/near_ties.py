"""Routings with exact loads whose margins straddle what rounding can tell.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from properties.protocol import Array
from properties.strategies.shapes import balanced_shapes, shape_of

__all__ = ["NearTie", "near_tie"]

MOST_EDGES = 64


@dataclass(frozen=True, eq=False)
class NearTie:
    """Scores and a bias whose top-k has exact loads and margins of about ``2 radius``."""

    scores: Array
    bias: Array
    top_k: int
    radius: float


def near_tie(seed: int) -> NearTie:
    """A bias, and scores whose sums with it lie around a centre, at or just beyond the radius.

    Token i takes the K consecutive experts from i K on, cyclically: M K positions in a row, so
    every expert is taken q times. Rows and columns are then shuffled.
    """
    rng = np.random.default_rng([seed, 1])
    m, n, top_k = shape_of(seed, rng, balanced_shapes(MOST_EDGES))
    chosen = np.zeros((m, n), dtype=bool)
    slots = (np.arange(m)[:, None] * top_k + np.arange(top_k)) % n
    np.put_along_axis(chosen, slots, True, axis=1)
    chosen = chosen[rng.permutation(m)][:, rng.permutation(n)]
    radius = rng.choice([0.0, 0.0, 2.0**-30, 2.0**-52, 0.01])
    centre = rng.standard_normal((m, 1)) * rng.choice([1.0, 0.0, 100.0])
    bias = rng.standard_normal(n) * rng.choice([1.0, 0.0, 2.0**-20])
    if rng.random() < 0.5:  # of few bits, so that adding it back rounds nothing
        bias, centre = np.round(8.0 * bias) / 8.0, np.round(8.0 * centre) / 8.0
    steps = rng.integers(0, rng.choice([1, 2, 4, 2**30]), (m, n), endpoint=True)
    margins = radius + steps * np.spacing(np.abs(centre) + radius)
    scores = centre + np.where(chosen, margins, -margins) - bias
    return NearTie(scores, bias, top_k, float(radius))
