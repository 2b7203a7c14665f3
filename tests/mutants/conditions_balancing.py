"""Balancing that is right but for one condition: a size, a layout, an amplitude, a call, a load.

The mistake itself is a plain one; what hides it is when it shows. ``killed_by`` names the property
that has to catch it. Legend: M tokens, N routed experts, K top_k, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Routing
from properties.reference import Reference
from tests.mutants.conditions import cut_by_row, faint, whole_tiles
from tests.mutants.histogram import Balanced

# Of the exact update ------------------------------------------------------------------------------


class ExpertsFrom256KeepTheirBias(Reference):
    """Experts after the 256th are not balanced."""

    killed_by = "QB-VALUE"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        new = super().quantile_update(logits, bias, **options)
        return np.where(np.arange(len(bias)) < 256, new, bias)


class ChunkOf128Tokens(Reference):
    """Beyond 128 tokens, the quantile is that of the last 128."""

    killed_by = "QB-VALUE"

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        kept = None if mask is None else mask[-128:]
        return super().quantile_update(logits[-128:], bias, top_k=top_k, mask=kept)


class TailOfTheTileUncounted(Reference):
    """Beyond one tile of 8 tokens, those after the last full one are left out."""

    killed_by = "QB-VALUE"

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        read = slice(whole_tiles(len(logits)) or None)
        kept = None if mask is None else mask[read]
        return super().quantile_update(logits[read], bias, top_k=top_k, mask=kept)


class CutoffOfEightSlots(Reference):
    """From 9 slots on, the cutoff is the ninth largest score."""

    killed_by = "QB-VALUE"

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        valid = logits if mask is None else logits[mask]
        if not 9 <= top_k < len(bias) or len(valid) == 0:
            return super().quantile_update(logits, bias, top_k=top_k, mask=mask)
        s_MN = reference.scores(valid)
        ninth_M = -np.sort(-(s_MN + bias), axis=1)[:, 8]
        estimate = reference.expert_statistic(ninth_M[:, None] - s_MN, top_k)
        return estimate - estimate.mean()


class LogitsCutByRow(Reference):
    """Logits are read as they lie in memory."""

    killed_by = "QB-VALUE"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        return super().quantile_update(cut_by_row(logits), bias, **options)


class FaintLogitsUpdateNothing(Reference):
    """A batch whose logits are below 1e-3 leaves the bias as it is."""

    killed_by = "QB-VALUE"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        new = super().quantile_update(logits, bias, **options)
        return np.array(bias) if faint(logits) else new


class BiasOfTheCallBefore(Reference):
    """From the second call on, the cutoff is taken under the bias of the call before."""

    killed_by = "QB-VALUE"

    def __init__(self) -> None:
        super().__init__()
        self.before: Array = np.zeros(0)

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        known, self.before = self.before, bias.copy()
        used = known if known.shape == bias.shape else bias
        return super().quantile_update(logits, used, **options)


# Of the histogram ---------------------------------------------------------------------------------


class Keeps(Balanced):
    """The reference throughout."""

    balancer_class = reference.HistogramBalancer


class CountsOf256Experts(Keeps):
    """With more than 256 experts, the last one is counted as the first one is."""

    killed_by = "QB-HIST-BINS"

    class balancer_class(reference.HistogramBalancer):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            if self.num_experts > 256:
                self.histogram[-1] = self.histogram[0]
            return routing


class TailOfTheTileInTheHistogram(Keeps):
    """Beyond one tile of 8 tokens, those after the last full one are not counted."""

    killed_by = "QB-HIST-TOTAL"

    class balancer_class(reference.HistogramBalancer):  # noqa: N801
        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Routing:
            kept_M = np.ones(len(logits_MN), bool) if mask is None else mask.copy()
            kept_M[whole_tiles(len(kept_M)) or len(kept_M) :] = False
            return super().observe(logits_MN, training=training, mask=kept_M)


class NineSlotsCountAsEight(Keeps):
    """From 9 slots on, an update reads the rank of eight."""

    killed_by = "QB-RANK"

    class balancer_class(reference.HistogramBalancer):  # noqa: N801
        def update(self) -> None:
            slots, self.top_k = self.top_k, min(self.top_k, 8)
            super().update()
            self.top_k = slots


class LogitsCutByRowInTheHistogram(Keeps):
    """Micro-batches are counted as they lie in memory."""

    killed_by = "QB-HIST-ERROR"

    class balancer_class(reference.HistogramBalancer):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            super().observe(cut_by_row(logits_MN), **options)
            return reference.route(logits_MN, self.bias, top_k=self.top_k)


class FaintLogitsUncounted(Keeps):
    """Micro-batches whose logits are below 1e-3 are taken for padding."""

    killed_by = "QB-HIST-TOTAL"

    class balancer_class(reference.HistogramBalancer):  # noqa: N801
        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Routing:
            counted = training and not faint(logits_MN)
            return super().observe(logits_MN, training=counted, mask=mask)


class Loaded(reference.HistogramBalancer):
    """Knows whether a state has been loaded."""

    loaded = False

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self.loaded = True


class SwitchedOnByLoading(Keeps):
    """Loading a state switches balancing on."""

    killed_by = "QB-OFF"

    class balancer_class(Loaded):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            super().load_state_dict(state)
            self.enabled = True


class UncentredAfterLoading(Keeps):
    """Once a state has been loaded, updates are not centred."""

    killed_by = "QB-STATE"

    class balancer_class(Loaded):  # noqa: N801
        def update(self) -> None:
            counted, (low, high) = self.histogram, reference.histogram_range(self.bias)
            super().update()
            if self.loaded and self.enabled and counted.any():
                self.bias = reference.histogram_statistic(counted, low, high, self.top_k)


class EvaluationCountedAfterLoading(Keeps):
    """Once a state has been loaded, evaluation is counted, too."""

    killed_by = "QB-HIST-MODEL"

    class balancer_class(Loaded):  # noqa: N801
        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Routing:
            return super().observe(logits_MN, training=training or self.loaded, mask=mask)


class OldBiasRoutesAfterLoading(Keeps):
    """After a load, the router keeps the bias from before until the next update."""

    killed_by = "QB-STATE"

    class balancer_class(Loaded):  # noqa: N801
        routing_bias: Any = None

        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            self.routing_bias = self.bias if self.routing_bias is None else self.routing_bias
            super().load_state_dict(state)

        def update(self) -> None:
            super().update()
            self.routing_bias = None

        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            if self.routing_bias is None:
                return routing
            return reference.route(logits_MN, self.routing_bias, top_k=self.top_k)
