"""Calls of a router, one after the other, with the same sizes and with others.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import RoutingInputs, any_inputs, chosen
from properties.strategies.routing_groups import divided, of_few_levels
from properties.strategies.routing_sizes import (
    LARGE,
    TOKENS,
    number_of_experts,
    number_of_slots,
)
from properties.strategies.shapes import SEEDS

__all__ = ["CallInputs", "in_a_row", "repeated"]

# Of the cases that are repeated, those with many tokens, and those whose scores tie everywhere.
LARGE_SHARE, TIED_SHARE = 0.1, 0.4

# (M, N, K), smallest first.
SHAPES = ((2, 4, 2), (3, 6, 3), (5, 8, 4), (9, 32, 6), (17, 64, 8), (3, 256, 8), (7, 160, 6))


@dataclass(frozen=True)
class CallInputs:
    """A routing, a cotangent (M, K) of its weights, and groups that hold K candidates."""

    routing: RoutingInputs
    cotangent: Array
    num_groups: int
    top_groups: int


def repeated() -> st.SearchStrategy[CallInputs]:
    """Any class of scores and any size, thousands of tokens among them, and ties of all experts."""

    def seeded(seed: int) -> CallInputs:
        rng = np.random.default_rng([seed, 10])
        n = max(4, number_of_experts(seed, rng))
        shape = (chosen(rng, TOKENS), n, number_of_slots(rng, n))
        if rng.random() < LARGE_SHARE:
            shape = LARGE[seed * len(LARGE) // SEEDS]
        return _call(rng, shape, tied=rng.random() < TIED_SHARE)

    return uniform_seeds().map(seeded)


def in_a_row() -> st.SearchStrategy[tuple[CallInputs, CallInputs, CallInputs]]:
    """Two calls of the same sizes and groups, and one of others."""

    def seeded(seed: int) -> tuple[CallInputs, CallInputs, CallInputs]:
        rng = np.random.default_rng([seed, 11])
        place = seed * len(SHAPES) // SEEDS
        first = _call(rng, SHAPES[place])
        second = _call(rng, SHAPES[place], (first.num_groups, first.top_groups))
        return first, second, _call(rng, SHAPES[place - 1])

    return uniform_seeds().map(seeded)


def _call(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    groups: tuple[int, int] | None = None,
    tied: bool = False,
) -> CallInputs:
    m, n, top_k = shape
    routing = of_few_levels(rng, m, n, top_k) if tied else any_inputs(rng, m, n, top_k)
    bias = np.where(np.isfinite(routing.bias), routing.bias, -4.0)
    num_groups, top_groups = groups or divided(rng, n)
    while n // num_groups * top_groups < top_k:
        top_groups += 1
    cotangent = rng.integers(-32, 33, (m, top_k)) / 8.0
    return CallInputs(RoutingInputs(routing.logits, bias, top_k), cotangent, num_groups, top_groups)
