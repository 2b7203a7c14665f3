"""Wrong balancers whose mistake shows over several calls, or in the optional ones.

``killed_by`` names the property that has to catch it. All derive from ``Kept``, which is right and
offers every optional method. Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Routing
from reference_numpy.balancing import (
    HistogramBalancer,
    bin_counts,
    histogram_range,
    histogram_statistic,
)
from reference_numpy.routing import scores
from tests.mutants.histogram import Balanced


class Kept(HistogramBalancer):
    """Correct, with every optional method, in the parts that the wrong ones replace."""

    def observe(
        self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
    ) -> Routing:
        routing = reference.route(logits_MN, self.bias, top_k=self.top_k)
        if self.counting(training) and routing.cutoff is not None:
            r_MN = routing.cutoff[:, None] - scores(logits_MN)
            self.add(r_MN if mask is None else self.valid(r_MN, mask))
        return routing

    def counting(self, training: bool) -> bool:
        return training and self.enabled

    def valid(self, r_MN: Array, mask: Array) -> Array:
        return r_MN[mask]

    def add(self, r_MN: Array) -> None:
        self.histogram = self.histogram + bin_counts(r_MN, *self.range(), self.num_bins)

    def range(self) -> tuple[float, float]:
        return histogram_range(self.bias)

    def update(self) -> None:
        if self.enabled and self.histogram.any():
            estimate_N = histogram_statistic(self.histogram, *self.range(), self.top_k)
            self.write(estimate_N - estimate_N.mean())
            self.histogram = np.zeros_like(self.histogram)

    def write(self, bias_N: Array) -> None:
        self.bias[:] = bias_N

    def to(self, dtype: str) -> None:
        """Cast nothing: bias and counts keep their formats."""

    def bias_storage_id(self) -> int:
        return id(self.bias)

    def observe_recomputed(self, logits_MN: Array) -> None:
        self.observe(logits_MN)


class Keeps(Balanced):
    """The reference with such a balancer."""

    balancer_class = Kept


# Evaluation, and the switch ------------------------------------------------------------------


class EvaluationCounted(Keeps):
    """The flag ``training`` is ignored."""

    killed_by = "QB-EVAL"

    class balancer_class(Kept):  # noqa: N801
        def counting(self, training: bool) -> bool:
            return self.enabled


class EvaluationClears(Keeps):
    """An observation in evaluation empties the counts, to be on the safe side."""

    killed_by = "QB-EVAL"

    class balancer_class(Kept):  # noqa: N801
        def counting(self, training: bool) -> bool:
            if not training:
                self.histogram = np.zeros_like(self.histogram)
            return super().counting(training)


class StartsEnabled(Keeps):
    """The argument ``enabled=False`` is ignored."""

    killed_by = "QB-OFF"

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments[:4])


class SwitchIgnored(Keeps):
    """``set_enabled`` does nothing."""

    killed_by = "QB-OFF"

    class balancer_class(Kept):  # noqa: N801
        def set_enabled(self, flag: bool) -> None:
            """Forget it."""


class DisabledUpdates(Keeps):
    """Disabled, it counts no more, but still updates by what is pending."""

    killed_by = "QB-OFF"

    class balancer_class(Kept):  # noqa: N801
        def update(self) -> None:
            enabled, self.enabled = self.enabled, True
            super().update()
            self.enabled = enabled


# Routing --------------------------------------------------------------------------------------


class ObserveWeighsBiased(Keeps):
    """``observe`` weighs experts by their biased scores; ``route`` does not."""

    killed_by = "QB-OBSERVE"

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            chosen_MK = np.take_along_axis(
                np.maximum(scores(logits_MN) + self.bias, 1e-3), routing.expert_ids, axis=1
            )
            return routing._replace(weights=chosen_MK / chosen_MK.sum(axis=1, keepdims=True))


class ObserveShowsKthCutoff(Keeps):
    """``observe`` counts right, and returns the K-th biased score as the cutoff."""

    killed_by = "QB-OBSERVE"

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            biased_MN = scores(logits_MN) + self.bias
            last_M = -np.sort(-biased_MN, axis=1)[:, self.top_k - 1]
            return super().observe(logits_MN, **options)._replace(cutoff=last_M)


class EvaluationIgnoresBias(Keeps):
    """In evaluation, experts are chosen by their plain scores."""

    killed_by = "QB-OBSERVE"

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, *, training: bool = True, **options: Any) -> Routing:
            if training:
                return super().observe(logits_MN, **options)
            return reference.route(logits_MN, np.zeros_like(self.bias), top_k=self.top_k)


# Defaults --------------------------------------------------------------------------------------


class TwoBinsByDefault(Keeps):
    """Left out, ``num_bins`` is 2."""

    killed_by = "QB-START"

    def balancer(self, *, num_bins: int | None = None, **options: Any) -> Any:
        return super().balancer(num_bins=num_bins or 2, **options)


class StartsFromOnes(Keeps):
    """Left out, the bias is allocated and not cleared."""

    killed_by = "QB-START"

    def balancer(self, *, bias: Array | None = None, num_experts: int, **options: Any) -> Any:
        bias = np.linspace(0.0, 1.0, num_experts) if bias is None else bias
        return super().balancer(bias=bias, num_experts=num_experts, **options)


# Later updates ---------------------------------------------------------------------------------


class CountsUpdates(Kept):
    """Correct; knows how many updates there have been."""

    done = 0

    def update(self) -> None:
        counted = self.enabled and bool(self.histogram.any())
        super().update()
        self.done += counted


class AveragedLater(Keeps):
    """From the second update on, the bias is averaged into the old one."""

    killed_by = "QB-HIST-STEPS"

    class balancer_class(CountsUpdates):  # noqa: N801
        def write(self, bias_N: Array) -> None:
            super().write(bias_N if not self.done else 0.9 * self.bias + 0.1 * bias_N)


class StopsAfterTheFirst(Keeps):
    """The second update, and all after it, only clear the counts."""

    killed_by = "QB-HIST-STEPS"

    class balancer_class(CountsUpdates):  # noqa: N801
        def write(self, bias_N: Array) -> None:
            super().write(self.bias if self.done else bias_N)


class LaterRankOffByOne(Keeps):
    """From the second update on, the (q+1)-th is read although the q-th is declared."""

    killed_by = "QB-HIST-STEPS"
    conventions = reference_conventions = Balanced.conventions.__class__(histogram_rank="q")

    class balancer_class(CountsUpdates):  # noqa: N801
        def update(self) -> None:
            if self.done and self.histogram.any():
                tokens = int(self.histogram[0].sum())
                rank = reference.target_rank(tokens, self.top_k, self.num_experts) + 1
                first_N = np.argmax(self.histogram.cumsum(axis=1) >= min(rank, tokens), axis=1)
                low, high = self.range()
                estimate_N = low + (first_N + 0.5) * (high - low) / self.num_bins
                self.write(estimate_N - estimate_N.mean())
                self.histogram = np.zeros_like(self.histogram)
            super().update()


class CutoffOfTheFirstBias(Keeps):
    """Required biases are measured from the cutoff under the bias of construction."""

    killed_by = "QB-HIST-STEPS"

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.first = self.bias.copy()

        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = reference.route(logits_MN, self.bias, top_k=self.top_k)
            first, now = self.first, self.bias
            self.bias = first
            super().observe(logits_MN, **options)
            self.bias = now
            return routing


# The state dict --------------------------------------------------------------------------------


class CountsNotSaved(Keeps):
    """The state dict has counts of 0."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def state_dict(self) -> dict[str, Array]:
            return super().state_dict() | {"histogram": np.zeros_like(self.histogram)}


