"""Judging a certified optimum by its own numbers: in rationals, or at scale in float64.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

import lp_oracle
from properties.checks import require
from properties.judgement.optimality.certificate import exact_routing
from properties.judgement.optimality.descent import load_of
from properties.judgement.optimality.optimum import exact_dual, value_of, written
from properties.protocol import Array

__all__ = ["LargeOptimum", "require_large_optimum", "require_proof"]

ROUNDOFF = 2.0**-53
BLOCK = 512


def require_proof(scores_MN: Array, top_k: int, found: lp_oracle.CertifiedOptimum) -> None:
    """Require x to be feasible, and what ``found.proof`` says to be true, in rational arithmetic.

    Raises ViolationError.
    """
    told = f"{found.proof!r}, gap {found.gap!r}: {written(scores_MN, top_k)}"
    load = load_of(scores_MN, top_k)
    parts = load.denominator
    counts_MN = np.rint(found.assignment * float(parts)).astype(np.int64)
    away = np.abs(found.assignment * float(parts) - counts_MN).max()
    require(away <= parts * ROUNDOFF, f"x is not in parts of 1/{parts}, {told}")
    require((counts_MN >= 0) & (counts_MN <= parts), f"x leaves [0, 1], {told}")
    require(counts_MN.sum(axis=1) == top_k * parts, f"the rows do not sum to {top_k}, {told}")
    require(counts_MN.sum(axis=0) == load.numerator, f"the columns do not sum to {load}, {told}")
    x_MN = counts_MN if parts == 1 else counts_MN.astype(object) * Fraction(1, parts)
    value = value_of(scores_MN, x_MN)
    size = value_of(np.abs(scores_MN), x_MN)
    # Each product rounds once where x is a fraction, and the sum of them once.
    rounding = 4.0 * ROUNDOFF * float(size)
    require(
        abs(Fraction(found.objective) - value) <= Fraction(rounding),
        f"the objective is {float(value)!r}, not {found.objective!r}, {told}",
    )
    multipliers = found.token_multipliers, found.expert_multipliers
    dual = exact_dual(scores_MN, *multipliers, top_k)
    if found.proof == "strict margins":
        routed = exact_routing(scores_MN, -found.expert_multipliers, top_k)
        same = np.array_equal(routed.assignment, counts_MN)
        require(routed.is_certified() and same, f"top-k of s - beta is not certified, {told}")
        require(found.gap == 0.0, f"a strict optimum has a gap, {told}")
    elif found.proof == "complementary slackness":
        require(dual == value, f"D = {float(dual)!r} is not {float(value)!r}, {told}")
        require(found.gap == 0.0, f"complementary slackness leaves a gap, {told}")
    else:
        excess = dual - value
        require(
            0 <= excess <= found.gap,
            f"D lies {float(excess)!r} above the value of x, {told}",
        )


class LargeOptimum:
    """What is recomputed at scale: ``value``, ``gap`` with its ``radius``, and ``margin``."""

    def __init__(self, scores_MN: Array, top_k: int, found: lp_oracle.CertifiedOptimum) -> None:
        """Sum primal and dual value, and compare the sign of every margin with x."""
        m, n = scores_MN.shape
        self.load = m * top_k // n
        self.x = found.assignment
        alpha_M, beta_N = found.token_multipliers, found.expert_multipliers
        gains, hinges, sizes = [], [], []
        self.margin, self.disagreeing = math.inf, 0
        for start in range(0, m, BLOCK):
            rows = slice(start, min(m, start + BLOCK))
            s, x = scores_MN[rows], self.x[rows]
            p = s - alpha_M[rows, None] - beta_N
            gains.append(math.fsum(s[x].tolist()))
            hinges.append(math.fsum(p[p > 0].tolist()))
            sizes.append(float((np.abs(s[x]) + np.abs(p[x])).sum()))
            self.margin = min(self.margin, float(np.abs(p).min()))
            self.disagreeing += int(np.count_nonzero((p > 0) != x))
        multipliers = [
            top_k * math.fsum(alpha_M.tolist()),
            m * top_k / n * math.fsum(beta_N.tolist()),
        ]
        self.value = math.fsum(gains)
        self.gap = math.fsum([*multipliers, *hinges, -self.value])
        # A hinge rounds two differences and its block's sum, a gain its block's sum; multipliers
        # round a sum and two products.
        largest = float(np.abs(scores_MN).max() + np.abs(alpha_M).max() + np.abs(beta_N).max())
        differences = 4.0 * largest * m * top_k
        self.radius = ROUNDOFF * (differences + 4.0 * sum(sizes) + 4.0 * sum(map(abs, multipliers)))
        self.margin_radius = 4.0 * ROUNDOFF * largest


def require_large_optimum(
    scores_MN: Array, top_k: int, found: lp_oracle.CertifiedOptimum
) -> LargeOptimum:
    """Require exact loads, equal values within radius, and every margin on the side of x.

    Raises ViolationError.
    """
    judged = LargeOptimum(scores_MN, top_k, found)
    require(judged.x.sum(axis=1) == top_k, f"a row does not sum to {top_k}")
    require(judged.x.sum(axis=0) == judged.load, f"an expert does not have load {judged.load}")
    require(
        judged.disagreeing == 0,
        f"{judged.disagreeing} edges have margins on the wrong side of zero",
    )
    require(
        abs(judged.gap) <= judged.radius,
        f"D - sum s x = {judged.gap!r}, which exceeds its rounding {judged.radius:.3g}",
    )
    require(
        judged.margin > judged.margin_radius,
        f"the least margin {judged.margin!r} could be rounding ({judged.margin_radius:.3g})",
    )
    return judged
