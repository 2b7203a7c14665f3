"""Tokens whose cutoff has a stated margin: clear, inside the radius, or an exact tie.

Every case states its class, and the three are drawn equally often. The cutoff of every token lies
between the same two experts, which have one logit at each token; the biases of all others keep them
out of the way. So the two biased scores differ as two entries of the bias do.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from properties.strategies.arrays import LAYOUTS
from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import MARGINS, Parting, RoutingInputs, chosen
from properties.strategies.shapes import SEEDS

__all__ = ["margin_inputs", "margins"]

# (M, N, K), smallest first; K = 1, K = N - 1, a square, and sizes around those of vector loops.
SHAPES = (
    (1, 2, 1),
    (1, 3, 1),
    (2, 3, 2),
    (2, 5, 3),
    (5, 5, 4),
    (3, 8, 6),
    (17, 6, 5),
    (9, 16, 8),
    (5, 33, 9),
    (33, 24, 10),
    (7, 64, 12),
    (17, 128, 22),
    (15, 257, 24),
    (3, 384, 6),
    (13, 896, 16),
)

# Around 0, above and below it; 34.5 and 100 are where a coarse format has long steps.
LEVELS = (0.0, 0.5, 2.0, 34.5, 100.0, -6.0, -34.5)

# How far the other experts are kept away: no logit or score is as large.
AWAY = 16.0

# Multiples of both radii; the first is next to what may not be decided.
FACTORS = (2.0, 16.0, 1e4)


def margins() -> st.SearchStrategy[RoutingInputs]:
    """Each class of margin equally often; the smallest seeds are the smallest shapes."""
    return uniform_seeds().map(margin_inputs)


def margin_inputs(seed: int) -> RoutingInputs:
    """The inputs of a seed, with their ``parting``."""
    rng = np.random.default_rng(seed)
    m, n, top_k = SHAPES[seed * len(SHAPES) // SEEDS]
    order = rng.permutation(n)
    kept, left = int(order[top_k - 1]), int(order[top_k])
    logits = rng.integers(-32, 33, (m, n)) / 8.0
    logits[:, kept] = logits[:, left] = rng.integers(8, 33, m) / 8.0
    level = chosen(rng, LEVELS)
    bias = np.full(n, level)
    bias[order[: top_k - 1]] += AWAY
    bias[order[top_k + 1 :]] -= AWAY
    parting = Parting(chosen(rng, MARGINS), kept, left, chosen(rng, FACTORS))
    return RoutingInputs(logits, bias, top_k, chosen(rng, LAYOUTS), parting=parting)