class BiasNotLoaded(Keeps):
    """Loading takes the counts and leaves the bias."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            bias_N = self.bias
            super().load_state_dict(state)
            self.bias = bias_N


class OldCountsKept(Keeps):
    """Loading adds the counts to those that are there."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            pending = self.histogram
            super().load_state_dict(state)
            self.histogram = self.histogram + pending


class MissingBiasAccepted(Keeps):
    """A state without a bias is loaded as one with the present bias."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            super().load_state_dict({"bias": self.bias} | dict(state))


class BiasReplaced(Keeps):
    """An update makes a new array, and who holds the old one keeps the old bias."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def write(self, bias_N: Array) -> None:
            self.bias = bias_N


class LoadedWithoutCopy(Keeps):
    """The arrays of the loaded state become the balancer's own, and are written to."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            super().load_state_dict(state)
            self.bias = state["bias"]


# Two of them -----------------------------------------------------------------------------------


class CountsOfTheClass(Keeps):
    """The counts belong to the class: all layers add to the same ones."""

    killed_by = "QB-APART"

    class balancer_class(Kept):  # noqa: N801
        shared: dict[tuple[int, int], Array] = {}  # noqa: RUF012

        @property
        def histogram(self) -> Array:
            return self.shared[self.num_experts, self.num_bins]

        @histogram.setter
        def histogram(self, counts_NB: Array) -> None:
            self.shared[self.num_experts, self.num_bins] = counts_NB


class BiasTakenOver(Keeps):
    """A bias of the same values is the same array, from a cache."""

    killed_by = "QB-APART"

    class balancer_class(Kept):  # noqa: N801
        cache: dict[bytes, Array] = {}  # noqa: RUF012

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            key = self.bias.tobytes()
            held = self.cache.get(key)
            if held is None or held.tobytes() != key:
                self.cache[key] = self.bias
            self.bias = self.cache[key]
