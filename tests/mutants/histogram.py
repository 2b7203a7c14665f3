"""Wrong balancers of App. D, each by the smallest change from the reference in float64.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts,
B histogram bins.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Routing
from properties.reference import Reference
from reference_numpy.balancing import HistogramBalancer, bin_counts, histogram_range
from reference_numpy.routing import scores
from tests.mutants.balancing import ceil_in_float32


class Histogram(HistogramBalancer):
    """Correct, in the parts that the wrong ones replace one by one."""

    def observe(
        self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
    ) -> Routing:
        routing = reference.route(logits_MN, self.bias, top_k=self.top_k)
        if training and self.enabled and routing.cutoff is not None:
            r_MN = routing.cutoff[:, None] - scores(logits_MN)
            self.count(r_MN if mask is None else self.valid(r_MN, mask))
        return routing

    def valid(self, r_MN: Array, mask: Array) -> Array:
        return r_MN[mask]

    def count(self, r_MN: Array) -> None:
        self.histogram = self.histogram + self.counts(r_MN)

    def counts(self, r_MN: Array) -> Array:
        return bin_counts(r_MN, *self.range(), self.num_bins)

    def range(self) -> tuple[float, float]:
        return histogram_range(self.bias)

    def update(self) -> None:
        if not self.enabled or not self.histogram.sum():
            return
        low, high = self.range()
        cumulative = self.cumulative()
        tokens = int(self.histogram[0].sum())
        first = np.argmax(cumulative >= self.rank(tokens), axis=1)
        centres = low + (first + 0.5) * (high - low) / self.num_bins
        self.bias = self.finished(centres)
        self.histogram = np.zeros_like(self.histogram)

    def cumulative(self) -> Array:
        return np.cumsum(self.histogram, axis=1)

    def rank(self, tokens: int) -> int:
        return reference.target_rank(tokens, self.top_k, self.num_experts)

    def finished(self, estimate: Array) -> Array:
        return estimate - estimate.mean()


class Balanced(Reference):
    """The reference with a balancer of the class ``balancer_class``."""

    name = "mutant"
    conventions = Conventions()
    balancer_class: type[HistogramBalancer] = Histogram

    def balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> Any:
        return self.balancer_class(
            num_experts, top_k, 1000 if num_bins is None else num_bins, bias, enabled
        )


class HistogramRankInFloat32(Balanced):
    """The rank is ceil(total (k/n)) in float32, and no rank is declared."""

    killed_by = "QB-RANK"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return ceil_in_float32(tokens, self.top_k, self.num_experts)


class HistogramDeclaresQReadsNext(Balanced):
    """Declares the q-th statistic; the first bin whose cumulative count *passes* q is the next."""

    killed_by = "QB-RANK"
    conventions = Conventions(histogram_rank="q")

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return tokens * self.top_k // self.num_experts + 1


class HistogramOneRankLow(Balanced):
    """Reads the (q-1)-th."""

    killed_by = "QB-RANK"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return super().rank(tokens) - 1


class SummedInFloat32(Balanced):
    """Counts are summed in float32, which holds no odd number beyond 2^24."""

    killed_by = "QB-RANK"

    class balancer_class(Histogram):  # noqa: N801
        def cumulative(self) -> Array:
            return np.cumsum(self.histogram.astype(np.float32), axis=1, dtype=np.float32)


class RankInInt32(Balanced):
    """The product of total and k wraps around in 32 bits, from 134 million tokens on at k = 16."""

    killed_by = "QB-RANK"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            wrapped = (tokens * self.top_k + 2**31) % 2**32 - 2**31
            return -(-wrapped // self.num_experts)


class RankFromWholeGroups(Balanced):
    """Divides first: total // n * k forgets the tokens beyond a multiple of n."""

    killed_by = "QB-RANK"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return tokens // self.num_experts * self.top_k


class RankFromRatioInFloat64(Balanced):
    """ceil(total (k/n)) in float64: off by one with 14/48, exact at every published size."""

    killed_by = "QB-RANK"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return math.ceil(tokens * (self.top_k / self.num_experts))


class OwnNumberOfBins(HistogramRankInFloat32):
    """The rank in float32, by a balancer of 64 bins, however many it is asked for."""

    killed_by = "QB-RANK"

    def balancer(self, *, num_bins: int | None = None, **options: Any) -> Any:
        del num_bins
        return super().balancer(num_bins=64, **options)


class TotalInFloat32(Balanced):
    """The total is summed in float32, which rounds it from 2^24 tokens on; the rest is exact."""

    killed_by = "QB-RANK-SIZES"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return super().rank(int(np.float32(tokens)))


class RankFromTheOtherSideInFloat32(Balanced):
    """Counts from above: total - floor(total (1 - k/n)), which float32 rounds by whole ranks."""

    killed_by = "QB-RANK-SIZES"

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            share = np.float32(1.0 - self.top_k / self.num_experts)
            return tokens - int(np.floor(np.float32(tokens) * share))


