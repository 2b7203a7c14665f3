"""Group-limited routers that are right with usual scores, or with all groups open.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Conventions, Routing
from properties.reference import Reference
from reference_numpy import routing as reference


class Grouped(Reference):
    """Correct: group-limited routing by totals and a mask of its own, without a rule for ties."""

    name = "mutant"
    conventions = Conventions(expert_rank="interior", histogram_rank="q")
    closed = -np.inf

    def totals(self, biased: Array, num_groups: int) -> Array:
        return reference.group_scores(biased, num_groups)

    def opened(self, totals: Array, top_groups: int) -> Array:
        opened = np.zeros(totals.shape, bool)
        np.put_along_axis(opened, reference.top_k_ids(totals, top_groups), True, 1)
        return opened

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        scores = reference.scores(logits)
        biased = scores + bias
        opened = self.opened(self.totals(biased, num_groups), top_groups)
        mine = np.repeat(opened, len(bias) // num_groups, axis=1)
        ids = reference.top_k_ids(np.where(mine, biased, self.closed), top_k)
        return Routing(ids, reference.combine_weights(scores, ids), None)


class ClosedByALargeNumber(Grouped):
    """Experts of closed groups get -1e9, which a lower bias in an open group is below."""

    killed_by = "RTR-GROUPS"
    closed = -1e9


class AllThatReachTheLastGroup(Grouped):
    """Open are all groups that reach the T-th best total: with a tie more than T."""

    killed_by = "RTR-GROUPS"

    def opened(self, totals: Array, top_groups: int) -> Array:
        least = -np.sort(-totals, axis=1)[:, top_groups - 1 : top_groups]
        reached: Array = totals >= least
        return reached


class SecondBestIsLess(Grouped):
    """The second best of a group is the best one less than the best: of equal ones neither."""

    killed_by = "RTR-GROUPS"

    def totals(self, biased: Array, num_groups: int) -> Array:
        groups = biased.reshape(len(biased), num_groups, -1)
        best = groups.max(axis=2, keepdims=True)
        second = np.where(groups == best, -np.inf, groups).max(axis=2)
        totals: Array = best[:, :, 0] + np.where(np.isfinite(second), second, best[:, :, 0])
        return totals


class GroupsOfAWarpAtMost(Grouped):
    """A group is scored by its first 48 experts: a warp, and half a one more."""

    killed_by = "RTR-GROUPS"

    def totals(self, biased: Array, num_groups: int) -> Array:
        groups = biased.reshape(len(biased), num_groups, -1)[:, :, :48]
        return reference.group_scores(groups.reshape(len(biased), -1), num_groups)


class TiesInGroupsToTheLast(Reference):
    """Ties fall to the highest id in groups, and to the lowest, as declared, without them."""

    name, killed_by = "mutant", "RTR-GROUPS"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        found = super().route_grouped(logits[:, ::-1], bias[::-1], **groups)
        return found._replace(expert_ids=len(bias) - 1 - found.expert_ids)


class NoExpertBesideNaN(Grouped):
    """In closed groups NaN is below every total: no candidate is found, and the id is -1."""

    killed_by = "RTR-GROUP-FAR"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        if groups["num_groups"] == groups["top_groups"]:
            return routed
        lost = np.isnan(logits).any(axis=1, keepdims=True)
        return routed._replace(expert_ids=np.where(lost, -1, routed.expert_ids))


class InfiniteScoresInSomeGroups(Grouped):
    """With groups closed, weights come from exp(z) / (1 + exp(z)), NaN at infinite logits."""

    killed_by = "RTR-GROUP-FAR"

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        if groups["num_groups"] == groups["top_groups"]:
            return routed
        infinite = np.isinf(np.take_along_axis(logits, routed.expert_ids, axis=1))
        spoilt = infinite.any(axis=1, keepdims=True)
        return routed._replace(weights=np.where(spoilt, np.nan, routed.weights))
