"""Routers whose threads share experts in ways that fit some sizes, or some orders, and no others.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Routing
from properties.reference import Reference


class Selecting(Reference):
    """Correct: routes by a selection of its own, without a rule for ties."""

    name = "mutant"
    conventions = Conventions(expert_rank="interior", histogram_rank="q")

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        scores = reference.scores(logits)
        ids = self.select(scores + bias, top_k)
        right = reference.route(logits, bias, top_k=top_k)
        return Routing(ids, reference.combine_weights(scores, ids), right.cutoff)

    def select(self, biased: Array, top_k: int) -> Array:
        return reference.top_k_ids(biased, top_k)


class QueuesOfNeighbours(Selecting):
    """Each of 32 threads owns neighbouring experts and keeps its best four of them."""

    killed_by = "RTR-RELABEL"

    def thread(self, experts: int) -> Array:
        """The thread (N,) of each expert."""
        return np.arange(experts) // -(-experts // 32)

    def select(self, biased: Array, top_k: int) -> Array:
        experts = biased.shape[1]
        if experts < 64 or top_k > 32 or top_k > experts - 2:
            return super().select(biased, top_k)
        kept, threads = np.full(biased.shape, -np.inf), self.thread(experts)
        for thread in range(32):
            own = np.flatnonzero(threads == thread)
            if len(own):
                best = own[reference.top_k_ids(biased[:, own], min(4, len(own)))]
                np.put_along_axis(kept, best, np.take_along_axis(biased, best, 1), 1)
        return reference.top_k_ids(kept, top_k)


class QueuesOfEvery32nd(QueuesOfNeighbours):
    """The same with every 32nd expert in one thread."""

    killed_by = "RTR-RELABEL"

    def thread(self, experts: int) -> Array:
        return np.arange(experts) % 32


class HalfAWarpLeftOver(Selecting):
    """Experts go by 64; where N leaves a remainder of 32, these are no candidates."""

    killed_by = "RTR-RELABEL"

    def select(self, biased: Array, top_k: int) -> Array:
        experts = biased.shape[1]
        if experts > 32 and experts % 64 == 32 and top_k <= experts - 32:
            biased = biased.copy()
            biased[:, -32:] = -np.inf
        return super().select(biased, top_k)


class FourOfTwoHalves(Selecting):
    """For K = 4, the best three of each half of the experts are found, and of these the four."""

    killed_by = "RTR-RELABEL"

    def select(self, biased: Array, top_k: int) -> Array:
        experts = biased.shape[1]
        if top_k != 4 or experts < 32:
            return super().select(biased, top_k)
        half = experts // 2
        ids = np.concatenate(
            [
                reference.top_k_ids(biased[:, :half], 3),
                half + reference.top_k_ids(biased[:, half:], 3),
            ],
            axis=1,
        )
        best = reference.top_k_ids(np.take_along_axis(biased, ids, 1), 4)
        return np.take_along_axis(ids, best, 1)


class BackwardIdsOf8BitsWithASign(Reference):
    """For up to 256 experts the backward pass keeps ids in int8; 128 and more wrap."""

    name, killed_by = "mutant", "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        experts = len(d_bias)
        if not 128 < experts <= 256:
            return d_logits, d_bias
        wrapped = np.zeros_like(d_logits)
        for expert in range(experts):
            wrapped[:, (expert if expert < 128 else expert - 256) % experts] += d_logits[:, expert]
        return wrapped, d_bias


class BackwardGridOfOneBlock(Reference):
    """From 256 experts on, the backward pass covers the first 16 tokens."""

    name, killed_by = "mutant", "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        if len(d_bias) >= 256:
            d_logits[16:] = 0.0
        return d_logits, d_bias


class GroupsAsWideAsAWarp(Reference):
    """The total of a group of 17 to 31 experts is read from 32, the last ones the next group's."""

    name, killed_by = "mutant", "RTR-GROUPS"

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        size = len(bias) // num_groups
        options: Any = {"top_k": top_k, "num_groups": num_groups, "top_groups": top_groups}
        if not 16 < size < 32:
            return super().route_grouped(logits, bias, **options)
        scores = reference.scores(logits)
        biased = scores + bias
        totals = [
            np.sort(biased[:, start : start + 32], axis=1)[:, -2:].sum(axis=1)
            for start in range(0, len(bias), size)
        ]
        opened = np.zeros((len(logits), num_groups), bool)
        best = reference.top_k_ids(np.stack(totals, axis=1), top_groups)
        np.put_along_axis(opened, best, True, axis=1)
        ids = reference.top_k_ids(np.where(np.repeat(opened, size, 1), biased, -np.inf), top_k)
        return Routing(ids, reference.combine_weights(scores, ids), None)


class GroupedGridOfOneBlock(Reference):
    """From 256 experts on, group-limited routing covers 8 tokens; others get ids 0 to K - 1."""

    name, killed_by = "mutant", "RTR-GROUPS"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        if len(bias) >= 256 and groups["num_groups"] > 1:
            routed.expert_ids[8:] = np.arange(groups["top_k"])
        return routed
