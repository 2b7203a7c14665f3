"""Wrong balancers whose counts are wrong after several calls, or in the optional ones.

``killed_by`` names the property that has to catch it. All derive from ``Kept``,
which is right. Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from properties.protocol import Array, number_format
from reference_numpy.balancing import (
    histogram_range,
)
from tests.mutants.balancing_state import CountsUpdates, Keeps, Kept

# The range -------------------------------------------------------------------------------------


class RangeOfConstruction(Keeps):
    """The range is that of the first bias, for ever."""

    killed_by = "QB-HIST-RANGE"

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.ends = histogram_range(self.bias)

        def range(self) -> tuple[float, float]:
            return self.ends


class RangeOfTheLastUpdate(Keeps):
    """The range is taken at construction and by each update, so not when a bias is loaded."""

    killed_by = "QB-HIST-RANGE"

    class balancer_class(Kept):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.ends = histogram_range(self.bias)

        def range(self) -> tuple[float, float]:
            return self.ends

        def update(self) -> None:
            super().update()
            self.ends = histogram_range(self.bias)


class RangeAtMostFour(Keeps):
    """The range is cut to [-4, 4], as no bias has ever been larger."""

    killed_by = "QB-HIST-RANGE"

    class balancer_class(Kept):  # noqa: N801
        def range(self) -> tuple[float, float]:
            low, high = histogram_range(self.bias)
            return max(low, -4.0), min(high, 4.0)


# Micro-batches, and empty ones -----------------------------------------------------------------


class OnlyTheFirstFour(Keeps):
    """There is room for four micro-batches; later ones are not counted."""

    killed_by = "QB-HIST-SPLIT"

    class balancer_class(Kept):  # noqa: N801
        held = 0

        def add(self, r_MN: Array) -> None:
            self.held += 1
            if self.held <= 4:
                super().add(r_MN)

        def update(self) -> None:
            super().update()
            self.held = 0


class ResetByEach(Keeps):
    """Each micro-batch starts the counts anew."""

    killed_by = "QB-HIST-SPLIT"

    class balancer_class(Kept):  # noqa: N801
        def add(self, r_MN: Array) -> None:
            self.histogram = np.zeros_like(self.histogram)
            super().add(r_MN)


class ZeroedByEmptyUpdate(Keeps):
    """After a first real update, one with nothing counted sets the bias to 0."""

    killed_by = "QB-HIST-EMPTY"

    class balancer_class(CountsUpdates):  # noqa: N801
        def update(self) -> None:
            if self.enabled and self.done and not self.histogram.any():
                self.write(np.zeros_like(self.bias))
            super().update()


class NanFromEmptyUpdate(Keeps):
    """The mean over no tokens is NaN."""

    killed_by = "QB-HIST-EMPTY"

    class balancer_class(Kept):  # noqa: N801
        def update(self) -> None:
            if self.enabled and not self.histogram.any():
                self.write(np.full_like(self.bias, np.nan))
            super().update()


class RecentredWhenEmpty(Keeps):
    """An update with nothing counted centres the bias that is there."""

    killed_by = "QB-HIST-EMPTY"

    class balancer_class(Kept):  # noqa: N801
        def update(self) -> None:
            if self.enabled and not self.histogram.any():
                self.write(self.bias - self.bias.mean())
            super().update()


class PaddingCounted(Keeps):
    """Masked rows are counted."""

    killed_by = "QB-MASK"

    class balancer_class(Kept):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return r_MN


class MaskTurnedAround(Keeps):
    """True is taken for padding, as in torch's key_padding_mask."""

    killed_by = "QB-MASK"

    class balancer_class(Kept):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return r_MN[~mask]


class PaddingAsZeroRows(Keeps):
    """Masked rows are counted as if they required nothing."""

    killed_by = "QB-MASK"

    class balancer_class(Kept):  # noqa: N801
        def valid(self, r_MN: Array, mask: Array) -> Array:
            return r_MN * mask[:, None]


# Counters --------------------------------------------------------------------------------------


class Narrow(Kept):
    """Counts as a narrow format holds them, shown as int64."""

    format = "float32"

    def add(self, r_MN: Array) -> None:
        super().add(r_MN)
        self.histogram = self.narrowed(self.histogram)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self.histogram = self.narrowed(self.histogram)

    def narrowed(self, counts_NB: Array) -> Array:
        return counts_NB.astype(np.dtype(self.format)).astype(np.int64)


class CountsInFloat32(Keeps):
    """Counts are float32: 2^24 and one more is 2^24."""

    killed_by = "QB-HIST-EXACT"
    balancer_class = Narrow


class CountsInFloat16(Keeps):
    """Counts are float16: 2^11 and one more is 2^11."""

    killed_by = "QB-HIST-EXACT"

    class balancer_class(Narrow):  # noqa: N801
        format = "float16"

        def narrowed(self, counts_NB: Array) -> Array:
            return super().narrowed(np.minimum(counts_NB, 60_000))


class CountsInInt16(Keeps):
    """Counts are int16, and no state can be loaded."""

    killed_by = "QB-HIST-MANY"

    class balancer_class(Narrow):  # noqa: N801
        format = "int16"
        load_state_dict: Any = property(lambda self: (_ for _ in ()).throw(AttributeError()))


class CountsInUint8(Keeps):
    """Counts are uint8."""

    killed_by = "QB-HIST-EXACT"

    class balancer_class(Narrow):  # noqa: N801
        format = "uint8"


class CastRoundsCounts(Keeps):
    """A cast of the module takes the counts with it, and brings them back as integers."""

    killed_by = "QB-HIST-EXACT"

    class balancer_class(Kept):  # noqa: N801
        def to(self, dtype: str) -> None:
            self.histogram = self.histogram.astype(number_format(dtype)).astype(np.int64)


class CastRoundsBias(Keeps):
    """A cast of the module rounds the bias."""

    killed_by = "QB-HIST-MODEL"

    class balancer_class(Kept):  # noqa: N801
        def to(self, dtype: str) -> None:
            self.write(self.bias.astype(number_format(dtype)).astype(np.float64))


class RecomputationCounted(Keeps):
    """Both forwards under activation checkpointing are counted."""

    killed_by = "QB-REPLAY"

    class balancer_class(Kept):  # noqa: N801
        def observe_recomputed(self, logits_MN: Array) -> None:
            self.observe(logits_MN)
            self.observe(logits_MN)


class CheckpointedNotCounted(Keeps):
    """Neither forward is counted: the first runs without gradients, which reads as evaluation."""

    killed_by = "QB-REPLAY"

    class balancer_class(Kept):  # noqa: N801
        def observe_recomputed(self, logits_MN: Array) -> None:
            self.observe(logits_MN, training=False)
