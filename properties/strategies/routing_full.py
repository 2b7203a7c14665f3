"""Routings whose tokens fill blocks exactly, and of more experts than a block has threads.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import RoutingInputs
from properties.strategies.routing_calls import CallInputs

__all__ = ["SIZES", "at_sizes"]

# (M, N, K): tokens by 32, 64, 128 and 256, one fewer and one more, with few experts and with many,
# few slots and more than half a warp's; and 1024 experts, which fill a block, and more.
SIZES = (
    *((32, 8, 2), (32, 64, 17), (31, 64, 8), (33, 128, 20), (48, 40, 6)),
    *((64, 33, 4), (64, 64, 24), (63, 48, 18), (65, 64, 6), (96, 40, 18), (64, 8, 3)),
    *((128, 64, 8), (128, 32, 20), (127, 36, 4), (129, 40, 3), (192, 34, 5)),
    *((256, 36, 18), (256, 64, 2), (512, 34, 4), (1024, 8, 3), (1024, 40, 2), (2048, 4, 2)),
    *((2, 1024, 8), (32, 1024, 4), (3, 1100, 22), (5, 1023, 3), (33, 1025, 2)),
)

# Spreads of logits and of the bias.
SPREADS = ((1.0, 0.1), (4.0, 0.5), (0.3, 2.0))


def at_sizes() -> st.SearchStrategy[tuple[CallInputs, ...]]:
    """One call of each size, with a cotangent and with groups that hold K candidates."""

    def seeded(seed: int) -> tuple[CallInputs, ...]:
        rng = np.random.default_rng([seed, 12])
        return tuple(_call(rng, *size) for size in SIZES)

    return uniform_seeds().map(seeded)


def _call(rng: np.random.Generator, tokens: int, experts: int, top_k: int) -> CallInputs:
    of_logits, of_bias = SPREADS[int(rng.integers(len(SPREADS)))]
    logits = of_logits * rng.standard_normal((tokens, experts))
    bias = of_bias * rng.standard_normal(experts)
    # The best are last, where a block that is too small for all experts does not look.
    order = np.argsort(bias)
    routing = RoutingInputs(logits, bias[order], top_k)
    num_groups = next(groups for groups in (4, 2, 1) if experts % (2 * groups) == 0 or groups == 1)
    top_groups = -(-top_k // (experts // num_groups))
    cotangent = rng.integers(-32, 33, (tokens, top_k)) / 8.0
    return CallInputs(routing, cotangent, num_groups, top_groups)
