"""Judging a bias that came out of Quantile Balancing, when only its differences are determined.

An update returns b = b̂ - mean(b̂) in floating point. Each b̂_j is a statistic of the required
biases r_:,j = alpha - s_:,j, whose float values differ between implementations; the mean is common
to all experts. So the question is always the same: is there *one* constant c that puts every
b_j + c where a legal rule may find b̂_j?

Legend: M valid tokens, N routed experts, B histogram bins. k = top_k, m = M, n = N, q = m k / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import reference_numpy as reference
from properties.checks import note_ratio
from properties.errors import UnknownError, ViolationError
from properties.judgement.routing import cutoff_ball, scored
from properties.protocol import Array
from properties.rounding import Arithmetic, Ball
from properties.subject import Subject

__all__ = [
    "Allowed",
    "Bins",
    "Reading",
    "allowed",
    "exactly",
    "interpolation_rounding",
    "mean_rounding",
    "one_rounding",
    "order_statistics",
    "rank_rounding",
    "readings",
    "require_some_constant",
    "required_biases",
]


# Required biases with radii ------------------------------------------------------------------


def required_biases(subject: Subject, logits_MN: Array, bias_N: Array, top_k: int) -> Any:
    """r_ij = alpha_i - s_ij, a ball (M, N), with the cutoff alpha_i of Eq. 14."""
    scores, biased = scored(subject, logits_MN, bias_N)
    if subject.conventions.score_domain == "logit":
        scores = subject.routing_ball(logits_MN)
    r_MN: Any = reference.required_bias(scores, cutoff_ball(biased, top_k))
    return r_MN


def order_statistics(columns: Any, ranks: tuple[int, ...]) -> list[tuple[Array, Array, Array]]:
    """For each rank, counted from 1: (value, least, most), each (N,), of that smallest per column.

    Among numbers in intervals, the rank-th smallest lies between that of the lower ends and that of
    the upper ends, whatever ties there are. Ranks beyond M read the M-th.
    """
    value, radius = columns.value, columns.radius
    rows = [min(rank, len(value)) - 1 for rank in ranks]
    ends = [np.partition(end, rows, axis=0) for end in (value, value - radius, value + radius)]
    return [(ends[0][row], ends[1][row], ends[2][row]) for row in rows]


# Which statistics are legal ------------------------------------------------------------------


class Reading(NamedTuple):
    """Ranks between which a rule reads; ``inside`` is the least share of the gap kept to both."""

    low: int
    high: int
    inside: float = 0.0


def readings(rule: str, tokens: int, top_k: int, num_experts: int) -> list[Reading]:
    """What a rule of that name may read from ``tokens`` valid tokens: any one, for all experts.

    For integral q the names say it all; "interior" keeps from both ends at least half of what the
    linear quantile keeps, min(k/n, 1 - k/n) of the gap. The sources assume an integral q. For any
    other, "q" is the ceil(q)-th smallest, where App. D's counts lead and the only minimiser of the
    dual; "q+1" is the smallest rank above q, which is that one again, or the one after it. Every
    other rule may lie between the (ceil(q) + 1)-th and the last rank below the linear quantile's,
    q + 1 - k/n: below, because in floating point that rank may fall short of an integer.
    """
    target = reference.target_rank(tokens, top_k, num_experts)
    integral = tokens * top_k % num_experts == 0
    if rule == "q":
        return [Reading(target, target)]
    if rule == "q+1":
        ranks = [target + 1] if integral else [target, target + 1]
        return [Reading(rank, rank) for rank in ranks]
    share = top_k / num_experts
    inside = min(share, 1.0 - share) / 2 if rule == "interior" and integral else 0.0
    below_linear = 1 + ((tokens - 1) * top_k - 1) // num_experts
    return [Reading(max(below_linear, 1), target + 1, inside)]


@dataclass(frozen=True)
class Allowed:
    """Per expert: the numbers low to high that b̂_j may be, and how far rounding carries it out."""

    low: Array
    high: Array
    below: Array
    above: Array

    @property
    def size(self) -> Array:
        """The largest absolute value in reach, (N,)."""
        size: Array = np.maximum(np.abs(self.low - self.below), np.abs(self.high + self.above))
        return size

    def widened(self, width: float, slip: float) -> Allowed:
        """Allow ``width`` more on both sides, itself known up to ``slip``."""
        return Allowed(self.low - width, self.high + width, self.below + slip, self.above + slip)


def exactly(values_N: Array) -> Allowed:
    """b̂_j has to be this very number."""
    zero = np.zeros(values_N.shape)
    return Allowed(values_N, values_N, zero, zero)


def allowed(r_MN: Any, reading: Reading) -> Allowed:
    """Where b̂ may lie that is read from the required biases (M, N) of the valid tokens."""
    lowest, highest = order_statistics(r_MN, (reading.low, reading.high))
    (lower, lower_least, lower_most), (upper, upper_least, upper_most) = lowest, highest
    inside, outside = reading.inside, 1.0 - reading.inside
    low, high = outside * lower + inside * upper, inside * lower + outside * upper
    below = low - (outside * lower_least + inside * upper_least)
    above = inside * lower_most + outside * upper_most - high
    if reading.low < reading.high:
        spread = interpolation_rounding(np.maximum(np.abs(lower), np.abs(upper)), r_MN.arithmetic)
        below, above = below + spread, above + spread
    return Allowed(low, high, below, above)


# Rounding of what follows the statistic ------------------------------------------------------


def one_rounding(values: Array, arithmetic: Arithmetic) -> Array:
    """How far a sum or difference may be from its exact value, given the rounded one."""
    rule = arithmetic.rules["add"]
    return np.abs(values) * (rule.share * (1.0 + 2.0 * rule.share)) + rule.underflow


def interpolation_rounding(size_N: Array, arithmetic: Arithmetic) -> Array:
    """The rounding of t x + (1 - t) y for numbers up to that size, whatever the share t."""
    ball: Any = Ball.exact(size_N, arithmetic)
    radius: Array = (ball * (1.0 / 3.0) + ball * (2.0 / 3.0)).radius
    return radius


def mean_rounding(size_N: Array, arithmetic: Arithmetic) -> float:
    """The rounding of a mean over numbers up to those sizes, summed in any order."""
    mean: Any = np.mean(Ball.exact(size_N, arithmetic))
    return float(mean.radius)


def rank_rounding(tokens: int, top_k: int, num_experts: int, arithmetic: Arithmetic) -> float:
    """How far the linear quantile's rank (m - 1)(1 - k/n) may be off, computed in that format."""
    share = 1.0 - Ball.exact(float(top_k), arithmetic) / float(num_experts)
    return float((Ball.exact(float(tokens - 1), arithmetic) * share).radius)


