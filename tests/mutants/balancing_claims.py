"""Balancers that do not keep what is told of Quantile Balancing.

``killed_by`` names the claim that has to catch it. Legend: M tokens, N routed experts,
B histogram bins.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array
from tests.mutants.histogram import Balanced, Histogram


class Damped(Histogram):
    """Goes a part of the way to the estimate."""

    share = 1.0

    def finished(self, estimate: Array) -> Array:
        return self.bias + self.share * (super().finished(estimate) - self.bias)


class HalfWay(Balanced):
    """Every update goes half of the way, as a moving average of biases would."""

    killed_by = "QB-ONESTEP"

    class balancer_class(Damped):  # noqa: N801
        share = 0.5


class TurnedAround(Balanced):
    """Overloaded experts are made more attractive."""

    killed_by = "QB-ONESTEP"

    class balancer_class(Damped):  # noqa: N801
        share = -1.0


class AThirdOfTheWay(Balanced):
    """Five updates get as far as two."""

    killed_by = "QB-PAPER"

    class balancer_class(Damped):  # noqa: N801
        share = 0.3


class ExpertsAtRandom(Balanced):
    """Noise in the bias evens nothing out."""

    killed_by = "QB-PAPER"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            noise = np.random.default_rng(0).standard_normal(estimate.shape)
            return super().finished(estimate + 0.05 * noise)


class FewBinsUnlessManyAreAsked(Balanced):
    """A thousand bins are read as twenty."""

    killed_by = "QB-BINS"

    class balancer_class(Histogram):  # noqa: N801
        def counts(self, r_MN: Array) -> Array:
            low, high = self.range()
            width = (high - low) / max(self.num_bins // 50, 1)
            rounded = low + (np.floor((r_MN - low) / width) + 0.5) * width
            return super().counts(rounded if self.num_bins <= 1000 else r_MN)


class WideRange(Balanced):
    """The range is ten times as wide as scores need, which only many bins make up for."""

    killed_by = "QB-BINS"

    class balancer_class(Histogram):  # noqa: N801
        def range(self) -> tuple[float, float]:
            low, high = super().range()
            return 20.0 * low, 20.0 * high


class SignUpdate(Balanced):
    """DeepSeek-V3's update under another name."""

    killed_by = "QB-VS-SIGN"

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            return self.bias + 1e-3 * np.sign(super().finished(estimate) - self.bias)


class SmallSteps(Balanced):
    """A twentieth of the way, for the sake of smooth training."""

    killed_by = "QB-VS-SIGN"

    class balancer_class(Damped):  # noqa: N801
        share = 0.05
