"""Routers whose path for full blocks is wrong, or that have no thread for the last experts.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array, Routing
from properties.reference import Reference
from reference_numpy.routing import combine_weights, scores, top_k_ids


def full(rows: Array, block: int) -> bool:
    return len(rows) > 0 and len(rows) % block == 0


class FullTilesLackABlock(Reference):
    """Of a multiple of 64 tokens and more than 32 experts, the last 64 keep ids 0 to K - 1."""

    killed_by = "RTR-SIZES"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        if not full(logits, 64) or logits.shape[1] <= 32:
            return routed
        ids, weights = routed.expert_ids.copy(), routed.weights.copy()
        ids[-64:], weights[-64:] = np.arange(top_k), 1.0 / top_k
        return routed._replace(expert_ids=ids, weights=weights)


class FullTilesSumHalfAWarp(Reference):
    """Weights of a multiple of 32 tokens are divided by the sum over the first 16 slots."""

    killed_by = "RTR-SIZES"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        if not full(logits, 32):
            return routed
        chosen = np.take_along_axis(scores(logits), routed.expert_ids, axis=1)
        return routed._replace(weights=chosen / (chosen[:, :16].sum(1, keepdims=True) + 1e-20))


class FullTilesPullByTheLastSlot(Reference):
    """The gradient of a multiple of 32 tokens overwrites its sum by the last term."""

    killed_by = "RTR-SIZES"

    def route_vjp(
        self, logits: Array, bias: Array, cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        if not full(logits, 32):
            return super().route_vjp(logits, bias, cotangent, top_k=top_k)
        ids = top_k_ids(scores(logits) + bias, top_k)
        weights = combine_weights(scores(logits), ids)
        slopes = weights * np.take_along_axis(scores(-logits), ids, axis=1)
        d_logits = np.zeros(logits.shape)
        pull = (cotangent * weights)[:, -1:]
        np.put_along_axis(d_logits, ids, slopes * (cotangent - pull), axis=1)
        return d_logits, np.zeros(bias.shape)


class ThreadsForAThousandAndTwentyFour(Reference):
    """One thread to an expert, 1,024 of them: later experts are never chosen."""

    killed_by = "RTR-SIZES"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        seen = np.where(np.arange(len(bias)) < 1024, bias, -np.inf)
        return super().route(logits, seen, top_k=top_k)
