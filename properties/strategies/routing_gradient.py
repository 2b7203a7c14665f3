"""Routings with a cotangent of their weights.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import LAYOUTS, laid_out
from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import RoutingInputs, any_inputs, chosen
from properties.strategies.routing_extremes import infinite_inputs
from properties.strategies.routing_margins import margin_inputs
from properties.strategies.routing_sizes import TOKENS, number_of_experts, number_of_slots
from properties.strategies.shapes import SEEDS

__all__ = ["GradientInputs", "PairInputs", "far", "flat", "inputs", "pairs"]

# (M, N, K), smallest first.
SHAPES = (
    (1, 2, 1),
    (1, 2, 2),
    (1, 3, 2),
    (2, 3, 2),
    (3, 3, 3),
    (0, 3, 2),
    (2, 5, 1),
    (4, 7, 3),
    (17, 6, 5),
    (5, 8, 6),
    (9, 16, 9),
    (33, 24, 10),
    (16, 32, 12),
    (65, 128, 6),
    (7, 160, 22),
    (1, 257, 9),
    (3, 257, 24),
    (18, 384, 4),
    (515, 8, 6),
    (5, 896, 16),
    (2051, 8, 3),
)

# More tokens than a block has room for at so many experts.
LARGE = ((135, 896, 4), (270, 512, 2), (519, 256, 4), (67, 896, 16))

# Cases with a stated margin; of the others, those of any size that RTR-RELABEL has; and those of
# many tokens with many experts, where these are drawn.
MARGIN_SHARE, SIZES_SHARE, LARGE_SHARE = 0.25, 0.4, 0.07

# What a loss scale, or a loss that is a mean over a large batch, makes of cotangents.
SIZES = {"small": 1e-4, "large": 1e4, "faint": 1e-9, "huge": 1e8}
PATTERNS = ("normal", "eighths", "one slot", "wide", "some rows", *SIZES)


@dataclass(frozen=True)
class GradientInputs:
    """A routing, and a cotangent (M, K) of its weights."""

    routing: RoutingInputs
    cotangent: Array


@dataclass(frozen=True)
class PairInputs:
    """A routing, and two cotangents by expert (M, N), multiples of 1/8 up to 4."""

    routing: RoutingInputs
    first: Array
    second: Array


def inputs() -> st.SearchStrategy[GradientInputs]:
    """Any class of scores, every class of margin, and any pattern of the cotangent."""

    def seeded(seed: int) -> GradientInputs:
        rng = np.random.default_rng([seed, 3])
        large = rng.random() < LARGE_SHARE
        routing = any_inputs(rng, *chosen(rng, LARGE)) if large else _routing(seed, rng)
        cotangent = _cotangent(rng, (len(routing.logits), routing.top_k))
        return GradientInputs(routing, laid_out(cotangent, chosen(rng, LAYOUTS)))

    return uniform_seeds().map(seeded)


def far() -> st.SearchStrategy[GradientInputs]:
    """Rows of extreme and infinite logits."""

    def seeded(seed: int) -> GradientInputs:
        rng, routing = np.random.default_rng([seed, 4]), infinite_inputs(seed)
        return GradientInputs(routing, _cotangent(rng, (len(routing.logits), routing.top_k)))

    return uniform_seeds().map(seeded)


def flat() -> st.SearchStrategy[GradientInputs]:
    """A cotangent that is the same in all slots of a token, or of all tokens, by strides of 0."""

    def seeded(seed: int) -> GradientInputs:
        rng = np.random.default_rng([seed, 5])
        routing = _routing(seed, rng)
        by_token = _cotangent(rng, (len(routing.logits), 1))
        shape = len(by_token), routing.top_k
        if rng.random() < 0.5:
            return GradientInputs(routing, np.broadcast_to(by_token, shape))
        return GradientInputs(routing, np.broadcast_to(by_token[:1].sum(), shape))

    return uniform_seeds().map(seeded)


def pairs() -> st.SearchStrategy[PairInputs]:
    """Two cotangents that belong to experts, wherever these are in the slots."""

    def seeded(seed: int) -> PairInputs:
        rng = np.random.default_rng([seed, 6])
        routing = _routing(seed, rng)
        first, second = (rng.integers(-32, 33, routing.logits.shape) / 8.0 for _ in range(2))
        return PairInputs(routing, first, second)

    return uniform_seeds().map(seeded)


def _routing(seed: int, rng: np.random.Generator) -> RoutingInputs:
    if rng.random() < MARGIN_SHARE:
        return margin_inputs(seed)
    m, n, top_k = SHAPES[seed * len(SHAPES) // SEEDS]
    if rng.random() < SIZES_SHARE:
        m, n = chosen(rng, TOKENS), number_of_experts(seed, rng)
        top_k = number_of_slots(rng, n)
    return any_inputs(rng, m, n, top_k, digits=chosen(rng, (5, 17)))


def _cotangent(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    pattern = chosen(rng, PATTERNS)
    values: Array = rng.standard_normal(shape)
    if pattern == "eighths":
        values = rng.integers(-32, 33, shape) / 8.0
    elif pattern == "one slot":
        values = np.where(
            np.arange(shape[1]) == rng.integers(shape[1], size=(len(values), 1)), 1.0, 0.0
        )
    elif pattern == "wide":
        values *= 10.0 ** rng.uniform(-4.0, 4.0, shape)
    elif pattern == "some rows":
        values *= rng.integers(0, 2, (shape[0], 1))
    scaled: Array = values * SIZES.get(pattern, 1.0)
    return scaled
