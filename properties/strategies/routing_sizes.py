"""Sizes at which routers change: the widths of warps and ids, and more tokens than one grid holds.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import RoutingInputs, any_inputs, chosen
from properties.strategies.routing_margins import margin_inputs
from properties.strategies.shapes import SEEDS

__all__ = [
    "RelabelledInputs",
    "laid_out_anyhow",
    "large",
    "number_of_experts",
    "number_of_slots",
    "relabelled",
]

# 8 bits end at 255 ids, and 8 bits with a sign at 127. Those between powers of two are padded to
# the next one, or are a whole number of warps, half a one more, or neither.
EXPERTS: tuple[int, ...] = (
    *(2, 3, 5, 8, 17, 32, 48, 64, 80, 96, 127, 128, 129, 144, 160, 192),
    *(254, 255, 256, 257, 320, 384, 512, 896),
)
TOKENS = (1, 2, 3, 9, 17)
TOP_KS = (1, 2, 3, 4, 4, 6, 8, 9, 10, 12, 16, 22, 24)

# So many cases have any number of experts between these, each doubling of it equally often.
BETWEEN, BETWEEN_SHARE = (33, 512), 0.2

# The threads of a warp, each of which may look at every 32nd expert.
LANES = 32

# (M, N, K), the fewest tokens first. More than one block's worth of 64, 128, 256 and 512 at many
# experts, more than 512 else, few a multiple of 8; M K and M N on either side of what 15 and 16
# bits count; and one token more than a grid has rows.
LARGE = (
    (67, 896, 16),
    (131, 896, 4),
    (263, 896, 16),
    (270, 512, 8),
    (513, 8, 6),
    (515, 128, 9),
    (521, 256, 8),
    (520, 32, 10),
    (777, 128, 4),
    (1025, 3, 2),
    (1031, 32, 32),
    (1031, 64, 24),
    (1366, 24, 24),
    (2049, 32, 16),
    (4099, 8, 8),
    (4099, 16, 12),
    (8197, 5, 1),
    (32771, 2, 1),
    (65537, 2, 1),
)

# Cases with a stated margin, among those with relabelled experts.
MARGIN_SHARE = 0.3


@dataclass(frozen=True)
class RelabelledInputs:
    """Inputs, and the relabelling: the expert with the new id j had the id ``order[j]``."""

    routing: RoutingInputs
    order: Array


def relabelled() -> st.SearchStrategy[RelabelledInputs]:
    """Any class of scores, and a permutation of the experts.

    Any, a rotation, the reversal, or one after which the first token's best experts lie side by
    side, or 32 apart.
    """

    def seeded(seed: int) -> RelabelledInputs:
        rng = np.random.default_rng([seed, 1])
        inputs = _of_any_class(seed, rng)
        n = len(inputs.bias)
        ordinary = (rng.permutation(n), np.roll(np.arange(n), 1), np.arange(n)[::-1].copy())
        order = chosen(rng, (*ordinary, *_best_together(inputs)))
        return RelabelledInputs(inputs, order)

    return uniform_seeds().map(seeded)


def _best_together(inputs: RoutingInputs) -> tuple[Array, Array]:
    """Orders with the first token's best experts in the first places, or in every 32nd."""
    logits = np.clip(inputs.logits[:1].sum(axis=0), -700.0, 700.0)
    best_first = np.argsort(-(1.0 / (1.0 + np.exp(-logits)) + inputs.bias), kind="stable")
    places = np.arange(len(best_first))
    apart = best_first.copy()
    apart[np.lexsort((places, places % LANES))] = best_first
    return best_first, apart


def laid_out_anyhow() -> st.SearchStrategy[RoutingInputs]:
    """Any class of scores; whoever takes them lays them out."""
    return uniform_seeds().map(lambda seed: _of_any_class(seed, np.random.default_rng([seed, 2])))


def large() -> st.SearchStrategy[RoutingInputs]:
    """Many tokens."""

    def seeded(seed: int) -> RoutingInputs:
        m, n, top_k = LARGE[seed * len(LARGE) // SEEDS]
        return any_inputs(np.random.default_rng(seed), m, n, top_k)

    return uniform_seeds().map(seeded)


def _of_any_class(seed: int, rng: np.random.Generator) -> RoutingInputs:
    if rng.random() < MARGIN_SHARE:
        return margin_inputs(seed)
    n = number_of_experts(seed, rng)
    digits = 5 if rng.random() < 0.5 else 17
    return any_inputs(rng, chosen(rng, TOKENS), n, number_of_slots(rng, n), digits)


def number_of_experts(seed: int, rng: np.random.Generator) -> int:
    """One of EXPERTS, few for a small seed; now and then any between two of them."""
    if rng.random() < BETWEEN_SHARE:
        return int(np.exp2(rng.uniform(*np.log2(BETWEEN))))
    return EXPERTS[seed * len(EXPERTS) // SEEDS]


def number_of_slots(rng: np.random.Generator, num_experts: int) -> int:
    """One of TOP_KS, or all experts where they are few."""
    usual = chosen(rng, (*TOP_KS, num_experts) if num_experts < 100 else TOP_KS)
    return min(num_experts, usual)
