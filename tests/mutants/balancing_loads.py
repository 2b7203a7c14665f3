"""Balancers that stop where loads are equal, although the bias is not what Eq. 14 asks for.

Within the interval of Eq. 14 the old bias is as good as any: they break the rank they declare.
``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Routing
from reference_numpy.routing import top_k_ids
from tests.mutants.balancing import ExactUpdate
from tests.mutants.balancing_sizes import Selects
from tests.mutants.balancing_state import Keeps, Kept


class BalancedIsDone(ExactUpdate):
    """Where all loads are q, the exact update only centres the old bias."""

    killed_by = "QB-VALUE"
    conventions = Conventions(expert_rank="q")

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        mask = options.get("mask")
        valid = logits if mask is None else logits[mask]
        ids = reference.route(valid, bias, top_k=options["top_k"]).expert_ids
        if ids.size and np.ptp(np.bincount(ids.ravel(), minlength=len(bias))) == 0:
            return bias - bias.mean()
        return super().quantile_update(logits, bias, **options)


class CountsOfEqualLoadsDropped(Keeps):
    """Where all loads since the last update are q, an update only centres the bias."""

    killed_by = "QB-HIST-STEPS"
    conventions = Conventions(histogram_rank="q")

    class balancer_class(Kept):  # noqa: N801
        loads: Any = 0

        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Routing:
            routing = super().observe(logits_MN, training=training, mask=mask)
            if self.counting(training):
                ids = routing.expert_ids if mask is None else routing.expert_ids[mask]
                self.loads = self.loads + np.bincount(ids.ravel(), minlength=self.num_experts)
            return routing

        def update(self) -> None:
            if self.enabled and np.any(self.loads) and np.ptp(self.loads) == 0:
                self.write(self.bias - self.bias.mean())
                self.histogram = np.zeros_like(self.histogram)
            super().update()
            self.loads = 0 if self.enabled else self.loads


class PaddedWithZeroScores(Keeps):
    """Up to 64 experts are padded to a power of two; those beyond N have the biased score 0."""

    killed_by = "QB-OBSERVE"

    class balancer_class(Selects):  # noqa: N801
        def select(self, biased_MN: Array, top_k: int) -> Array:
            n = biased_MN.shape[1]
            width = 1 << (n - 1).bit_length()
            if n > 64 or width == n:
                return top_k_ids(biased_MN, top_k)
            padded_MP = np.pad(biased_MN, ((0, 0), (0, width - n)))
            return np.minimum(top_k_ids(padded_MP, top_k), n - 1)
