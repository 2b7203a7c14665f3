"""Balancers on several ranks that lose, pool or round counts which are pending; all right in one.

``killed_by`` names the property that has to catch it. Legend: N routed experts, B histogram bins,
M tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from properties.protocol import Array
from tests.mutants.ranks_balancing import Wrong
from tests.ranks.pooled import PooledBalancer


class StateIsPooled(Wrong):
    """The state dict holds the counts of all ranks, and each rank loads all of them."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def state_dict(self) -> dict[str, Array]:
            return {"bias": self.bias.copy(), "histogram": self.pooled()}


class StateOfRankZero(Wrong):
    """Ranks other than the first save no counts: the first one writes the checkpoint."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def state_dict(self) -> dict[str, Array]:
            state = super().state_dict()
            if self.world.rank:
                state["histogram"][:] = 0
            return state


class LoadedOnTopOfPendingCounts(Wrong):
    """On several ranks, what is loaded is added to what is pending."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def load_state_dict(self, state: Any) -> None:
            pending = self.histogram
            super().load_state_dict(state)
            if self.world.size > 1:
                self.histogram = self.histogram + pending


class CastOnOtherRanks(Wrong):
    """A cast rounds the counts of ranks other than the first to the 8 bits of bfloat16."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def to(self, dtype: str) -> None:
            if self.world.rank and dtype == "bfloat16":
                self.histogram = self.histogram.astype(bfloat16).astype(np.int64)


class RecomputedOnOtherRanks(Wrong):
    """Under activation checkpointing, ranks other than the first count both passes."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def observe_recomputed(self, logits: Array) -> None:
            self.observe(logits)
            if self.world.rank:
                self.observe(logits)


class DefaultBiasOfTheRank(Wrong):
    """Without a bias, each rank starts from what its memory holds."""

    killed_by = "QB-RANKS-STATE"

    def balancer(self, *, num_experts: int, bias: Array | None = None, **options: Any) -> Any:
        if bias is None:
            bias = np.where(np.arange(num_experts) == 0, 0.1 * self.rank, 0.0)
        return super().balancer(num_experts=num_experts, bias=bias, **options)


class CountsThoughOffFromTheStart(Wrong):
    """Ranks other than the first count though they were made with ``enabled=False``."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def observe(self, logits_MN: Array, *, training: bool = True, **options: Any) -> Any:
            enabled = self.enabled
            self.enabled = enabled or self.world.rank > 0
            routing = super().observe(logits_MN, training=training, **options)
            self.enabled = enabled
            return routing


class SwitchDropsPendingCounts(Wrong):
    """Switching off clears what is pending on ranks other than the first."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def set_enabled(self, flag: bool) -> None:
            if not flag and self.world.rank:
                self.histogram = np.zeros_like(self.histogram)
            super().set_enabled(flag)


class OneReductionForAllLayers(Wrong):
    """Layers of one shape share the buffer of a reduction: the next to update reads the last's."""

    killed_by = "QB-RANKS-STATE"
    last: tuple[PooledBalancer, Array] | None = None

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            world, last = self.world, self.world.last
            world.last = None
            if last and last[0] is not self and last[1].shape == counts.shape:
                return last[1].copy() if world.size > 1 else counts
            total = super().reduced(counts)
            world.last = (self, total.copy())
            return total
