"""Wrong balancers that take memory for contiguous, or for their own.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
B histogram bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from properties.reference import Reference
from tests.mutants.balancing import ExactUpdate
from tests.mutants.balancing_state import Keeps, Kept


def from_its_first_byte(array: Array) -> Array:
    """What lies from the first element of a vector on, as if it had no gaps."""
    if array.strides[0] <= array.itemsize:
        return array
    read: Array = np.lib.stride_tricks.as_strided(array, array.shape, (array.itemsize,))
    return read


class UpdateReadsMaskOn(ExactUpdate):
    """The exact update reads the mask byte by byte, whatever its stride."""

    killed_by = "QB-VALUE"

    def valid(self, logits: Array, mask: Array) -> Array:
        return super().valid(logits, from_its_first_byte(mask))


class UpdateReadsBiasOn(ExactUpdate):
    """The exact update reads the bias number by number, whatever its stride."""

    killed_by = "QB-VALUE"

    def routing_bias(self, bias: Array) -> Array:
        return np.nan_to_num(from_its_first_byte(bias))


class MaskReadOn(Keeps):
    """A balancer reads the mask byte by byte, whatever its stride."""

    killed_by = "QB-MASK"

    class balancer_class(Kept):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return super().valid(r_MN, from_its_first_byte(mask))


class MaskReadForwards(Keeps):
    """A mask with a negative stride is read from its first byte in memory."""

    killed_by = "QB-MASK"

    class balancer_class(Kept):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return super().valid(r_MN, mask[::-1] if mask.strides[0] < 0 else mask)


class StartsFromWhatLiesThere(Keeps):
    """A new balancer copies N numbers from the first of the given bias on."""

    killed_by = "QB-DEFER"

    def balancer(self, *, bias: Array | None = None, **options: Any) -> Any:
        given = None if bias is None else np.nan_to_num(from_its_first_byte(bias))
        return super().balancer(bias=given, **options)


class CountsInTheOrderOfMemory(Keeps):
    """Loading copies the counts in the order in which they lie: transposed ones are scrambled."""

    killed_by = "QB-HIST-EXACT"

    class balancer_class(Kept):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            counts_NB = state["histogram"] if "bias" in state else np.zeros((0, 0))
            in_memory = counts_NB.ravel(order="K").reshape(counts_NB.shape)
            super().load_state_dict({**state, "histogram": in_memory})


class KeepsTheGivenBias(Keeps):
    """The given bias is taken over without a copy, until the first update makes a new one."""

    killed_by = "QB-APART"

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, num_experts: int, top_k: int, num_bins: int, bias: Any, *on: Any):
            super().__init__(num_experts, top_k, num_bins, bias, *on)
            self.bias = self.bias if bias is None else bias

        def write(self, bias_N: Array) -> None:
            self.bias = bias_N


class KeepsTheLoadedState(Keeps):
    """The arrays of a state are taken over without a copy."""

    killed_by = "QB-STATE"

    class balancer_class(Kept):  # noqa: N801
        def load_state_dict(self, state: Mapping[str, Array]) -> None:
            super().load_state_dict(state)
            self.histogram = state["histogram"]


class OneBufferForAll(Reference):
    """All balancers return their weights in one buffer for each shape."""

    killed_by = "QB-HIST-STEPS"

    def balancer(self, **options: Any) -> Any:
        made, buffers = super().balancer(**options), self.buffers
        observe = made.observe

        def buffered(logits_MN: Array, **others: Any) -> Routing:
            routing = observe(logits_MN, **others)
            weights_MK = buffers.setdefault(routing.weights.shape, routing.weights)
            weights_MK[:] = routing.weights
            return routing._replace(weights=weights_MK)

        made.observe = buffered
        return made

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}
