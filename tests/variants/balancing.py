"""Right balancers that are not the reference's: other state dicts, formats, reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import reference_numpy as reference
from properties.protocol import Array, Conventions, Precision, Routing
from tests.ranks.pooled import Pooled, PooledBalancer


class InFloat32(reference.HistogramBalancer):
    """The reference's, with its bias and its results in float32."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bias = self.bias.astype(np.float32)

    def observe(self, logits_MN: Array, **options: Any) -> Routing:
        ids, weights, cutoff = super().observe(logits_MN.astype(np.float64), **options)
        rounded = None if cutoff is None else cutoff.astype(np.float32)
        return Routing(ids, weights.astype(np.float32), rounded)

    def update(self) -> None:
        super().update()
        self.bias = self.bias.astype(np.float32)

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.bias = self.bias.astype(np.float32)


class Balanced:
    """A balancer of a class, and nothing else."""

    name, version = "balancer", "1"
    topics: tuple[str, ...] = ("balancing",)
    precision = Precision()
    conventions = Conventions(histogram_rank="q")
    made: Any = InFloat32

    def balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> Any:
        bins = 1000 if num_bins is None else num_bins
        return self.made(num_experts, top_k, bins, bias, enabled)


class FinerState(Balanced):
    """A bias in float64 is saved, and rounded to the float32 that routes."""

    freedom = "a state whose bias rounds to the one in force"
    topics, only = (), ("QB-EVAL", "QB-HIST-MODEL", "QB-HIST-EXACT", "QB-STATE")

    class made(InFloat32):  # noqa: N801
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.kept = self.bias.astype(np.float64)

        def update(self) -> None:
            before = self.bias
            reference.HistogramBalancer.update(self)
            if self.bias is not before:
                self.kept, self.bias = self.bias, self.bias.astype(np.float32)

        def state_dict(self) -> dict[str, Array]:
            return super().state_dict() | {"bias": self.kept.copy()}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            self.kept = np.array(state["bias"], np.float64)


class RangeOfTheCounts(Balanced):
    """The state says which range was counted in: NaN where nothing was."""

    freedom = "entries of a state that are NaN"
    topics, only = (), ("QB-EVAL", "QB-HIST-MODEL", "QB-STATE")

    class made(InFloat32):  # noqa: N801
        def state_dict(self) -> dict[str, Array]:
            counted = self.histogram.any()
            ends = (self.bias.min() - 1, self.bias.max() + 1) if counted else (np.nan, np.nan)
            return super().state_dict() | {"range": np.array(ends)}


class MadeAtNeed(Balanced):
    """There is no histogram, nor is one saved, until a token is counted."""

    freedom = "counts that are None while there are none"
    topics, only = (), ("QB-HIST-BINS", "QB-HIST-MODEL", "QB-HIST-SPLIT", "QB-STATE")

    class made:  # noqa: N801
        def __init__(self, *args: Any) -> None:
            self.inner = InFloat32(*args)
            self.observe, self.update = self.inner.observe, self.inner.update

        @property
        def bias(self) -> Array:
            bias: Array = self.inner.bias
            return bias

        @property
        def histogram(self) -> Array | None:
            return self.inner.histogram if self.inner.histogram.any() else None

        def state_dict(self) -> dict[str, Array | None]:
            return {"bias": self.bias.copy(), "histogram": self.histogram}

        def load_state_dict(self, state: Any) -> None:
            counts = state["histogram"]
            if counts is None:
                counts = np.zeros_like(self.inner.histogram)
            self.inner.load_state_dict({**state, "histogram": counts})


class OnRanks(Pooled):
    """The pooled reference under another name, judged by what travels."""

    topics, only = (), ("QB-TRAFFIC",)


class Functional(OnRanks):
    """Counts are added up by a functional collective, which wraps its result."""

    freedom = "any collective of torch.distributed that is an all-reduce"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            if self.world.size == 1:
                return counts
            everyone = list(range(self.world.size))
            total = functional.all_reduce(torch.from_numpy(counts.copy()), "sum", everyone)
            return np.array(total)


class WithTotals(OnRanks):
    """Every expert's total travels beside its bins."""

    freedom = "up to n integers more beside the counts"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            return super().reduced(np.column_stack((counts, counts.sum(axis=1))))[:, :-1]


class FromOneRank(OnRanks):
    """Counts are reduced to the last rank, which makes the bias and broadcasts it."""

    freedom = "a reduce and a broadcast in place of an all-reduce"

    class balancer_class(PooledBalancer):  # noqa: N801
        def reduced(self, counts: Array) -> Array:
            total = torch.from_numpy(counts.copy())
            if self.world.size > 1:
                dist.reduce(total, self.world.size - 1)
                if self.world.rank < self.world.size - 1:
                    total.zero_()  # what is left there is part of the sum
            return total.numpy()

        def update(self) -> None:
            super().update()
            bias = torch.from_numpy(self.bias.copy())
            if self.world.size > 1:
                dist.broadcast(bias, self.world.size - 1)
                if self.world.rank < self.world.size - 1:
                    self.reduced_histogram = None
            self.bias = bias.numpy()


class ReturnsEarly(Balanced):
    """A micro-batch without tokens is handed back at once: no ids, no weights, and no cutoff."""

    freedom = "no cutoff where there is no token"
    topics, only = (), ("QB-EVAL", "QB-HIST-MODEL", "QB-HIST-SPLIT", "QB-MASK", "QB-OBSERVE")

    class made(InFloat32):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            if len(logits_MN):
                return super().observe(logits_MN, **options)
            nothing = np.empty((0, self.top_k), np.float32)
            return Routing(nothing.astype(np.int32), nothing, None)


class RoundsInEvaluation(Balanced):
    """Weights are rounded to storage in evaluation, and stay as they are in training."""

    freedom = "weights in either format, call by call"
    topics, only = (), ("QB-EVAL", "QB-MASK", "QB-OBSERVE")
    precision = Precision(storage="bfloat16")

    class made(InFloat32):  # noqa: N801
        def observe(self, logits_MN: Array, *, training: bool = True, **options: Any) -> Routing:
            routed = super().observe(logits_MN, training=training, **options)
            stored = routed.weights.astype("bfloat16")
            return routed if training else routed._replace(weights=stored)