class Bins(NamedTuple):
    """Bins of App. D: the range's ends, the bin width, and the rounding of binning and reading.

    ``slip`` is how far a value may be from its bin's edge and be counted beyond it, plus how far
    a position that is read from the bins may be from where the exact edges put it.
    """

    low: float
    high: float
    width: float
    slip: float

    @classmethod
    def of(cls, bias_N: Array, num_bins: int, arithmetic: Arithmetic) -> Bins:
        """``num_bins`` equal bins of [min b - 1, max b + 1]."""
        low = Ball.exact(bias_N.min(), arithmetic) - 1.0
        high = Ball.exact(bias_N.max(), arithmetic) + 1.0
        width = (high - low) / float(num_bins)
        slip = 0.0
        for end in (low.value, high.value):
            there_and_back = low + (Ball.exact(end, arithmetic) - low) / width * width
            slip += float(there_and_back.radius) + abs(float(there_and_back.value - end))
        return cls(float(low.value), float(high.value), float(width.value), slip)


# Verdicts ------------------------------------------------------------------------------------


def require_some_constant(
    subject: Subject, bias_N: Array, choices: list[Allowed], what: str
) -> None:
    """Require one constant c, and one of ``choices``, that put every b_j + c where b̂_j may lie.

    c exists exactly if no expert needs a larger one than another allows. The last rounding of each
    b_j, where the mean was subtracted, is granted here. Raises ViolationError naming two experts.
    """
    if not np.isfinite(bias_N).all():
        raise ViolationError(f"{what} is not finite: {bias_N}")
    rounding = one_rounding(bias_N, subject.routing_arithmetic())
    if not all(np.isfinite([choice.below, choice.above]).all() for choice in choices):
        raise UnknownError(f"{what}: no finite radius")
    judged = [_conflict(bias_N, choice, rounding) for choice in choices]
    conflict = min(judged, key=lambda each: each.ratio)
    note_ratio(subject, conflict.ratio, what)
    if conflict.ratio > 1.0:
        raise ViolationError(f"{what}: {conflict.told(bias_N)}")


class _Conflict(NamedTuple):
    """The expert that needs the largest c, the one that allows the least, and what they say."""

    ratio: float
    needing: int
    allowing: int
    least: float
    most: float

    def told(self, bias_N: Array) -> str:
        i, j = self.needing, self.allowing
        return (
            "no constant c puts every b_j + c into its interval: "
            f"b[{i}] = {bias_N[i]!s} needs c >= {self.least!s}, "
            f"b[{j}] = {bias_N[j]!s} needs c <= {self.most!s} "
            f"(excess / radius = {self.ratio:.4g})"
        )


def _conflict(bias_N: Array, choice: Allowed, rounding_N: Array) -> _Conflict:
    """Whether some c fits, the excess being in units of the two experts' radii."""
    below, above = choice.below + rounding_N, choice.above + rounding_N
    least, most = choice.low - bias_N, choice.high - bias_N
    i, j = int(np.argmax(least - below)), int(np.argmin(most + above))
    excess, radius = float(least[i] - most[j]), float(below[i] + above[j])
    ratio = 0.0
    if excess > 0.0:
        ratio = excess / radius if radius > 0.0 else np.inf
    return _Conflict(ratio, i, j, float(least[i]), float(most[j]))
