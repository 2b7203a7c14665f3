"""Wrong expert parallelism, each mistake in a reference that dispatches over torch.distributed.

``Dispatched`` is right: each rank evaluates its own experts on all tokens, and parts are added up
over ranks. In one process every mutant is right, too. Legend: M tokens, N experts, K top_k, L
latent width, D model width, W ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch.distributed as dist

import reference_numpy as reference
from properties.protocol import Array, ExpertParameters, LayerConfig, LayerParameters, Routing
from reference_numpy.layer import routed_output, routed_sum, shared_outputs
from tests.ranks.pooled import Pooled, mapped


class Dispatched(Pooled):
    """Correct, in the parts that the wrong ones replace one by one.

    Of ``expert_parallel`` consecutive ranks each holds a contiguous part of the experts; what its
    experts add to u and to d_x is summed over the group. Gradients of parameters come from the
    first group.
    """

    name = "mutant"

    def held(self, num_experts: int) -> Array:
        """Which experts (N,) this rank holds: the first N mod E ranks one more than the others."""
        place, ranks = self.rank % self.expert_parallel, self.expert_parallel
        share, more = divmod(num_experts, ranks)
        start = place * share + min(place, more)
        numbers = np.arange(num_experts)
        return (start <= numbers) & (numbers < start + share + (place < more))

    def added(self, part: Array) -> Array:
        """The sum over the ranks that together hold every expert."""
        if self.size == 1:
            return part
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, part)
        start = self.rank // self.expert_parallel * self.expert_parallel
        return np.sum(everyone[start : start + self.expert_parallel], axis=0)

    def own_weights(self, expert_ids: Array, weights: Array, num_experts: int) -> Array:
        """The weights (M, K), 0 for experts of other ranks."""
        return np.where(self.held(num_experts)[expert_ids], weights, 0.0)

    def experts(
        self, x: Array, expert_ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        (x, expert_ids, weights), own = self.gathered(x, expert_ids, weights)
        mine = self.own_weights(expert_ids, weights, len(parameters.gate_proj))
        part = reference.experts(x, expert_ids, mine, parameters, **caps)
        return self.returned(self.added(part), own, expert_ids)

    def returned(self, out: Array, own: slice, expert_ids: Array) -> Array:
        return out[own]

    def experts_vjp(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        cotangent: Array,
        **caps: Any,
    ) -> tuple[Array, Array, ExpertParameters]:
        (x, expert_ids, weights, cotangent), own = self.gathered(x, expert_ids, weights, cotangent)
        held = self.held(len(parameters.gate_proj))
        mine = np.where(held[expert_ids], weights, 0.0)
        d_x, d_weights, d_parameters = reference.experts_vjp(
            x, expert_ids, mine, parameters, cotangent, **caps
        )
        d_weights = np.where(held[expert_ids], d_weights, 0.0)
        kept = self.kept(d_parameters, own, (x, expert_ids, mine, parameters, cotangent), caps)
        return self.added(d_x)[own], self.added(d_weights)[own], kept

    def kept(self, gradients: Any, own: slice, call: Any, caps: Any) -> Any:
        """Gradients of the experts that the rank holds; those of the first group alone count."""
        first = self.rank < self.expert_parallel
        return gradients if first else mapped(np.zeros_like, gradients)


class OffsetsAssumeEqualParts(Dispatched):
    """Each rank holds N / W experts from rank * (N / W) on, rounded down: the last are nobody's."""

    killed_by = "DSP-PARALLEL"

    def held(self, num_experts: int) -> Array:
        share = num_experts // self.expert_parallel
        start = self.rank % self.expert_parallel * share
        numbers = np.arange(num_experts)
        return (start <= numbers) & (numbers < start + share)


class RowsInTheOrderOfExperts(Dispatched):
    """After the combine, rows stay in the order in which tokens were sent to experts."""

    killed_by = "DSP-PARALLEL"

    def returned(self, out: Array, own: slice, expert_ids: Array) -> Array:
        if self.size == 1:
            return out[own]
        return out[own][np.argsort(expert_ids[own][:, 0], kind="stable")]


class OwnExpertsOnly(Dispatched):
    """What other ranks' experts add never comes back."""

    killed_by = "DSP-PARALLEL"

    def added(self, part: Array) -> Array:
        super().added(part)
        return part


