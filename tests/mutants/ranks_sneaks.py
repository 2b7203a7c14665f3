"""Wrong ranks that small batches, or training alone, do not show; in one process all are right.

``killed_by`` names the property that has to catch it. Legend: N routed experts, B histogram bins,
M tokens, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import reference_numpy as reference
from properties.protocol import Array, ExpertParameters, LayerConfig, LayerParameters
from tests.mutants.ranks_balancing import Wrong
from tests.mutants.ranks_parallel import Dispatched, LayerInParts
from tests.ranks.pooled import PooledBalancer


class RoutesWithoutTheBias(Wrong):
    """On several ranks ``observe`` counts right and routes by the plain scores."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Any:
            routing = super().observe(logits_MN, **options)
            if self.world.size == 1:
                return routing
            return reference.route(logits_MN, np.zeros_like(self.bias), top_k=self.top_k)


class CountsTravelInEightBits(Wrong):
    """Counts are reduced as int8, which holds those of small batches."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            if self.world.size == 1:
                return counts
            tensor = torch.from_numpy(counts.astype(np.int8))
            dist.all_reduce(tensor)
            total = np.maximum(tensor.numpy().astype(np.int64), 0)
            total[:, -1] += total.sum(axis=1).max() - total.sum(axis=1)
            return total


class CountsTravelAsFloats(Wrong):
    """Counts are reduced as float32, which 2^24 + 1 tokens do not fit into."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            total = super().reduced(counts.astype(np.float32)).astype(np.int64)
            total[:, -1] += total.sum(axis=1).max() - total.sum(axis=1)
            return total


class EvaluationCountedElsewhere(Wrong):
    """Only rank 0 leaves tokens of an evaluation out."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def observe(self, logits_MN: Array, *, training: bool = True, **options: Any) -> Any:
            counted = training or self.world.rank > 0
            return super().observe(logits_MN, training=counted, **options)


class DisabledRanksUpdate(Wrong):
    """On several ranks the switch stops neither counting nor updating."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def set_enabled(self, flag: bool) -> None:
            super().set_enabled(flag or self.world.size > 1)


class LoadedOnRankZero(Wrong):
    """A state is loaded on rank 0 alone; the others keep what they have."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        def load_state_dict(self, state: Any) -> None:
            if self.world.rank == 0:
                super().load_state_dict(state)


class LaterUpdatesAreLocal(Wrong):
    """From the third update on, each rank reads its own counts."""

    killed_by = "QB-RANKS-STATE"

    class balancer_class(PooledBalancer):  # noqa: N801
        updates = 0

        def update(self) -> None:
            self.updates += 1
            self.reduced_histogram = self.pooled()
            if self.updates < 3 or self.world.size == 1:
                self.histogram = self.reduced_histogram
            reference.HistogramBalancer.update(self)


class RoomFor64Tokens(Dispatched):
    """The buffers of a dispatch hold 64 tokens; what experts make of more is lost."""

    killed_by = "DSP-PARALLEL"

    def added(self, part: Array) -> Array:
        kept = np.array(part)
        if self.size > 1:
            kept[64:] = 0.0
        return super().added(kept)


class RoomFor64TokensInTheLayer(LayerInParts):
    """The same in the layer, whose routed part is then that of shared experts alone."""

    killed_by = "LAY-PARALLEL"

    def normed_sum(self, part: Array, parameters: LayerParameters, config: LayerConfig) -> Array:
        kept = np.array(part)
        if self.size > 1:
            kept[64:] = 0.0
        return super().normed_sum(kept, parameters, config)


class BatchesAreTokens(LayerInParts):
    """A rank with several sequences or one takes their number for that of its tokens."""

    killed_by = "LAY-PARALLEL"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        y = np.array(super().layer(x, parameters, config=config, training=training))
        if self.size > 1 and x.ndim > 2:
            y.reshape(-1, x.shape[-1])[len(x) :] = 0.0
        return y


class BatchOfOneSqueezedOnRanks(LayerInParts):
    """On several ranks a batch of one sequence comes back without its axis."""

    killed_by = "LAY-PARALLEL"
    verdict = "adapter error"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        y = super().layer(x, parameters, config=config, training=training)
        return y[0] if self.size > 1 and y.ndim > 2 and len(y) == 1 else y


class SlotsBeyond256Dropped(Dispatched):
    """A rank's experts take 256 slots of tokens, in the order of the batch, and no more."""

    killed_by = "DSP-PARALLEL"

    def own_weights(self, expert_ids: Array, weights: Array, num_experts: int) -> Array:
        mine = np.array(super().own_weights(expert_ids, weights, num_experts))
        if self.size > 1:
            mine.ravel()[np.flatnonzero(mine)[256:]] = 0.0
        return mine


class IdsTravelInBytes(Dispatched):
    """Ids are sent to other ranks as bytes, which number 256 experts."""

    killed_by = "DSP-PARALLEL"

    def experts(
        self, x: Array, expert_ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        if self.size > 1:
            expert_ids = expert_ids.astype(np.uint8).astype(np.int64)
        return super().experts(x, expert_ids, weights, parameters, **caps)


class HalfAWorldForReplicas(Dispatched):
    """Four ranks with the same tokens in two groups of experts: the last expert is nobody's."""

    killed_by = "DSP-PARALLEL"

    def held(self, num_experts: int) -> Array:
        held = np.array(super().held(num_experts))
        if self.size == self.tensor_parallel == 2 * self.expert_parallel == 4:
            held[-1] = False
        return held


class GradientsOfTheLastExpert(Dispatched):
    """An expert that no token of any rank has chosen gets a gradient: memory was never cleared."""

    killed_by = "DSP-PARALLEL"

    def kept(self, gradients: Any, own: slice, call: Any, caps: Any) -> Any:
        kept: ExpertParameters = super().kept(gradients, own, call, caps)
        idle = np.setdiff1d(np.arange(len(call[3].gate_proj)), call[1])
        if self.rank == 0 and self.size > 1:
            kept.up_proj[idle] = 1e-3
        return kept
