"""Wrong balancers that one instance, small batches, or casts to bfloat16 alone do not show.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts,
B histogram bins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Routing
from reference_numpy.balancing import histogram_statistic
from reference_numpy.routing import scores
from tests.mutants.balancing import ExactUpdate
from tests.mutants.balancing_state import Keeps, Kept


class SwitchMovesTheBias(Keeps):
    """``set_enabled`` rebinds the bias to a copy of it."""

    killed_by = "QB-OFF"

    class balancer_class(Kept):  # noqa: N801
        def set_enabled(self, flag: bool) -> None:
            super().set_enabled(flag)
            self.bias = self.bias.copy()


class RecomputationMovesTheBias(Keeps):
    """Under activation checkpointing, the bias is saved and put back as a copy."""

    killed_by = "QB-REPLAY"

    class balancer_class(Kept):  # noqa: N801
        def observe_recomputed(self, logits_MN: Array) -> None:
            super().observe_recomputed(logits_MN)
            self.bias = self.bias.copy()


class CastRoundsToFloat16(Keeps):
    """A cast of the module to float16 takes the bias with it; one to bfloat16 does not."""

    killed_by = "QB-HIST-MODEL"

    class balancer_class(Kept):  # noqa: N801
        def to(self, dtype: str) -> None:
            if dtype == "float16":
                self.write(self.bias.astype(np.float16).astype(np.float64))


class TopKOfTheClass(Keeps):
    """The number of experts per token is the class's: all layers have that of the last one."""

    killed_by = "QB-APART"

    class balancer_class(Kept):  # noqa: N801
        last = 1

        def __init__(self, num_experts: int, top_k: int, *options: Any) -> None:
            super().__init__(num_experts, top_k, *options)
            type(self).last = top_k

        def update(self) -> None:
            if self.enabled and self.histogram.any():
                top_k = min(self.last, self.num_experts)
                estimate_N = histogram_statistic(self.histogram, *self.range(), top_k)
                self.write(estimate_N - estimate_N.mean())
                self.histogram = np.zeros_like(self.histogram)


class SwitchOfTheClass(Keeps):
    """Switching one layer off switches all of them."""

    killed_by = "QB-APART"

    class balancer_class(Kept):  # noqa: N801
        on = True

        def __init__(self, num_experts: int, top_k: int, *options: Any) -> None:
            super().__init__(num_experts, top_k, *options)
            self.set_enabled(self.enabled)

        def set_enabled(self, flag: bool) -> None:
            type(self).on = flag

        def counting(self, training: bool) -> bool:
            return training and self.on

        def update(self) -> None:
            self.enabled = self.on
            super().update()


class DefaultBiasOfAll(Keeps):
    """All balancers that are given no bias start from one array of zeros, and write into it."""

    killed_by = "QB-APART"

    class balancer_class(Kept):  # noqa: N801
        defaults: dict[int, Array] = {}  # noqa: RUF012

        def __init__(
            self, num_experts: int, top_k: int, num_bins: int, bias: Any, enabled: bool
        ) -> None:
            super().__init__(num_experts, top_k, num_bins, bias, enabled)
            if bias is None:
                self.bias = self.defaults.setdefault(num_experts, self.bias)
                self.bias[:] = 0.0


class CutoffsOfTheFirstBlock(Keeps):
    """Tokens beyond 8,192 are measured from the cutoffs of the first 8,192."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Kept):  # noqa: N801
        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Routing:
            routing = reference.route(logits_MN, self.bias, top_k=self.top_k)
            if self.counting(training) and routing.cutoff is not None:
                blocked_M = routing.cutoff[np.arange(len(logits_MN)) % 8192]
                r_MN = np.clip(blocked_M[:, None] - scores(logits_MN), *self.range())
                self.add(r_MN if mask is None else r_MN[mask])
            return routing


class MaskOfTheFirstBlock(Keeps):
    """The mask is looked at in the first 4,096 rows."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Kept):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return r_MN[mask | (np.arange(len(mask)) >= 4096)]


class PlainBeyondTheFirstBlock(Keeps):
    """Tokens beyond 8,192 are routed by their plain scores."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            later = logits_MN[8192:]
            if len(later):
                plain = reference.route(later, np.zeros_like(self.bias), top_k=self.top_k)
                routing.expert_ids[8192:] = plain.expert_ids
                routing.weights[8192:] = plain.weights
            return routing


class RoomFor100MicroBatches(Keeps):
    """There is room for a hundred micro-batches; later ones are not counted."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Kept):  # noqa: N801
        seen = 0

        def add(self, r_MN: Array) -> None:
            self.seen += 1
            if self.seen <= 100:
                super().add(r_MN)

        def update(self) -> None:
            super().update()
            self.seen = 0


class RecomputedInTwoBlocks(Keeps):
    """Under activation checkpointing, tokens beyond the first 64 are counted in both passes."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Kept):  # noqa: N801
        def observe_recomputed(self, logits_MN: Array) -> None:
            self.observe(logits_MN)
            self.observe(logits_MN[64:])


class OnlyTheFirst8192(ExactUpdate):
    """The exact update sorts 8,192 tokens and no more."""

    killed_by = "QB-VALUE"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        mask = options.pop("mask", None)
        valid = logits if mask is None else logits[mask]
        return super().quantile_update(valid[:8192], bias, **options)


class AtLeastTwoOfManyExperts(ExactUpdate):
    """With more than eight experts, k = 1 is taken for k = 2."""

    killed_by = "QB-VALUE"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        if len(bias) > 8:
            options["top_k"] = max(options["top_k"], 2)
        return super().quantile_update(logits, bias, **options)
