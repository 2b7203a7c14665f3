"""The dual, its blocks and its descent, without rounding and without asking the oracle.

Legend: M tokens, N routed experts; V vertices of one side with E edges each: (V, E) is (M, N) for
tokens and (N, M) for experts. q = M top_k / N is the target load.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

import lp_oracle
from properties.checks import note_ratio, require
from properties.judgement.optimality.fixed_points import Pair
from properties.judgement.optimality.optimum import exact_dual, on_one_grid, written
from properties.protocol import Array
from properties.strategies.optimality import DescentInputs
from properties.subject import Subject

ROUNDOFF = 2.0**-53
SMALLEST = 2.0**-1074

__all__ = [
    "Round",
    "block_excess",
    "block_rounding",
    "load_of",
    "replayed",
    "require_block_minimum",
    "require_interval",
    "require_reported_dual",
]


def load_of(scores_MN: Array, top_k: int) -> Fraction:
    """q = m k / n."""
    m, n = scores_MN.shape
    return Fraction(m * top_k, n)


# The dual and its blocks ---------------------------------------------------------------------


def require_reported_dual(
    subject: Subject, scores_MN: Array, top_k: int, alpha_M: Array, beta_N: Array
) -> Fraction:
    """D without rounding; the oracle's value must lie within the radius that it states."""
    value = exact_dual(scores_MN, alpha_M, beta_N, top_k)
    told = lp_oracle.dual_objective(scores_MN, alpha_M, beta_N, top_k)
    radius = lp_oracle.dual_radius(scores_MN, alpha_M, beta_N, top_k)
    error = float(abs(Fraction(told) - value))
    if error > 0.0:
        note_ratio(subject, error / radius if radius > 0.0 else np.inf, "dual objective")
    where = f"alpha = {alpha_M.tolist()}, beta = {beta_N.tolist()}, {written(scores_MN, top_k)}"
    require(error <= radius, f"D is {float(value)!r}, not {float(told)!r} ± {radius:.3g}: {where}")
    return value


def block_excess(
    scores_VE: Array, fixed_E: Array, points_V: Array, weight: Fraction
) -> list[Fraction]:
    """How far each point is from minimising f_v(a) = weight a + sum_e max(0, s_ve - fixed_e - a).

    f_v is convex and linear between its breakpoints s_ve - fixed_e, and grows to both sides where
    0 < weight < E: so its least value is the least one at a breakpoint.
    """
    (s_VE, fixed, points), unit = on_one_grid(scores_VE, fixed_E, points_V)
    reduced_VE = s_VE - fixed
    places = np.concatenate([points[:, None], reduced_VE], axis=1)
    hinges = np.maximum(reduced_VE[:, None, :] - places[:, :, None], 0).sum(axis=2)
    values = weight.numerator * places + weight.denominator * hinges
    excess = values[:, 0] - values[:, 1:].min(axis=1)
    return [Fraction(int(value), unit * weight.denominator) for value in excess]


def block_rounding(scores_VE: Array, fixed_E: Array, weight: Fraction) -> Array:
    """What one float64 half step may add to each f_v, (V,).

    Every fl(s - fixed) errs by at most u |s - fixed|; an order statistic, or a point clipped to the
    interval between two of them, moves by no more than the largest such error; and f_v has slopes
    between weight - E and weight.
    """
    error_V = ROUNDOFF * np.abs(scores_VE - fixed_E).max(axis=1) + SMALLEST
    slope = max(float(weight), scores_VE.shape[1] - float(weight))
    bound: Array = slope * error_V
    return bound


def require_block_minimum(
    scores_VE: Array, fixed_E: Array, points_V: Array, weight: Fraction, what: str
) -> None:
    """Require each point to minimise its f_v: exactly for integer scores, else up to rounding."""
    excess = block_excess(scores_VE, fixed_E, points_V, weight)
    allowed = np.zeros(len(excess))
    if scores_VE.dtype.kind == "f":
        allowed = block_rounding(scores_VE, fixed_E, weight)
    for vertex, (value, most) in enumerate(zip(excess, allowed.tolist(), strict=True)):
        require(
            value <= most,
            f"{what}: {points_V[vertex]} at vertex {vertex} lies {float(value):.6g} above the "
            f"block's minimum (weight {weight}, reduced scores "
            f"{(scores_VE - fixed_E)[vertex].tolist()})",
        )


def require_interval(
    scores_VE: Array, fixed_E: Array, interval: lp_oracle.Interval, weight: Fraction, what: str
) -> None:
    """Require both ends to minimise and, for integer scores, nothing outside to do so."""
    for end in interval:
        require_block_minimum(scores_VE, fixed_E, end, weight, f"{what} interval")
    if scores_VE.dtype.kind == "f":
        return
    step = Fraction(1, 7)  # any number: f is strictly larger everywhere outside
    for outside in (interval.lower - step, interval.upper + step):
        excess = block_excess(scores_VE, fixed_E, outside, weight)
        require(min(excess) > 0, f"{what} interval {interval} leaves minimisers out")


class Round(NamedTuple):
    """D without rounding, as the oracle reports it, and what rounding may add to it in a round."""

    value: Fraction
    reported: Fraction | float
    allowed: float


def replayed(subject: Subject, inputs: DescentInputs, pair: Pair, rounds: int) -> list[Round]:
    """The start and so many rounds, taken step by step; see ``require_reported_dual``."""
    s_MN, top_k = inputs.problem.scores, inputs.problem.top_k
    load, count = load_of(s_MN, top_k), Fraction(top_k)
    is_float = s_MN.dtype.kind == "f"
    taken: list[Round] = []
    beta, rise = inputs.start, 0.0
    while True:
        alpha = lp_oracle.token_step(s_MN, beta, top_k, rule=pair[0])
        rise += float(block_rounding(s_MN, beta, count).sum()) if is_float else 0.0
        value = require_reported_dual(subject, s_MN, top_k, alpha, beta)
        reported = lp_oracle.dual_objective(s_MN, alpha, beta, top_k)
        taken.append(Round(value, reported, rise))
        if len(taken) > rounds:
            return taken
        beta = lp_oracle.expert_step(s_MN, alpha, top_k, rule=pair[1])
        rise = float(block_rounding(s_MN.T, alpha, load).sum()) if is_float else 0.0