class ReplicatedGradientsCountedTwice(Pooled):
    """Every rank returns the gradients of its own tokens, replicated ones once for each replica."""

    name = "mutant"
    killed_by = "DSP-PARALLEL"

    def experts_vjp(self, *call: Any, **caps: Any) -> tuple[Array, Array, ExpertParameters]:
        return reference.experts_vjp(*call, **caps)


class GradientsOfOneRankOnly(Dispatched):
    """Experts learn from the tokens of the rank that holds them, not from those sent to it."""

    killed_by = "DSP-PARALLEL"

    def kept(self, gradients: Any, own: slice, call: Any, caps: Any) -> Any:
        x, expert_ids, weights, parameters, cotangent = call
        local = reference.experts_vjp(
            x[own], expert_ids[own], weights[own], parameters, cotangent[own], **caps
        )
        return super().kept(local[2], own, call, caps)


class GradientsAveraged(Dispatched):
    """Gradients of experts are divided by the number of ranks, as data parallelism does."""

    killed_by = "DSP-PARALLEL"

    def kept(self, gradients: Any, own: slice, call: Any, caps: Any) -> Any:
        return mapped(lambda part: part / self.size, super().kept(gradients, own, call, caps))


class DispatchedWithinReplicas(Dispatched):
    """The experts are divided among the ranks with the same tokens, whatever was asked for."""

    killed_by = "DSP-PARALLEL"

    def added(self, part: Array) -> Array:
        asked, self.expert_parallel = self.expert_parallel, self.tensor_parallel
        total = super().added(part)
        self.expert_parallel = asked
        return total


class LayerInParts(Dispatched):
    """Correct: the sum over ranks, then the norm, then the up projection."""

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        (x,), own = self.gathered(x)
        logits = reference.router_logits(x, parameters.gate_weight)
        bias = parameters.e_score_correction_bias
        routing = reference.route(logits, bias, top_k=config.top_k)
        mine = self.own_weights(routing.expert_ids, routing.weights, len(bias))
        part = routed_sum(x, parameters, Routing(routing.expert_ids, mine), config=config)
        routed = self.normed_sum(part, parameters, config)
        out = routed + shared_outputs(x, parameters, config=config).sum(axis=0)
        return out[own].reshape(shape)

    def normed_sum(self, part: Array, parameters: LayerParameters, config: LayerConfig) -> Array:
        return routed_output(self.added(part), parameters, config=config)


class NormBeforeTheSum(LayerInParts):
    """The latent norm acts on each rank's part of u; the parts are added up afterwards."""

    killed_by = "LAY-PARALLEL"

    def normed_sum(self, part: Array, parameters: LayerParameters, config: LayerConfig) -> Array:
        return self.added(routed_output(part, parameters, config=config))


class MeanOverRanks(LayerInParts):
    """u is averaged over ranks instead of added up; the norm hides it but for small tokens."""

    killed_by = "LAY-PARALLEL"

    def added(self, part: Array) -> Array:
        return super().added(part) / self.expert_parallel


class SharedExpertsOnEveryRank(LayerInParts):
    """Shared experts are evaluated on every rank, and added up along with the routed ones."""

    killed_by = "LAY-PARALLEL"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        shared = parameters.shared_experts
        many = replace(shared, down_proj=shared.down_proj * self.expert_parallel)
        multiplied = replace(parameters, shared_experts=many)
        return super().layer(x, multiplied, config=config, training=training)


class RouterGradientsOfReplicasAddedUp(Pooled):
    """Gradients of what every rank holds whole are those of its tokens, replicas or not."""

    name = "mutant"
    killed_by = "LAY-PARALLEL"

    def layer_vjp(self, *call: Any, **options: Any) -> tuple[Array, LayerParameters]:
        return reference.layer_vjp(*call, **options)


class InputGradientOfOwnExpertsOnly(Pooled):
    """d_x of a rank that is not the first of its replicas lacks the shared experts' part."""

    name = "mutant"
    killed_by = "LAY-PARALLEL"

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        if not self.is_first:
            shared = mapped(np.zeros_like, parameters.shared_experts)
            silent = replace(parameters, shared_experts=shared)
            d_x, _ = reference.layer_vjp(x, silent, cotangent, config=config)
        return d_x, gradients