class RankRatioInFloat32(Balanced):
    """Stores k/n as float32 and multiplies in float64: q + 1 wherever float32 rounds k/n up.

    At 16/896 that is everywhere, which is legal where no rank is declared.
    """

    killed_by = "QB-RANK-SIZES"
    conventions = Conventions(histogram_rank="q")

    class balancer_class(Histogram):  # noqa: N801
        def rank(self, tokens: int) -> int:
            return math.ceil(tokens * float(np.float32(self.top_k / self.num_experts)))


class UpdatedBeforeUse(Balanced):
    """A micro-batch is routed by the bias that it asked for itself."""

    killed_by = "QB-DEFER"

    class balancer_class(Histogram):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            super().observe(logits_MN, **options)
            self.update()
            return reference.route(logits_MN, self.bias, top_k=self.top_k)


class UpdatedInsideForward(Balanced):
    """Each micro-batch ends with an update."""

    killed_by = "QB-DEFER"

    class balancer_class(Histogram):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            self.update()
            return routing


class RoutedByTheNextBias(Balanced):
    """The bias shown is the old one, but a batch is routed by the one that it asks for."""

    killed_by = "QB-DEFER"

    class balancer_class(Histogram):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            super().observe(logits_MN, **options)
            if not logits_MN.shape[0]:
                return reference.route(logits_MN, self.bias, top_k=self.top_k)
            following = reference.quantile_update(logits_MN, self.bias, top_k=self.top_k)
            return reference.route(logits_MN, following, top_k=self.top_k)


class CountedTwice(Balanced):
    """Every token is counted twice: the quantile is the same."""

    killed_by = "QB-HIST-TOTAL"

    class balancer_class(Histogram):  # noqa: N801
        def counts(self, r_MN: Array) -> Array:
            return 2 * super().counts(r_MN)


class TopEdgeLost(Balanced):
    """Bins are half open, so that a required bias at the range's end is not counted."""

    killed_by = "QB-HIST-TOTAL"

    class balancer_class(Histogram):  # noqa: N801
        def counts(self, r_MN: Array) -> Array:
            counts = super().counts(r_MN)
            counts[:, -1] -= (r_MN >= self.range()[1]).sum(axis=0)
            return counts


class PaddingInHistogram(Balanced):
    """Masked rows are counted."""

    killed_by = "QB-HIST-TOTAL"

    class balancer_class(Histogram):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return r_MN


class CountsKeptAfterUpdate(Balanced):
    """The update leaves its counts for the next one."""

    killed_by = "QB-HIST-TOTAL"

    class balancer_class(Histogram):  # noqa: N801
        def update(self) -> None:
            counts = self.histogram
            super().update()
            self.histogram = counts


class MicroBatchForgotten(Balanced):
    """Each micro-batch starts the counts anew."""

    killed_by = "QB-HIST-ERROR"

    class balancer_class(Histogram):  # noqa: N801
        def count(self, r_MN: Array) -> None:
            self.histogram = self.counts(r_MN)


class BinsOffByOne(Balanced):
    """Bins counted from 1, read from 0: a common shift, which centring takes away."""

    killed_by = "QB-HIST-BINS"

    class balancer_class(Histogram):  # noqa: N801
        def counts(self, r_MN: Array) -> Array:
            low, high = self.range()
            return super().counts(np.minimum(r_MN + (high - low) / self.num_bins, high))


class FixedRange(Balanced):
    """The range is [-1, 1], whatever the bias."""

    killed_by = "QB-HIST-ERROR"

    class balancer_class(Histogram):  # noqa: N801
        def range(self) -> tuple[float, float]:
            return -1.0, 1.0


class CutoffIsKthInHistogram(Balanced):
    """Counts the distance to the last chosen score."""

    killed_by = "QB-HIST-ERROR"

    class balancer_class(Histogram):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            super().observe(logits_MN, **(options | {"training": False}))
            routing = reference.route(logits_MN, self.bias, top_k=self.top_k)
            s_MN = scores(logits_MN)
            last = -np.sort(-s_MN - self.bias, axis=1)[:, self.top_k - 1]
            r_MN, mask = last[:, None] - s_MN, options.get("mask")
            self.count(r_MN if mask is None else r_MN[mask])
            return routing


class HistogramFlipped(Balanced):
    """Overloaded experts are made more attractive."""

    killed_by = "QB-HIST-ERROR"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            return estimate.mean() - estimate


class NeverUpdated(Balanced):
    """``update`` only clears the counts."""

    killed_by = "QB-HIST-ERROR"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            return self.bias


class HistogramNotCentred(Balanced):
    """The estimates as they are."""

    killed_by = "QB-HIST-CENTRE"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            return estimate
