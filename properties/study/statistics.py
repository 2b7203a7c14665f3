"""The statistics of the study: shares with intervals, and the exponent of a power law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest, linregress, t

CONFIDENCE = 0.95

__all__ = ["CONFIDENCE", "PowerLaw", "Share", "power_law"]


@dataclass(frozen=True)
class Share:
    """``hits`` of ``of`` independent instances, and the 95 % Wilson interval of the probability."""

    hits: int
    of: int
    low: float
    high: float

    @classmethod
    def count(cls, hits: int, of: int) -> Share:
        """Without instances nothing is known: the interval is [0, 1]."""
        if of == 0:
            return cls(0, 0, 0.0, 1.0)
        interval = binomtest(hits, of).proportion_ci(CONFIDENCE, method="wilson")
        return cls(hits, of, float(interval.low), float(interval.high))

    def __str__(self) -> str:
        if self.of == 0:
            return "none decided"
        return f"{self.hits / self.of:.0%} [{self.low:.0%}, {self.high:.0%}]"


@dataclass(frozen=True)
class PowerLaw:
    """y = factor x^exponent by least squares in logarithms, with the exponent's 95 % interval.

    The interval is Student's, for independent errors of log y. ``first`` and ``last`` are the ends
    of the range of x that was fitted, ``points`` how many were used, ``left_out`` how many in the
    range were not, because their y is 0.
    """

    first: int
    last: int
    exponent: float
    low: float
    high: float
    factor: float
    points: int
    left_out: int

    def __str__(self) -> str:
        return f"{self.exponent:.2f} [{self.low:.2f}, {self.high:.2f}]"


def power_law(xs: Sequence[int], ys: Sequence[float], first: int, last: int) -> PowerLaw | None:
    """Fit all points with first <= x <= last and y > 0; None if fewer than three or all of one x.

    With two points a line fits exactly, and nothing is known of the error.
    """
    inside = [(x, y) for x, y in zip(xs, ys, strict=True) if first <= x <= last]
    used = [(math.log(x), math.log(y)) for x, y in inside if y > 0.0]
    if len(used) < 3 or len({x for x, _ in used}) < 2:
        return None
    line = linregress([x for x, _ in used], [y for _, y in used])
    exponent, error = float(line.slope), float(line.stderr)
    reach = float(t.ppf((1.0 + CONFIDENCE) / 2.0, len(used) - 2)) * error
    return PowerLaw(
        first=first,
        last=last,
        exponent=exponent,
        low=exponent - reach,
        high=exponent + reach,
        factor=math.exp(float(line.intercept)),
        points=len(used),
        left_out=len(inside) - len(used),
    )
