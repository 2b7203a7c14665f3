"""Routers that depend on labels, memory or the number of tokens, and wrong limits to groups.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from tests.mutants.routing import Float32Router, Router


class ShortBiasedScores(Float32Router):
    """Biased scores are rounded to multiples of 2^-17, finer than any gap that chance brings."""

    killed_by = "RTR-MARGIN"

    def biased(self, scores: Array, bias: Array) -> Array:
        step = np.float32(2.0**-17)
        return np.round(super().biased(scores, bias) / step) * step


class CutoffOfTheChosen(Router):
    """The cutoff is the worst biased score that was chosen."""

    killed_by = "RTR-MARGIN"

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return super().cutoff(scores, biased, top_k - 1)


class TiesTakeBoth(Router):
    """Where the next expert ties with the last one chosen, its id is written into that slot twice.

    Found by value, the two are one: the slot before is overwritten.
    """

    killed_by = "RTR-MARGIN"

    def select(self, biased: Array, top_k: int) -> Array:
        ids = super().select(biased, top_k)
        if 1 < top_k < biased.shape[1]:
            ordered = -np.sort(-biased, axis=1)
            tie = ordered[:, top_k - 1] == ordered[:, top_k]
            ids[tie, top_k - 2] = ids[tie, top_k - 1]
        return ids


class LastOfAnOddNumber(Router):
    """The last of an odd number of experts is no candidate, if the others suffice."""

    killed_by = "RTR-RELABEL"

    def select(self, biased: Array, top_k: int) -> Array:
        even = biased.shape[1] // 2 * 2
        return super().select(biased[:, : max(even, top_k)], top_k)


class ExpertsFrom512(Router):
    """Only the first 512 experts are candidates, as long as they suffice."""

    killed_by = "RTR-RELABEL"

    def select(self, biased: Array, top_k: int) -> Array:
        return super().select(biased[:, : max(512, top_k)], top_k)


class FavoursTheFirst(Float32Router):
    """An order among equals is made by adding the id, times a step that real gaps lie within."""

    killed_by = "RTR-RELABEL"

    def biased(self, scores: Array, bias: Array) -> Array:
        return super().biased(scores, bias) - np.float32(1e-4) * np.arange(len(bias), dtype="f4")


class LogitsReadOn(Router):
    """Logits are read from their first number on, whatever the strides."""

    killed_by = "RTR-STRIDE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return super().route(packed(logits), bias, top_k=top_k)


class BiasReadOn(Router):
    """The bias is read from its first number on, whatever the stride."""

    killed_by = "RTR-STRIDE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return super().route(logits, packed(bias), top_k=top_k)


def packed(values: Array) -> Array:
    """What a kernel sees that takes the first address and the shape; inside the memory only."""
    if values.size == 0 or any(stride < 0 for stride in values.strides):
        return values
    steps = np.cumprod([values.itemsize, *values.shape[:0:-1]])[::-1]
    return np.lib.stride_tricks.as_strided(values, values.shape, tuple(int(step) for step in steps))


class OneGridOfRows(Router):
    """Rows from 65,535 on, past the blocks of a CUDA grid, stay as they were allocated."""

    killed_by = "RTR-LARGE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        for part in routed:
            if part is not None:
                part[65535:] = 0
        return routed


class LastTileForgotten(Router):
    """Past 512 tokens, rows after the last whole tile of 8 stay as they were allocated."""

    killed_by = "RTR-LARGE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        if len(logits) > 512:
            for part in routed:
                if part is not None:
                    part[len(logits) // 8 * 8 :] = 0
        return routed


class SlotsInSixteenBits(Router):
    """The offset of a slot, token times K, has 16 bits with a sign: later rows repeat the first."""

    killed_by = "RTR-LARGE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        first = -(-(2**15) // top_k)
        if len(logits) > first:
            rows = np.arange(len(logits)) % first
            routed = routed._replace(weights=routed.weights[rows])
        return routed


class OneColumnMore(Router):
    """The K + 1 columns that the cutoff needs are returned, and not the first K."""

    killed_by = "RTR-VALID"
    verdict = "adapter error"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return super().route(logits, bias, top_k=min(top_k + 1, len(bias)))


# Groups --------------------------------------------------------------------------------------


class GroupedRouter(Router):
    """Correct, in the parts that the wrong ones replace one by one."""

    outside = -np.inf

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        scores = self.scores(logits)
        biased = self.biased(scores, bias)
        totals = self.totals(self.split(self.judged(scores, biased), num_groups))
        best = super().select(totals, self.opened(top_groups, num_groups))
        group_of = self.group_of(biased.shape[1], num_groups)
        open_experts = (group_of == best[:, :, None]).any(axis=1)
        ids = self.select(np.where(open_experts, biased, self.outside), top_k)
        return Routing(ids, self.weigh(scores, bias, ids), None)

    def judged(self, scores: Array, biased: Array) -> Array:
        return biased

    def split(self, values: Array, num_groups: int) -> Array:
        return values.reshape(len(values), num_groups, values.shape[1] // num_groups)

    def totals(self, grouped: Array) -> Array:
        return np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)

    def opened(self, top_groups: int, num_groups: int) -> int:
        return top_groups

    def group_of(self, num_experts: int, num_groups: int) -> Array:
        return np.arange(num_experts) // (num_experts // num_groups)


class ClosedGroupsFilledWithZero(GroupedRouter):
    """Experts outside the open groups get 0, which is above every negative biased score."""

    killed_by = "RTR-GROUPS"
    outside = 0.0


class GroupsByTheirBest(GroupedRouter):
    """A group scores its best expert alone."""

    killed_by = "RTR-GROUPS"

    def totals(self, grouped: Array) -> Array:
        return grouped.max(axis=2)


class GroupsByUnbiasedScores(GroupedRouter):
    """Groups are compared without the bias."""

    killed_by = "RTR-GROUPS"

    def judged(self, scores: Array, biased: Array) -> Array:
        return scores


class OneGroupMore(GroupedRouter):
    """One group more than allowed is open."""

    killed_by = "RTR-GROUPS"

    def opened(self, top_groups: int, num_groups: int) -> int:
        return min(top_groups + 1, num_groups)


class EveryGthExpert(GroupedRouter):
    """A group is every G-th expert, in place of consecutive ones."""

    killed_by = "RTR-GROUPS"

    def group_of(self, num_experts: int, num_groups: int) -> Array:
        return np.arange(num_experts) % num_groups


class GroupsWithoutBias(GroupedRouter):
    """The path through groups leaves the bias out."""

    killed_by = "RTR-GROUP1"

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        return super().route_grouped(
            logits,
            np.zeros_like(bias),
            top_k=top_k,
            num_groups=num_groups,
            top_groups=top_groups,
        )


class GroupsOfEight(GroupedRouter):
    """A group holds eight experts at most, and those after them are in none."""

    killed_by = "RTR-GROUP1"

    def group_of(self, num_experts: int, num_groups: int) -> Array:
        size = num_experts // num_groups
        inside = np.arange(num_experts) % size < 8
        return np.where(inside, np.arange(num_experts) // size, -1)
