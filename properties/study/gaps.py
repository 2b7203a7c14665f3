"""How far a descent's dual values lie above the optimum, and what rounding alone explains.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import lp_oracle
from lp_oracle import certified_optimum
from properties.errors import UnknownError
from properties.judgement.optimality.optimum import Optimum
from properties.protocol import Array

ROUNDOFF = 2.0**-53

__all__ = ["Gaps", "Known", "Pair", "descent_rounding", "gaps_of", "known_at_scale", "known_from"]

Pair = tuple[lp_oracle.TokenRule, lp_oracle.ExpertRule]


@dataclass(frozen=True)
class Known:
    """The optimum is at least ``value`` and at most ``value + width``, up to rounding in both."""

    value: float
    width: float

    @property
    def rounding(self) -> float:
        """Half a unit each for ``value`` and for subtracting it from a number near it."""
        return 4.0 * ROUNDOFF * abs(self.value)


def known_from(optimum: Optimum) -> Known:
    """What ``linprog`` found, bracketed in rationals."""
    return Known(float(optimum.lower), float(optimum.upper - optimum.lower))


def known_at_scale(scores_MN: Array, top_k: int) -> Known:
    """What ``certified_optimum`` found. Raises UnknownError where it has no certificate."""
    found = certified_optimum(scores_MN, top_k)
    if not found.certified:
        raise UnknownError(f"no certificate: the gap is {found.gap!r} at {scores_MN.shape}")
    return Known(found.objective, found.gap)


def evaluation_rounding(trace: lp_oracle.DescentTrace) -> float:
    """``dual_radius`` at multipliers as large as any that the descent met."""
    problem = trace.problem
    travelled = np.cumsum(trace.increments, axis=0)
    beta = float(np.abs(travelled).max()) if trace.rounds else 0.0
    alpha = float(np.abs(problem.scores).max()) + beta  # it lies between entries of s - beta
    alpha_M, beta_N = np.full(problem.m, alpha), np.full(problem.n, beta)
    return lp_oracle.dual_radius(problem.scores, alpha_M, beta_N, problem.top_k)


def descent_rounding(trace: lp_oracle.DescentTrace) -> float:
    """How far rounding can put a float64 descent's dual value from the exact descent's.

    A round errs by at most ``trace.radius`` in each beta_j, and is non-expansive: after R rounds
    beta is off by R times that. D has slopes between q - M and q in beta_j, between k - N and k in
    alpha_i; evaluating it comes on top.
    """
    m, n, top_k = trace.problem.m, trace.problem.n, trace.problem.top_k
    load = float(trace.problem.load)
    experts = n * max(load, m - load) * trace.rounds * trace.radius
    tokens = m * max(top_k, n - top_k) * trace.radius
    return evaluation_rounding(trace) + experts + tokens


@dataclass(frozen=True)
class Gaps:
    """The gap of every round relative to the optimum (round 0 is the start), and the first at 0.

    A gap is 0 where it is at most ``allowed``: what rounding and the bracket of the optimum explain
    (all relative to the optimum). ``reached`` is None where no round is. ``falling`` says that the
    last round allowed still lowered D, beyond rounding and below all before it.
    """

    relative: tuple[float, ...]
    allowed: float
    reached: int | None
    falling: bool

    @property
    def best(self) -> float:
        """The smallest gap of any round: 0 if the optimum is reached."""
        return min(self.relative)


def gaps_of(trace: lp_oracle.DescentTrace, known: Known) -> Gaps:
    """The gaps of a descent from b = 0 on float64 scores that are not negative."""
    allowed = known.width + known.rounding + descent_rounding(trace)
    distances = [float(value) - known.value for value in trace.dual_values]
    size = known.value if known.value > 0.0 else 1.0  # an optimum of 0: all scores are 0
    relative = [gap / size if gap > allowed else 0.0 for gap in distances]
    reached = next((t for t, gap in enumerate(relative) if gap == 0.0), None)
    falling = (
        reached is None
        and trace.outcome == "unfinished"
        and min(distances[:-1]) - distances[-1] > 2.0 * evaluation_rounding(trace)
    )
    return Gaps(tuple(relative), allowed / size, reached, falling)
