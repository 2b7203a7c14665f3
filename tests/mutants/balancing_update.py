"""Wrong updates that break what one update owes the batch, its bias and the dual.

Each differs from a correct exact update, or a correct histogram, by the smallest change in float64.
``killed_by`` names the property that has to catch it.

Legend: M tokens, N routed experts, B histogram bins; q = M top_k / N.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Routing
from reference_numpy.routing import cutoff
from tests.mutants.balancing import ExactUpdate
from tests.mutants.histogram import Balanced, Histogram


class OnlyExact(ExactUpdate):
    """Correct, with a declared rank; the exact update alone is offered."""

    conventions = Conventions(expert_rank="q")
    balancer = None  # type: ignore[assignment]


class OnlyHistogram(Balanced):
    """Correct, with a declared rank; the balancer alone is offered."""

    conventions = Conventions(histogram_rank="q")
    quantile_update = None  # type: ignore[assignment]


def loads(logits: Array, bias: Array, top_k: int) -> Array:
    """Tokens per expert (N,)."""
    ids = reference.route(logits, bias, top_k=top_k).expert_ids
    return np.asarray(np.bincount(ids.ravel(), minlength=bias.shape[0]))


# Span ----------------------------------------------------------------------------------------


class AddedToTheOldBias(OnlyExact):
    """b += b̂, as if the required bias were a step."""

    killed_by = "QB-SPAN"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, bias + estimate)


class Damped(OnlyExact):
    """Halfway from the old bias to the new one."""

    killed_by = "QB-SPAN"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, 0.5 * (bias + estimate))


class RequiredOfBiasedScores(OnlyExact):
    """r = alpha - (s + b): the bias is counted twice."""

    killed_by = "QB-SPAN"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        self.old = bias
        return super().quantile_update(logits, bias, **options)

    def required(self, s_MN: Array, alpha_M: Array) -> Array:
        return super().required(s_MN + self.old, alpha_M)


class HistogramAddedToTheOldBias(OnlyHistogram):
    """The balancer's update is a step, too."""

    killed_by = "QB-SPAN"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            return super().finished(self.bias + estimate)


# Direction -----------------------------------------------------------------------------------


class OverloadedGoUp(OnlyExact):
    """The new bias has the wrong sign."""

    killed_by = "QB-DIRECTION"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return estimate.mean() - estimate


class OtherTail(OnlyExact):
    """The k/n-quantile of s - alpha in place of the (1 - k/n)-quantile."""

    killed_by = "QB-DIRECTION"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(tokens, num_experts - top_k, num_experts)


class AllZero(OnlyExact):
    """A control: the update forgets everything."""

    killed_by = "QB-DIRECTION"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return np.zeros_like(bias)


class HistogramReadFromAbove(OnlyHistogram):
    """Counts are summed from the far end of the range."""

    killed_by = "QB-DIRECTION"

    class balancer_class(Histogram):  # noqa: N801
        def cumulative(self) -> Array:
            return np.cumsum(self.histogram[:, ::-1], axis=1)


# Sign ----------------------------------------------------------------------------------------


class RouterIgnoresTheBias(OnlyExact):
    """The update is right, but the router's loads are those of the raw scores."""

    killed_by = "QB-SIGN"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return reference.route(logits, np.zeros_like(bias), top_k=top_k)


class SignStep(OnlyExact):
    """DeepSeek-V3's step itself: on the right side, but it does not land at the least dual."""

    killed_by = "QB-SIGN"

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        logits = logits if mask is None else logits[mask]
        target = logits.shape[0] * top_k / bias.shape[0]
        step = 0.01 * np.sign(target - loads(logits, bias, top_k))
        return self.finished(bias, bias + step)


class Unchanged(OnlyExact):
    """A control: the old bias, centred."""

    killed_by = "QB-SIGN"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, bias)


class OneTokenTooMany(OnlyExact):
    """The (q+2)-th smallest r."""

    killed_by = "QB-SIGN"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return super().rank(tokens, top_k, num_experts) + 2


# Order and distance --------------------------------------------------------------------------


class BiasSubtracted(OnlyExact):
    """The cutoff is taken from s - b. Distances do not grow, but the order is reversed."""

    killed_by = "QB-MONOTONE"

    def cutoff(self, s_MN: Array, bias: Array, top_k: int) -> Array:
        return cutoff(s_MN - bias, top_k)


class NegatedResult(OnlyExact):
    """-b: all distances are right, and every order is reversed."""

    killed_by = "QB-MONOTONE"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return estimate.mean() - estimate


class LoadStep(OnlyExact):
    """A step by the sign of the load jumps as soon as one token changes its expert."""

    killed_by = "QB-NONEXPANSIVE"
    quantile_update = SignStep.quantile_update


class DistancesAdd(OnlyExact):
    """b += b̂: what two biases differ by is passed on twice."""

    killed_by = "QB-NONEXPANSIVE"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, bias + estimate)


class HistogramOverrelaxed(OnlyHistogram):
    """Three times the change that is asked for."""

    killed_by = "QB-NONEXPANSIVE"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            return super().finished(3.0 * estimate - 2.0 * self.bias)


# Symmetry ------------------------------------------------------------------------------------


class FirstTokensOnly(OnlyExact):
    """The quantile is that of the first half of the batch."""

    killed_by = "QB-EQUIVARIANT"

    def valid(self, logits: Array, mask: Array) -> Array:
        return logits[mask]

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        return super().statistic(r_MN[: max(len(r_MN) // 2, 1)], top_k)


class RunningAverage(OnlyExact):
    """Micro-batches of four, each with its own quantile, in a running average."""

    killed_by = "QB-EQUIVARIANT"

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        average = super().statistic(r_MN[:4], top_k)
        for start in range(4, len(r_MN), 4):
            average = 0.9 * average + 0.1 * super().statistic(r_MN[start : start + 4], top_k)
        return average


class LastExpertLeftOut(OnlyExact):
    """An off-by-one slice: the last expert keeps its old bias."""

    killed_by = "QB-EQUIVARIANT"

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, np.append(estimate[:-1], bias[-1]))


class LastMicroBatchCountsTwice(OnlyHistogram):
    """The last token is counted again, as an overlapping slice does."""

    killed_by = "QB-EQUIVARIANT"

    class balancer_class(Histogram):  # noqa: N801
        def count(self, r_MN: Array) -> None:
            super().count(np.concatenate([r_MN, r_MN[-max(len(r_MN) // 4, 1) :]]))


# Repetition ----------------------------------------------------------------------------------


class CapacityFixed(OnlyExact):
    """The target is capped, as if an expert had room for four tokens and no more."""

    killed_by = "QB-DUPLICATE"

    def rank(self, tokens: int, top_k: int, num_experts: int) -> int:
        return min(super().rank(tokens, top_k, num_experts), 4)


class PriorOfOldBias(OnlyExact):
    """The old bias is averaged in, with the weight of eight tokens."""

    killed_by = "QB-DUPLICATE"

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        self.weight = 8.0 / (8.0 + len(r_MN))
        return super().statistic(r_MN, top_k)

    def finished(self, bias: Array, estimate: Array) -> Array:
        return super().finished(bias, self.weight * bias + (1.0 - self.weight) * estimate)


class ReservoirOf64(OnlyExact):
    """Only 64 tokens are looked at."""

    killed_by = "QB-DUPLICATE"

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        return super().statistic(r_MN[:64], top_k)


class HistogramOfFixedBatch(OnlyHistogram):
    """The target is that of 16 tokens, however many were counted."""

    killed_by = "QB-DUPLICATE"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return super().rank(min(tokens, 16))
