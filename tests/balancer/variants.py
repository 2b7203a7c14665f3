"""Balancers that are right, and differ in what the report leaves open.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Precision, Routing
from reference_numpy.balancing import HistogramBalancer, histogram_range
from reference_numpy.routing import scores
from tests.mutants.balancing_state import Keeps, Kept


class NextStatistic(Keeps):
    """Reads the (q+1)-th, at the middle of its bin, and says so."""

    conventions = Conventions(histogram_rank="q+1")

    class balancer_class(Kept):  # noqa: N801
        def update(self) -> None:
            if not (self.enabled and self.histogram.any()):
                return
            tokens = int(self.histogram[0].sum())
            rank = min(tokens * self.top_k // self.num_experts + 1, tokens)
            first_N = np.argmax(self.histogram.cumsum(axis=1) >= rank, axis=1)
            low, high = self.range()
            estimate_N = low + (first_N + 0.5) * (high - low) / self.num_bins
            self.write(estimate_N - estimate_N.mean())
            self.histogram = np.zeros_like(self.histogram)


class Multiplies(Keeps):
    """Finds the bin by multiplying with B over the range, from the top end down."""

    class balancer_class(Kept):  # noqa: N801
        def add(self, r_MN: Array) -> None:
            low, high = self.range()
            place_MN = np.ceil((high - r_MN) * (self.num_bins / (high - low))).astype(int)
            bin_MN = np.clip(self.num_bins - place_MN, 0, self.num_bins - 1)
            self.histogram = self.histogram.copy()
            for expert, bins_M in enumerate(bin_MN.T):
                np.add.at(self.histogram[expert], bins_M, 1)


class Single(Keeps):
    """Everything in float32, with int32 counts."""

    precision = Precision()

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.bias = self.bias.astype(np.float32)
            self.histogram = self.histogram.astype(np.int32)

        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            self.histogram = self.histogram.astype(np.int32)
            cutoff = routing.cutoff
            return Routing(
                routing.expert_ids,
                routing.weights.astype(np.float32),
                None if cutoff is None else cutoff.astype(np.float32),
            )

        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            super().load_state_dict(state)
            self.bias = self.bias.astype(np.float32)
            self.histogram = self.histogram.astype(np.int32)


class Unshown(Keeps):
    """Keeps all required biases instead of a histogram, and reads the linear quantile.

    Its state dict has no room for them.
    """

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.kept: list[Array] = []

        @property
        def histogram(self) -> Any:
            return None

        @histogram.setter
        def histogram(self, counts_NB: Array) -> None:
            """There is none."""

        def add(self, r_MN: Array) -> None:
            self.kept.append(r_MN)

        def update(self) -> None:
            r_MN = np.concatenate([np.zeros((0, self.num_experts)), *self.kept])
            if self.enabled and len(r_MN) and self.top_k < self.num_experts:
                estimate_N = reference.expert_statistic(r_MN, self.top_k)
                self.write(estimate_N - estimate_N.mean())
            if self.enabled:
                self.kept = []

        def state_dict(self) -> dict[str, Any]:
            return {"bias": self.bias.copy(), "histogram": None}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.bias[:] = state["bias"]
            self.kept = list(state.get("kept", []))


class UnshownButSaved(Unshown):
    """The same, with what is kept in a key of its own."""

    class balancer_class(Unshown.balancer_class):  # noqa: N801
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict() | {"kept": list(self.kept)}


class Subtracts(Keeps):
    """Experts are chosen by s - b; the histogram runs over s - alpha."""

    conventions = Conventions(bias_sign=-1)

    class balancer_class(Kept):  # noqa: N801
        def observe(
            self, logits_MN: Array, *, training: bool = True, mask: Array | None = None
        ) -> Routing:
            routing = reference.route(logits_MN, -self.bias, top_k=self.top_k)
            if self.counting(training) and routing.cutoff is not None:
                beyond_MN = scores(logits_MN) - routing.cutoff[:, None]
                self.add(beyond_MN if mask is None else self.valid(beyond_MN, mask))
            return routing

        def update(self) -> None:
            if not (self.enabled and self.histogram.any()):
                return
            tokens = int(self.histogram[0].sum())
            rank = reference.target_rank(tokens, self.top_k, self.num_experts)
            fallen_NB = self.histogram[:, ::-1].cumsum(axis=1)
            first_N = np.argmax(fallen_NB >= rank, axis=1)
            low, high = self.range()
            estimate_N = high - (first_N + 0.5) * (high - low) / self.num_bins
            self.write(estimate_N - estimate_N.mean())
            self.histogram = np.zeros_like(self.histogram)


class Bare:
    """No method beyond the two that every balancer has, and no cutoff shown."""

    def __init__(self, right: HistogramBalancer) -> None:
        self._right = right

    @property
    def bias(self) -> Array:
        return self._right.bias

    @property
    def histogram(self) -> Array:
        return self._right.histogram

    def observe(self, logits_MN: Array, **options: Any) -> Routing:
        return self._right.observe(logits_MN, **options)._replace(cutoff=None)

    def update(self) -> None:
        self._right.update()


class NothingOptional(Keeps):
    """The smallest balancer."""

    def balancer(self, **options: Any) -> Any:
        return Bare(super().balancer(**options))


class NoPadding(Keeps):
    """Takes no mask, and says so."""

    conventions = Conventions(padding="rejected")

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            if options.get("mask") is not None:
                raise ValueError("padding is not supported: drop the rows")
            return super().observe(logits_MN, **options)


class NeedsCutoff(Keeps):
    """Refuses K = N in words."""

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, num_experts: int, top_k: int, *rest: Any) -> None:
            if top_k == num_experts:
                raise ValueError("top_k must be below num_experts: with all there is no cutoff")
            super().__init__(num_experts, top_k, *rest)


class LossDeclared(Keeps):
    """The state dict says that pending counts are not in it; the live bias is."""

    class balancer_class(Kept):  # noqa: N801
        def state_dict(self) -> dict[str, Any]:
            return {"bias": self.bias, "histogram": None}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            counts_NB = state["histogram"]
            if counts_NB is None:
                counts_NB = np.zeros_like(self.histogram)
            super().load_state_dict({"bias": state["bias"], "histogram": counts_NB})


class SwitchSaved(Keeps):
    """The switch is part of the state dict, whose arrays are the live ones, as in PyTorch."""

    class balancer_class(Kept):  # noqa: N801
        def state_dict(self) -> dict[str, Any]:
            return {"bias": self.bias, "histogram": self.histogram, "enabled": self.enabled}

        def add(self, r_MN: Array) -> None:
            before = self.histogram
            super().add(r_MN)
            before[:] = self.histogram
            self.histogram = before

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            super().load_state_dict(state)
            self.enabled = state.get("enabled", self.enabled)


class RangeKept(Keeps):
    """The range is kept with the counts, from the first micro-batch to the update."""

    class balancer_class(Kept):  # noqa: N801
        ends: tuple[float, float] | None = None

        def range(self) -> tuple[float, float]:
            return self.ends or histogram_range(self.bias)

        def add(self, r_MN: Array) -> None:
            self.ends = self.range()
            super().add(r_MN)

        def update(self) -> None:
            super().update()
            self.ends = self.ends if self.histogram.any() else None

        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            super().load_state_dict(state)
            self.ends = None


VARIANTS = (
    NextStatistic,
    Multiplies,
    Single,
    Unshown,
    UnshownButSaved,
    Subtracts,
    NothingOptional,
    NoPadding,
    NeedsCutoff,
    LossDeclared,
    SwitchSaved,
    RangeKept,
)
