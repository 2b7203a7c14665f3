"""Wrong exact updates, each by the smallest change from the reference in float64.

``killed_by`` names the property that has to catch it. Most declare no rank, as most public code
does; the ones that declare one break that promise. Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions
from properties.reference import Reference
from reference_numpy.routing import cutoff, scores


def ceil_in_float32(tokens: int, top_k: int, num_experts: int) -> int:
    """ceil(m (k/n)) with every number rounded to float32."""
    return int(np.ceil(np.float32(tokens) * np.float32(top_k / num_experts)))


class ExactUpdate(Reference):
    """Correct: the q-th smallest r, in the parts that the wrong ones replace one by one."""

    name = "mutant"
    conventions = Conventions()

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        logits = logits if mask is None else self.valid(logits, mask)
        if top_k == bias.shape[0] or not logits.shape[0]:
            return self.unchanged(bias)
        s_MN = scores(logits)
        r_MN = self.required(s_MN, self.cutoff(s_MN, self.routing_bias(bias), top_k))
        return self.finished(bias, self.statistic(r_MN, top_k))

    def valid(self, logits: Array, mask: Array) -> Array:
        return logits[mask]

    def unchanged(self, bias: Array) -> Array:
        return bias.copy()

    def routing_bias(self, bias: Array) -> Array:
        return bias

    def cutoff(self, s_MN: Array, bias: Array, top_k: int) -> Array:
        return cutoff(s_MN + bias, top_k)

    def required(self, s_MN: Array, alpha_M: Array) -> Array:
        return alpha_M[:, None] - s_MN

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        rank = self.rank(r_MN.shape[0], top_k, r_MN.shape[1])
        return np.sort(r_MN, axis=0)[min(max(rank, 1), len(r_MN)) - 1]

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return reference.target_rank(tokens, top_k, num_experts)

    def finished(self, bias: Array, estimate: Array) -> Array:
        return estimate - estimate.mean()


class DirectionFlipped(ExactUpdate):
    """Overloaded experts are made more attractive."""

    killed_by = "QB-VALUE"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return estimate.mean() - estimate


class CutoffIsKth(ExactUpdate):
    """alpha is the k-th largest biased score, the last that is chosen."""

    killed_by = "QB-VALUE"

    def cutoff(self, s_MN: Array, bias: Array, top_k: int) -> Array:
        return -np.sort(-s_MN - bias, axis=1)[:, top_k - 1]


class CutoffWithoutBias(ExactUpdate):
    """alpha is taken from the raw scores."""

    killed_by = "QB-VALUE"

    def cutoff(self, s_MN: Array, bias: Array, top_k: int) -> Array:
        return cutoff(s_MN, top_k)


class SignOfAlpha(ExactUpdate):
    """r = -alpha - s."""

    killed_by = "QB-VALUE"

    def required(self, s_MN: Array, alpha_M: Array) -> Array:
        return -alpha_M[:, None] - s_MN


class QuantileOfScores(ExactUpdate):
    """The quantile of the scores, without the cutoff."""

    killed_by = "QB-VALUE"

    def required(self, s_MN: Array, alpha_M: Array) -> Array:
        return -s_MN


class OneRankLow(ExactUpdate):
    """The (q-1)-th smallest: an index counted from 0 taken for a rank counted from 1."""

    killed_by = "QB-VALUE"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(tokens, top_k, num_experts) - 1


class TwoRanksHigh(ExactUpdate):
    """The (q+2)-th smallest."""

    killed_by = "QB-COUNT"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(tokens, top_k, num_experts) + 2


class WrongSideOfTheMedian(ExactUpdate):
    """The k/n-quantile of s - alpha instead of the (1 - k/n)-quantile."""

    killed_by = "QB-COUNT"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(tokens, num_experts - top_k, num_experts)


class OverExperts(ExactUpdate):
    """The quantile over experts instead of tokens, where the shapes let it pass: m = n."""

    killed_by = "QB-VALUE"

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        square = r_MN.shape[0] == r_MN.shape[1]
        return super().statistic(r_MN.T if square else r_MN, top_k)


class Accumulated(ExactUpdate):
    """b += b̂, as if the required bias were a step."""

    killed_by = "QB-VALUE"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, bias + estimate)


class PaddingCounted(ExactUpdate):
    """Masked rows count like any other."""

    killed_by = "QB-VALUE"

    def valid(self, logits: Array, mask: Array) -> Array:
        return logits


class RankCountsPadding(ExactUpdate):
    """Masked rows are left out of the quantile, but not of the number of tokens."""

    killed_by = "QB-VALUE"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        self.rows = logits.shape[0]
        return super().quantile_update(logits, bias, **options)

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(self.rows, top_k, num_experts)


class ScoresInBFloat16(ExactUpdate):
    """Scores are rounded to bfloat16 before they are subtracted."""

    killed_by = "QB-VALUE"

    def required(self, s_MN: Array, alpha_M: Array) -> Array:
        return super().required(s_MN.astype(ml_dtypes.bfloat16).astype(np.float64), alpha_M)


class MaskInverted(ExactUpdate):
    """True taken for padding."""

    killed_by = "QB-COUNT"

    def valid(self, logits: Array, mask: Array) -> Array:
        return logits[~mask]


class EmptyIsNan(ExactUpdate):
    """The mean over no valid tokens."""

    killed_by = "QB-VALUE"

    def unchanged(self, bias: Array) -> Array:
        return np.full_like(bias, np.nan)


class EmptyIsZero(ExactUpdate):
    """Without valid tokens the bias is forgotten."""

    killed_by = "QB-VALUE"

    def unchanged(self, bias: Array) -> Array:
        return np.zeros_like(bias)


class DeclaresQReadsNext(ExactUpdate):
    """Declares the q-th statistic and reads Alg. 1's (q+1)-th."""

    killed_by = "QB-VALUE"
    conventions = Conventions(expert_rank="q")

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(tokens, top_k, num_experts) + 1


class DeclaresNextReadsQ(ExactUpdate):
    """Declares the (q+1)-th statistic and reads the q-th."""

    killed_by = "QB-VALUE"
    conventions = Conventions(expert_rank="q+1")


class DeclaresInteriorReadsCorner(ExactUpdate):
    """Declares a point inside the interval and reads an end of it: the rule that jams."""

    killed_by = "QB-VALUE"
    conventions = Conventions(expert_rank="interior")


class RankInFloat32(ExactUpdate):
    """The rank is ceil(m (k/n)) in float32: q at some batch sizes, q + 1 at others."""

    killed_by = "QB-RANK-EXACT"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return ceil_in_float32(tokens, top_k, num_experts)


class NotCentred(ExactUpdate):
    """b̂ as it is."""

    killed_by = "QB-CENTRE"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return estimate


class CentredOnTheMedian(ExactUpdate):
    """The median is taken away, not the mean."""

    killed_by = "QB-CENTRE"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return estimate - np.median(estimate)


class BiasInBFloat16(ExactUpdate):
    """The bias loses its low bits on the way to the router: all of them beside a large offset."""

    killed_by = "QB-SHIFT"

    def routing_bias(self, bias: Array) -> Array:
        return bias.astype(ml_dtypes.bfloat16).astype(np.float64)


class CutoffClipped(ExactUpdate):
    """The cutoff is kept in [0, 1], as if it were a score and not a biased one."""

    killed_by = "QB-SHIFT"

    def cutoff(self, s_MN: Array, bias: Array, top_k: int) -> Array:
        return np.clip(super().cutoff(s_MN, bias, top_k), 0.0, 1.0)
