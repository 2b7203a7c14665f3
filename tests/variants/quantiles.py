"""Right exact updates that are not the reference's: other ranks, domains, signs, masks."""

from __future__ import annotations

import numpy as np

from properties.protocol import Array, Conventions, Precision, Routing


class Exact:
    """Eq. 13 and Eq. 14 in float32, in the parts that variants replace."""

    name, version = "exact update", "1"
    precision = Precision()
    conventions = Conventions()
    topics: tuple[str, ...] = ("balancing",)

    def scores(self, logits: Array) -> Array:
        tail = np.exp(-np.abs(logits))
        return np.where(logits >= 0, np.float32(1), tail) / (1 + tail)

    def domain(self, logits: Array) -> Array:
        """What the bias is added to."""
        return self.scores(logits)

    def biased(self, logits: Array, bias: Array) -> Array:
        return self.domain(logits) + self.conventions.bias_sign * bias

    def cutoff(self, biased: Array, top_k: int) -> Array:
        return -np.partition(-biased, top_k, axis=1)[:, top_k]

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        biased = self.biased(logits, bias)
        ids = np.argsort(-biased, axis=1, kind="stable")[:, :top_k]
        chosen = np.take_along_axis(self.scores(logits), ids, 1)
        weights = chosen / (chosen.sum(axis=1, keepdims=True) + np.float32(1e-20))
        return Routing(ids, weights, self.cutoff(biased, top_k) if top_k < len(bias) else None)

    def statistic(self, r: Array, rank: int) -> Array:
        """Of the columns of r, the statistic between the rank-th smallest and the next."""
        raise NotImplementedError

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        logits = logits if mask is None else logits[mask]
        tokens, experts = logits.shape
        if tokens == 0 or top_k == experts:
            return bias.copy()
        cutoff = self.cutoff(self.biased(logits, bias), top_k)
        estimate = self.statistic(
            cutoff[:, None] - self.domain(logits), -(-tokens * top_k // experts)
        )
        centred = estimate - estimate.mean(dtype=np.float64)
        return (self.conventions.bias_sign * centred).astype(np.float32)


class LowerRank(Exact):
    """The q-th smallest, by partition; of tied experts, the first in order are chosen."""

    freedom = 'expert_rank = "q"; ties = "lowest_index"'
    conventions = Conventions(expert_rank="q", ties="lowest_index")
    topics = ("routing", "balancing")

    def statistic(self, r: Array, rank: int) -> Array:
        return np.partition(r, rank - 1, axis=0)[rank - 1]


class UpperRank(Exact):
    """The (q+1)-th smallest, found from above as the (m - q)-th largest of s - alpha."""

    freedom = 'expert_rank = "q+1"'
    conventions = Conventions(expert_rank="q+1")

    def statistic(self, r: Array, rank: int) -> Array:
        rising = np.sort(-r, axis=0)
        return -rising[max(len(r) - rank - 1, 0)]


class Midpoint(Exact):
    """The mean of both ends."""

    freedom = 'expert_rank = "interior" by a midpoint'
    conventions = Conventions(expert_rank="interior")

    def statistic(self, r: Array, rank: int) -> Array:
        rising = np.sort(r, axis=0)
        low, high = rising[rank - 1], rising[min(rank, len(r) - 1)]
        return low + (high - low) / 2


class ShareOfTheWay(Exact):
    """Each expert reads a point of its own between both ends, the same one in every call."""

    freedom = 'expert_rank = "between", another point for each expert'

    def statistic(self, r: Array, rank: int) -> Array:
        rising = np.sort(r, axis=0)
        low, high = rising[rank - 1], rising[min(rank, len(r) - 1)]
        share = np.linspace(0, 1, r.shape[1], dtype=np.float32)
        return low + np.where(high > low, high - low, 0) * share


class OnLogits(LowerRank):
    """The bias is added to logits, and lives on their scale; weights are those of the scores."""

    freedom = 'score_domain = "logit"'
    conventions = Conventions(score_domain="logit", expert_rank="q")

    def domain(self, logits: Array) -> Array:
        return logits


class SubtractedBias(UpperRank):
    """The bias is subtracted, wherever it is kept, given and returned."""

    freedom = "bias_sign = -1 in the update, too"
    conventions = Conventions(bias_sign=-1, expert_rank="q+1")
    topics = ("routing", "balancing")


class Rejecting(LowerRank):
    """Sequences are packed by the caller, a mask is an error."""

    freedom = 'padding = "rejected"'
    conventions = Conventions(expert_rank="q", padding="rejected")
    topics = ("balancing",)

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        if mask is not None:
            raise ValueError("masks are not supported; leave rows of padding out")
        return super().quantile_update(logits, bias, top_k=top_k)
