"""Right histograms that are not the reference's: other bins, counts, ranks, ends to count from."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Conventions, Precision, Routing
from tests.variants.quantiles import Exact


class Counted:
    """App. D in float32, in the parts that variants replace."""

    counts_dtype: Any = np.int64
    sign = 1

    def __init__(
        self, num_experts: int, top_k: int, num_bins: int, bias: Array | None, enabled: bool
    ) -> None:
        self.top_k, self.enabled, self.exact = top_k, enabled, Exact()
        self.bias = np.zeros(num_experts, np.float32) if bias is None else bias.copy()
        self.histogram = np.zeros((num_experts, num_bins), self.counts_dtype)

    def ends(self) -> tuple[Any, Any]:
        return self.bias.min() - np.float32(1), self.bias.max() + np.float32(1)

    def bins(self, values: Array, low: Any, high: Any) -> Array:
        """The bin of each value, which lies in 0 .. B - 1 but for rounding."""
        raise NotImplementedError

    def observe(
        self, logits: Array, *, training: bool = True, mask: Array | None = None
    ) -> Routing:
        found = self.exact.route(logits, self.sign * self.bias, top_k=self.top_k)
        if training and self.enabled and found.cutoff is not None:
            values = self.sign * (found.cutoff[:, None] - self.exact.scores(logits))
            self.count(values if mask is None else values[mask])
        return found

    def count(self, values: Array) -> None:
        experts, bins = self.histogram.shape
        index = np.clip(self.bins(values, *self.ends()), 0, bins - 1).astype(np.int64)
        counts = self.histogram.copy()
        np.add.at(counts, (np.arange(experts), index), 1)
        self.histogram = counts

    def update(self) -> None:
        total = int(self.histogram[0].sum())
        if not self.enabled or total == 0 or self.top_k == len(self.bias):
            return
        low, high = map(float, self.ends())
        width = (high - low) / self.histogram.shape[1]
        estimate = low + width * self.position(self.histogram.astype(np.int64), total)
        self.bias = (estimate - estimate.mean()).astype(np.float32)
        self.histogram = np.zeros_like(self.histogram)

    def position(self, counts: Array, total: int) -> Array:
        """How many bins above the lowest end the statistic is, (N,)."""
        raise NotImplementedError

    def rank(self, total: int) -> int:
        return -(-total * self.top_k // len(self.bias))

    def set_enabled(self, flag: bool) -> None:
        self.enabled = flag

    def state_dict(self) -> dict[str, Array]:
        return {"bias": self.bias.copy(), "histogram": self.histogram.copy()}

    def load_state_dict(self, state: Any) -> None:
        self.bias = np.array(state["bias"], np.float32)
        self.histogram = np.array(state["histogram"], self.counts_dtype)


class Histograms:
    """A balancer of one class and a number of bins, and nothing else."""

    name, version = "histogram", "1"
    topics: tuple[str, ...] = ()
    only = (
        "QB-COUNT",
        "QB-HIST-BINS",
        "QB-HIST-CENTRE",
        "QB-HIST-EXACT",
        "QB-HIST-STEPS",
        "QB-HIST-TOTAL",
        "QB-RANK",
        "QB-START",
        "QB-VALUE",
    )
    precision = Precision()
    conventions = Conventions()
    made: Any
    num_bins = 1000

    def balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> Any:
        bins = self.num_bins if num_bins is None else num_bins
        return self.made(num_experts, top_k, bins, bias, enabled)


class ByProduct(Histograms):
    """Bins by one product with B / (high - low), counts of 32 bits; the middle of a bin is read."""

    freedom = 'histogram_rank = "q" without interpolation; bins by a product; int32 counts'
    conventions = Conventions(histogram_rank="q")

    class made(Counted):  # noqa: N801
        counts_dtype = np.int32

        def bins(self, values: Array, low: Any, high: Any) -> Array:
            return np.floor((values - low) * (np.float32(self.histogram.shape[1]) / (high - low)))

        def position(self, counts: Array, total: int) -> Array:
            return np.argmax(counts.cumsum(axis=1) >= self.rank(total), axis=1) + 0.5


class BySearch(Histograms):
    """4,096 bins by a binary search among their edges, a value on an edge in the bin below."""

    freedom = "bins by comparison with their edges, which are closed above; B = 4,096; uint64"
    conventions = Conventions(histogram_rank="q")
    num_bins = 4096

    class made(Counted):  # noqa: N801
        counts_dtype = np.uint64

        def bins(self, values: Array, low: Any, high: Any) -> Array:
            edges = np.linspace(low, high, self.histogram.shape[1] + 1)[1:-1].astype(np.float32)
            return np.searchsorted(edges, values, side="left")

        def position(self, counts: Array, total: int) -> Array:
            reached = counts.cumsum(axis=1)
            return np.array([np.searchsorted(row, self.rank(total)) + 1 for row in reached])


class FromAbove(Histograms):
    """The (q+1)-th smallest, found from the last of 128 bins down; bins by division by a width."""

    freedom = 'histogram_rank = "q+1"; B = 128; counted from above; bins by a quotient'
    conventions = Conventions(histogram_rank="q+1")
    num_bins = 128

    class made(Counted):  # noqa: N801
        def bins(self, values: Array, low: Any, high: Any) -> Array:
            return np.trunc((values - low) / ((high - low) / np.float32(self.histogram.shape[1])))

        def position(self, counts: Array, total: int) -> Array:
            wanted = max(total - self.rank(total), 1)
            falling = counts[:, ::-1].cumsum(axis=1)
            return counts.shape[1] - 1 - np.argmax(falling >= wanted, axis=1) + 0.25


class Mirrored(Histograms):
    """The bias is subtracted, and its bins run over s - alpha; the q-th largest is read."""

    freedom = "bias_sign = -1 in a histogram"
    conventions = Conventions(bias_sign=-1, histogram_rank="q")

    class made(Counted):  # noqa: N801
        sign = -1

        def bins(self, values: Array, low: Any, high: Any) -> Array:
            return np.floor((values - low) / (high - low) * np.float32(self.histogram.shape[1]))

        def position(self, counts: Array, total: int) -> Array:
            falling = counts[:, ::-1].cumsum(axis=1)
            first = np.argmax(falling >= self.rank(total), axis=1)
            inside = np.take_along_axis(counts[:, ::-1], first[:, None], 1)[:, 0]
            below = np.take_along_axis(falling, first[:, None], 1)[:, 0] - inside
            q = total * self.top_k / len(self.bias)
            return counts.shape[1] - first - np.clip((q - below) / inside, 0, 1)
