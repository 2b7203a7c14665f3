"""Wrong balancers on several ranks, each by the smallest change from the pooled reference.

In one process every one of them is right. ``killed_by`` names the property that has to catch it.
Legend: N routed experts, B histogram bins, W ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import reference_numpy as reference
from properties.protocol import Array
from tests.ranks.pooled import Pooled, PooledBalancer


class Wrong(Pooled):
    """The pooled reference under another name."""

    name = "mutant"


class ReplicatedTokensCountedTwice(Wrong):
    """Every rank of a replicated-token group adds its counts: the quantile stays the same."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def pooled(self) -> Array:
            return self.reduced(self.histogram)


class ReducedOverTooFewRanks(Wrong):
    """Counts are added up over pairs of ranks instead of the world, and over nothing among two."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def pooled(self) -> Array:
            if self.world.size == 1:
                return self.histogram
            everyone: list[Any] = [None] * self.world.size
            dist.all_gather_object(everyone, self.histogram)
            half = self.world.size // 2
            start = self.world.rank // half * half
            return np.sum(everyone[start : start + half], axis=0)


class ReducedWithinReplicas(Wrong):
    """The group of replicated tokens is taken for the one over which counts are added."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def pooled(self) -> Array:
            super().pooled()
            return self.histogram


class NotReduced(Wrong):
    """Every rank reads its own counts."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def pooled(self) -> Array:
            return self.histogram


class MeanOfLocalQuantiles(Wrong):
    """Each rank makes a bias of its own counts, and the biases are averaged."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def update(self) -> None:
            self.reduced_histogram = self.pooled()
            reference.HistogramBalancer.update(self)
            if self.world.size > 1:
                mean = torch.from_numpy(self.bias.copy())
                dist.all_reduce(mean)
                self.bias = mean.numpy() / self.world.size


class MeanOfCounts(Wrong):
    """Counts are averaged over ranks, to the next integer below."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            return super().reduced(counts) // self.world.size

        def update(self) -> None:
            self.histogram = self.reduced_histogram = self.pooled()
            tokens = self.histogram.sum(axis=1)
            # As kernels do: the rank of the first expert's total, whatever the others' are.
            self.histogram[:, -1] += tokens.max() - tokens
            reference.HistogramBalancer.update(self)


class MaskOfOtherRanksIgnored(Wrong):
    """Rank 0 leaves out what its mask says, every other rank counts everything."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Any:
            return super().observe(
                logits_MN, training=training, mask=mask if self.world.rank == 0 else None
            )


class LastMicroBatchOnly(Wrong):
    """A rank hands over the counts of its last micro-batch; those before it are lost."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        last = 0

        def observe(self, logits_MN: Array, **options: Any) -> Any:
            before = self.histogram
            routing = super().observe(logits_MN, **options)
            self.last = self.histogram - before
            return routing

        def pooled(self) -> Array:
            if self.world.size > 1:
                self.histogram = self.last + np.zeros_like(self.histogram)
            return super().pooled()


class PendingCountsArePooled(Wrong):
    """The reduction is kept in the counts of each rank, and so is part of the next one."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def update(self) -> None:
            super().update()
            if self.world.size > 1 and self.reduced_histogram is not None:
                self.histogram = self.reduced_histogram.copy()


class BiasOfOneRankOnly(Wrong):
    """Rank 0 alone updates; the others keep their bias until a checkpoint is loaded."""

    killed_by = "QB-RANKS"

    class balancer_class(PooledBalancer):  # noqa: N801
        def update(self) -> None:
            before = self.bias
            super().update()
            if self.world.rank > 0:
                self.bias = before


class SkipsWithoutTokens(Wrong):
    """A rank that has counted nothing sees nothing to reduce; the others wait for it."""

    killed_by = "QB-RANKS"
    verdict = "adapter error"
    rank_seconds = 5.0

    class balancer_class(PooledBalancer):  # noqa: N801
        def pooled(self) -> Array:
            return super().pooled() if self.histogram.any() else self.histogram


class ReducedInFloat32(Wrong):
    """Counts travel as float32, which holds no odd number beyond 2^24."""

    killed_by = "QB-TRAFFIC"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            return super().reduced(counts.astype(np.float32)).astype(np.int64)


class LogitsAreGathered(Wrong):
    """Every rank is sent the logits of all tokens and counts them itself."""

    killed_by = "QB-TRAFFIC"

    class balancer_class(PooledBalancer):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Any:
            if self.world.size > 1:
                everyone: list[Any] = [None] * self.world.size
                dist.all_gather_object(everyone, np.ascontiguousarray(logits_MN))
            return super().observe(logits_MN, **options)


class ReducedExpertByExpert(Wrong):
    """The right elements, in as many messages as there are experts."""

    killed_by = "QB-TRAFFIC"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            return np.stack([super(type(self), self).reduced(row) for row in counts])


class ReducedTwice(Wrong):
    """A second reduction, of the numbers of tokens, which the counts tell already."""

    killed_by = "QB-TRAFFIC"

    class balancer_class(PooledBalancer):  # noqa: N801
        def pooled(self) -> Array:
            self.reduced(self.histogram.sum(axis=1))
            return super().pooled()
