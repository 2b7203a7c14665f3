"""Wrong balancers that go wrong where a size fills a template or a block, or just passes it.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts,
B histogram bins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array
from properties.reference import Reference
from reference_numpy.balancing import bin_counts, target_rank
from tests.mutants.balancing_state import Keeps, Kept


class StoresTwoOfFourExperts(Keeps):
    """For N = 128, a lane has four experts and stores the first two of them: the rest get 0."""

    killed_by = "QB-SIZES"

    class balancer_class(Kept):  # noqa: N801
        def write(self, bias_N: Array) -> None:
            stored_N = np.where(np.arange(len(bias_N)) % 4 < 2, bias_N, 0.0)
            super().write(stored_N - stored_N.mean() if len(bias_N) == 128 else bias_N)


class WarpCentresHalf(Reference):
    """For N = 32, one warp adds up its first 16 experts for the mean of the exact update."""

    killed_by = "QB-SIZES"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        updated = super().quantile_update(logits, bias, **options)
        return updated + updated[:16].mean() if len(bias) == 32 else updated


class RowsInSixteenBits(Reference):
    """The exact update sorts numbers of rows in 16 bits: it repeats the first 65,536 rows."""

    killed_by = "QB-SIZES"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        rows = np.arange(len(logits)).astype(np.uint16)
        return super().quantile_update(logits[rows], bias, **options)


class TwoBinsOfAThread(Keeps):
    """From 1,025 bins to 2,048, a thread scans two: 1,024 apart, and not side by side."""

    killed_by = "QB-SIZES"

    class balancer_class(Kept):  # noqa: N801
        def update(self) -> None:
            if 1024 < self.num_bins <= 2048:
                order = np.argsort(np.arange(self.num_bins) % 1024, kind="stable")
                self.histogram = self.histogram[:, order]
            super().update()


class CarriesOverEightWarps(Keeps):
    """From 257 bins to 512, bins from 256 on miss what the first warp has counted."""

    killed_by = "QB-SIZES"

    class balancer_class(Kept):  # noqa: N801
        def update(self) -> None:
            if not 256 < self.num_bins <= 512 or not self.histogram.any() or not self.enabled:
                super().update()
                return
            counted_NB = np.cumsum(self.histogram, axis=1)
            rank = target_rank(int(counted_NB[0, -1]), self.top_k, self.num_experts)
            counted_NB[:, 256:] -= counted_NB[:, 31:32]
            reached_NB = counted_NB >= rank
            first_N = np.where(reached_NB.any(axis=1), reached_NB.argmax(axis=1), self.num_bins - 1)
            estimate_N = first_N * (np.ptp(self.bias) + 2.0) / self.num_bins
            self.write(estimate_N - estimate_N.mean())
            self.histogram = np.zeros_like(self.histogram)


class CallInSixteenBits(Keeps):
    """A micro-batch is counted in 16 bits without a sign: 65,536 tokens in a bin are none."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Kept):  # noqa: N801
        def add(self, r_MN: Array) -> None:
            counts_NB = bin_counts(r_MN, *self.range(), self.num_bins)
            self.histogram = self.histogram + counts_NB.astype(np.uint16).astype(np.int64)
