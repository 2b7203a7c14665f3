"""Balancers whose last bits, or whose slots, differ from call to call, which they do not declare.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from tests.mutants.balancing import ExactUpdate
from tests.mutants.balancing_state import Keeps, Kept


def in_any_order(rng: np.random.Generator, values: Array) -> Array:
    """The values less their mean, which is added up in the order in which they happen to come."""
    return values - np.cumsum(rng.permutation(values))[-1] / len(values)


class UpdateCentredInAnyOrder(ExactUpdate):
    """The mean of the exact update is added up by atomic additions."""

    killed_by = "QB-REPEAT"
    rng = np.random.default_rng(1)

    def finished(self, bias: Array, estimate: Array) -> Array:
        return in_any_order(self.rng, estimate)


class BiasCentredInAnyOrder(Keeps):
    """The mean of a balancer's update is added up by atomic additions."""

    killed_by = "QB-REPEAT"

    class balancer_class(Kept):  # noqa: N801
        rng = np.random.default_rng(1)

        def write(self, bias_N: Array) -> None:
            super().write(in_any_order(self.rng, bias_N))


class SlotsInAnyOrder(Keeps):
    """``observe`` fills a token's slots from an atomic counter."""

    killed_by = "QB-REPEAT"

    class balancer_class(Kept):  # noqa: N801
        rng = np.random.default_rng(1)

        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            ids_MK, weights_MK, cutoff_M = super().observe(logits_MN, **options)
            order_MK = np.argsort(self.rng.random(ids_MK.shape), axis=1)
            ids_MK, weights_MK = (
                np.take_along_axis(part, order_MK, axis=1) for part in (ids_MK, weights_MK)
            )
            return Routing(ids_MK, weights_MK, cutoff_M)


class TiesToWhoComesFirst(Keeps):
    """Equal biased scores go to whichever block of experts is done first."""

    killed_by = "QB-REPEAT"

    class balancer_class(Kept):  # noqa: N801
        rng = np.random.default_rng(1)

        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            order_N = self.rng.permutation(self.num_experts)
            kept, self.bias = self.bias, self.bias[order_N]
            counted, self.histogram = self.histogram, np.zeros_like(self.histogram)
            ids_MK, weights_MK, cutoff_M = super().observe(logits_MN[:, order_N], **options)
            counted[order_N] += self.histogram
            self.bias, self.histogram = kept, counted
            return Routing(order_N[ids_MK], weights_MK, cutoff_M)
