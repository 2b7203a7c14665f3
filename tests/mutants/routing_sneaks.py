"""Routers that are right at ordinary sizes and cotangents, without gaps, and in a single call.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from properties.reference import Reference


class RoutedInOneBuffer(Reference):
    """Weights of one shape share a buffer."""

    killed_by = "RTR-SHIFT"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        buffer = self.buffers.setdefault(routed.weights.shape, np.empty_like(routed.weights))
        buffer[...] = routed.weights
        return routed._replace(weights=buffer)


class GradientsInOneBuffer(Reference):
    """Gradients of one shape share a buffer."""

    killed_by = "RTR-GRAD-LINEAR"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        buffer = self.buffers.setdefault(d_logits.shape, np.empty_like(d_logits))
        buffer[...] = d_logits
        return buffer, d_bias


class NoTokensNoGradient(Reference):
    """The backward pass takes a maximum over tokens, which without tokens is an error."""

    killed_by = "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        call[0].max()
        return super().route_vjp(*call, top_k=top_k)


class GradientsOfTheFirstTokens(Reference):
    """Rows of d_logits after the 1024th are never written."""

    killed_by = "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        d_logits[1024:] = 0.0
        return d_logits, d_bias


class BiasRowAfterRow(Reference):
    """The backward pass reads the bias from its lowest address on, number after number."""

    killed_by = "RTR-GRAD"

    def route_vjp(
        self, logits: Array, bias: Array, cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        forwards = bias[::-1] if bias.strides[0] < 0 else bias
        return super().route_vjp(logits, forwards, cotangent, top_k=top_k)


class SingleTokenWithManyExperts(Reference):
    """A single token over more than 256 experts takes another kernel, whose gradient is double."""

    killed_by = "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        return d_logits * (2.0 if len(d_logits) == 1 and len(d_bias) > 256 else 1.0), d_bias


class FaintCotangentsCut(Reference):
    """Cotangents below 1e-8 are taken for 0."""

    killed_by = "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        logits, bias, cotangent = call
        kept = np.where(np.abs(cotangent) < 1e-8, 0.0, cotangent)
        return super().route_vjp(logits, bias, kept, top_k=top_k)


class HugeCotangentsClipped(Reference):
    """Cotangents beyond 1e6 are clipped."""

    killed_by = "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        logits, bias, cotangent = call
        return super().route_vjp(logits, bias, np.clip(cotangent, -1e6, 1e6), top_k=top_k)


class GroupedRowsAfterTheBlock(Reference):
    """Tokens after the 64th are routed without groups."""

    killed_by = "RTR-GROUPS"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        free = super().route(logits, bias, top_k=groups["top_k"])
        first = np.arange(len(logits))[:, None] < 64
        return routed._replace(
            expert_ids=np.where(first, routed.expert_ids, free.expert_ids),
            weights=np.where(first, routed.weights, free.weights),
        )


class SixteenGroups(Reference):
    """More than sixteen groups are none."""

    killed_by = "RTR-GROUPS"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        if groups["num_groups"] > 16:
            return super().route(logits, bias, top_k=groups["top_k"])
        return super().route_grouped(logits, bias, **groups)


class NoTokensInGroups(Reference):
    """Groups are found by a maximum over all tokens, which without tokens is an error."""

    killed_by = "RTR-GROUPS"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        logits.max()
        return super().route_grouped(logits, bias, **groups)


class GroupsBesideNaN(Reference):
    """Closed groups are masked by a product with a one-hot matrix over tokens."""

    killed_by = "RTR-GROUP-FAR"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        with np.errstate(invalid="ignore"):
            one_hot = np.eye(len(logits)) @ np.where(np.isinf(logits), 0.0, logits)
        return super().route_grouped(np.where(np.isinf(logits), logits, one_hot), bias, **groups)


class InfiniteScoresInGroups(Reference):
    """An infinite logit makes the weights of its token NaN, by s = exp(z) / (1 + exp(z))."""

    killed_by = "RTR-GROUP-FAR"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        infinite = np.isposinf(logits).any(axis=1, keepdims=True)
        return routed._replace(weights=np.where(infinite, np.nan, routed.weights))


class GroupedInOneBuffer(Reference):
    """Ids of one shape share a buffer."""

    killed_by = "RTR-GROUP-FAR"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        ids = routed.expert_ids
        buffer = self.buffers.setdefault(ids.shape, np.empty_like(ids))
        buffer[...] = ids
        return routed._replace(expert_ids=buffer)
