"""Experts in groups: the best groups first, then the best experts in them.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import RoutingInputs, any_inputs, chosen
from properties.strategies.shapes import SEEDS

__all__ = ["GroupedInputs", "grouped"]

# (M, N, G, T), smallest first; DeepSeek-V3's 256 experts in 8 groups, of which 4, among them.
SHAPES = (
    (1, 4, 2, 1),
    (2, 6, 2, 1),
    (1, 6, 3, 2),
    (0, 8, 4, 2),
    (3, 10, 5, 2),
    (4, 8, 4, 2),
    (5, 12, 3, 1),
    (17, 12, 2, 2),
    (9, 32, 8, 3),
    (33, 24, 4, 2),
    (7, 160, 8, 5),
    (9, 64, 32, 5),
    (19, 256, 8, 4),
    (131, 16, 4, 2),
    (3, 384, 16, 4),
    (3, 896, 7, 3),
)
TOP_KS = (1, 2, 3, 6, 8, 9, 10, 12, 16, 22, 24)


@dataclass(frozen=True)
class GroupedInputs:
    """Inputs, and how many groups there are and may be chosen from."""

    routing: RoutingInputs
    num_groups: int
    top_groups: int


def grouped() -> st.SearchStrategy[GroupedInputs]:
    """Any class of scores with a finite bias; K up to all experts of the T groups."""

    def seeded(seed: int) -> GroupedInputs:
        rng = np.random.default_rng([seed, 7])
        m, n, groups, top_groups = SHAPES[seed * len(SHAPES) // SEEDS]
        candidates = n // groups * top_groups
        top_k = min(chosen(rng, (*TOP_KS, candidates)), candidates)
        inputs = any_inputs(rng, m, n, top_k, digits=chosen(rng, (5, 17)))
        bias = np.where(np.isfinite(inputs.bias), inputs.bias, -4.0)
        routing = RoutingInputs(inputs.logits, bias, top_k, inputs.layout)
        return GroupedInputs(routing, groups, top_groups)

    return uniform_seeds().map(seeded)
