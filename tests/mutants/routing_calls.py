"""Routers that are right once: their choice, or their memory, is another one the next time.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Routing
from properties.reference import Reference


class Unsteady(Reference):
    """Correct, without a rule for ties, and with a generator for whatever comes first."""

    name = "mutant"
    conventions = Conventions(expert_rank="interior", histogram_rank="q")

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)


class TiesToWhoeverComesFirst(Unsteady):
    """Ties fall to the block that comes first; gradients are those of another call's choice."""

    killed_by = "RTR-REPEAT"
    route_vjp = None  # type: ignore[assignment]

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        order = self.rng.permutation(len(bias))
        routed = super().route(logits[:, order], bias[order], top_k=top_k)
        return routed._replace(expert_ids=order[routed.expert_ids])


class TiesInGroupsToWhoeverComesFirst(Unsteady):
    """The same among the experts of each group."""

    killed_by = "RTR-REPEAT"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        size = len(bias) // groups["num_groups"]
        order = np.arange(len(bias)) // size * size + np.tile(
            self.rng.permutation(size), groups["num_groups"]
        )
        routed = super().route_grouped(logits[:, order], bias[order], **groups)
        return routed._replace(expert_ids=order[routed.expert_ids])


class SlotsByAtomicCounter(Unsteady):
    """The experts of a token are written in the order in which threads find them."""

    killed_by = "RTR-REPEAT"
    route_vjp = None  # type: ignore[assignment]

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        slots = self.rng.permuted(np.tile(np.arange(top_k), (len(logits), 1)), axis=1)
        ids, weights = (
            np.take_along_axis(part, slots, axis=1) for part in (routed.expert_ids, routed.weights)
        )
        return routed._replace(expert_ids=ids, weights=weights)


class GradientSumsByArrival(Unsteady):
    """The sum over the slots is added up in the order of arrival: the last bit changes."""

    killed_by = "RTR-REPEAT"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        ulps = self.rng.integers(-1, 2, (len(d_logits), 1))
        return d_logits * (1.0 + 2.0**-52 * ulps), d_bias


class OneBufferForTwoMethods(Reference):
    """Plain and group-limited routing write the ids of one shape into the same buffer."""

    killed_by = "RTR-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def buffered(self, routed: Routing, before: bool) -> Routing:
        ids = routed.expert_ids
        if before:
            self.buffers[ids.shape] = np.empty_like(ids)
        buffer = self.buffers.setdefault(ids.shape, np.empty_like(ids))
        buffer[...] = ids
        return routed._replace(expert_ids=buffer)

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return self.buffered(super().route(logits, bias, top_k=top_k), True)

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        return self.buffered(super().route_grouped(logits, bias, **groups), False)


class GroupedWeightsInOneBuffer(Reference):
    """Weights of group-limited routing share a buffer for each shape."""

    killed_by = "RTR-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        weights = routed.weights
        buffer = self.buffers.setdefault(weights.shape, np.empty_like(weights))
        buffer[...] = weights
        return routed._replace(weights=buffer)


class Poisonable(Reference):
    """Correct: what it would allocate after a poison is NaN, and 0 else, as in fresh memory."""

    fill = 0.0

    def poison(self) -> None:
        self.fill = np.nan

    def allocated(self, shape: tuple[int, ...]) -> Array:
        memory, self.fill = np.full(shape, self.fill), 0.0
        return memory


class GradientNeverWritten(Poisonable):
    """The gradients of experts that were not chosen are never written."""

    killed_by = "RTR-CALLS"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        written, chosen = self.allocated(d_logits.shape), d_logits != 0.0
        written[chosen] = d_logits[chosen]
        return written, d_bias


class WeightsOfZeroNeverWritten(Poisonable):
    """Weights of 0 are left as they were allocated."""

    killed_by = "RTR-CALLS"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        weights, large = self.allocated(routed.weights.shape), routed.weights != 0.0
        weights[large] = routed.weights[large]
        return routed._replace(weights=weights)


class BiasKeptByAddress(Reference):
    """A copy of the bias is kept for each address, however often it is updated in place."""

    killed_by = "RTR-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[tuple[int, int], Array] = {}

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        place = bias.__array_interface__["data"][0], len(bias)
        return super().route_grouped(logits, self.copies.setdefault(place, bias.copy()), **groups)


class GradientOfTheLatestChoice(Reference):
    """The backward pass reads the ids that the latest forward pass of its shape has kept."""

    killed_by = "RTR-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[tuple[int, ...], Array] = {}

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        self.latest[logits.shape] = routed.expert_ids.copy()
        return routed

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        logits, bias, cotangent = call
        ids = self.latest.get(logits.shape)
        if ids is None or ids.shape[1] != top_k:
            return super().route_vjp(*call, top_k=top_k)
        return reference.weights_vjp(logits, ids, cotangent), np.zeros(bias.shape)


class WeightsInTwoBuffers(Reference):
    """Weights lie in one of two buffers of a shape, taken in turn."""

    killed_by = "RTR-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[tuple[int, ...], Array] = {}
        self.second: dict[tuple[int, ...], Array] = {}

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        self.first, self.second = self.second, self.first
        shape = routed.weights.shape
        buffer = self.first.setdefault(shape, np.empty_like(routed.weights))
        buffer[...] = routed.weights
        return routed._replace(weights=buffer)
