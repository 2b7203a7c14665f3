"""The optimum of the balanced assignment problem at the size of a training batch, certified.

``certified_optimum`` rounds the scores to 64-bit integers and solves that problem without further
rounding: midpoint rounds on samples and then on all tokens (``sampled_descent``), augmentation
along the few edges near zero margin (``near_edges``, ``augmentation``), and multipliers with strict
margins where there are any (``strictness``). What comes of it is checked on every edge, against the
scores as they were given.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from lp_oracle.at_scale.augmentation import Augmentation, OverflowingMultipliersError
from lp_oracle.at_scale.grid import (
    SCORE_BITS,
    Range,
    ScoreGrid,
    deciding_range,
    fits_float64,
    score_grid,
    token_blocks,
)
from lp_oracle.at_scale.sampled_descent import starting_multipliers
from lp_oracle.at_scale.strictness import make_strict
from lp_oracle.problem import (
    SMALLEST,
    UNIT_ROUNDOFF,
    Array,
    checked_top_k,
    exact,
    require_finite,
    require_real,
    require_summable,
    score_matrix,
)

Proof: TypeAlias = Literal["strict margins", "complementary slackness", "gap", "none"]

# Relative to sum |s| x: what a gap may be and still count as rounding.
GAP_TOLERANCE = 2.0**-37

_FEWEST_BITS = 16
_FIRST_BITS = 8
_MORE_BITS = 4


@dataclass(frozen=True, eq=False)
class CertifiedOptimum:
    """An optimal assignment, multipliers that prove it, and how.

    ``assignment`` x (M, N): booleans where q is an integer, else float64 multiples of 1/g, g the
    denominator of q. ``token_multipliers`` alpha (M,) and ``expert_multipliers`` beta (N,) are
    float64; -beta is a selection bias. ``objective`` is sum s x, rounded; LP* lies above the sum
    by at most ``gap``, rounding included.

    ``proof`` says how that is known; all edges were checked in each case. "strict margins": every
    load is exactly q, and in every row of s - beta all chosen entries exceed all others, so x is
    the only optimum. "complementary slackness": it holds in integer arithmetic, and the scores were
    not rounded to get there, so x is optimal. In both cases ``gap`` is 0. "gap": the dual value
    lies above that of x by at most ``gap``, at most 2^-37 of sum |s| x. "none": by more than that,
    so x is a feasible assignment and not certified. ``phases`` counts those of the augmentation.
    """

    assignment: Array
    token_multipliers: Array
    expert_multipliers: Array
    objective: float
    gap: float
    proof: Proof
    phases: int

    @property
    def certified(self) -> bool:
        """Whether x is proved optimal, up to ``gap``."""
        return self.proof != "none"


def certified_optimum(
    scores: ArrayLike, top_k: int, *, progress: Callable[[str], None] | None = None
) -> CertifiedOptimum:
    """The optimum of max sum s x over rows of sum k, columns of sum m k / n, 0 <= x <= 1.

    ``scores`` (M, N) of any real dtype, for any top_k in 1..N and any ties; numbers that float64
    cannot hold are rounded, which ``gap`` includes, and never proved exactly. Memory is
    proportional to the scores, about 25 bytes each. ``progress`` is told in words how far it is.
    Raises what ``AssignmentProblem`` raises, and ValueError beyond 2^31 units of 1/g.
    """
    raw = _checked(scores)
    top_k = checked_top_k(top_k, raw.shape[1])
    require_summable(raw, raw.shape[0] * top_k)
    tell = progress if progress is not None else _silent
    deciding = deciding_range(raw, top_k)
    found = _optimum(raw, deciding, top_k, tell)
    if deciding is not None and not found.certified:
        tell("scores far from all cutoffs do decide; again with all of them")
        other = _optimum(raw, None, top_k, tell)
        found = min(found, other, key=lambda one: one.gap)
    return found


def _optimum(
    raw: Array, deciding: Range | None, top_k: int, tell: Callable[[str], None]
) -> CertifiedOptimum:
    for bits in range(SCORE_BITS, _FEWEST_BITS - 1, -8):
        try:
            grid = score_grid(raw, bits, deciding)
            return _verified(raw, grid, _solved(grid, top_k, tell))
        except OverflowingMultipliersError:
            tell(f"the multipliers outgrew scores of {bits} bits; again with coarser scores")
    raise ArithmeticError(f"no multipliers fit beside scores of {_FEWEST_BITS} bits")


def _checked(scores: ArrayLike) -> Array:
    raw = score_matrix(scores)
    if raw.dtype == np.dtype(object):
        return exact(raw)
    require_real(raw, "scores")
    if raw.dtype.kind not in "iub":
        require_finite(raw, "scores")
    return raw


def _silent(message: str) -> None:
    del message


def _solved(grid: ScoreGrid, top_k: int, tell: Callable[[str], None]) -> Augmentation:
    m, n = grid.levels.shape
    parts = Fraction(m * top_k, n).denominator
    tell(f"rounds on {m} tokens and {n} experts")
    beta_N = starting_multipliers(grid.levels, top_k)
    solved = Augmentation(grid.levels, top_k, parts, beta_N)
    if not solved.complete(tell, patient=False):
        solved = _scaled(grid.levels, top_k, parts, tell)
    make_strict(solved)
    return solved


def _scaled(levels_MN: Array, top_k: int, parts: int, tell: Callable[[str], None]) -> Augmentation:
    """Solve for the leading bits of the scores, then for a few more at a time.

    Multipliers of the leading bits are off by few units of the next ones, and so are all shortest
    paths: there are few different distances, and few phases (Edmonds and Karp 1972 scale
    capacities so, Gabow 1985 the costs). Needed where near-ties let midpoint rounds creep.
    """
    shift = max(0, int(np.abs(levels_MN).max()).bit_length() - _FIRST_BITS)
    beta_N = starting_multipliers(levels_MN >> shift, top_k)
    while True:
        tell(f"leading bits of the scores, {shift} left out")
        solved = Augmentation(levels_MN >> shift, top_k, parts, beta_N)
        solved.complete(tell, patient=True)
        if shift == 0:
            return solved
        step = min(_MORE_BITS, shift)
        shift, beta_N = shift - step, solved.beta << step


def _verified(raw: Array, grid: ScoreGrid, solved: Augmentation) -> CertifiedOptimum:
    """What ``solved`` found, judged by the scores and these multipliers alone."""
    x_MN = solved.assignment()
    _require_feasible(x_MN, solved.top_k, solved.parts)
    alpha_M, beta_N = grid.values(solved.alpha), grid.values(solved.beta)
    if grid.is_exact:
        pair = _Pair(grid.levels, x_MN, solved.alpha, solved.beta, fits=True)
        unit = float(grid.values(np.ones(1))[0])
    else:
        unit = 1.0
        pair = _Pair(raw, x_MN, alpha_M, beta_N, fits=fits_float64(raw))
    objective, size = _value(raw, x_MN)
    strict, gap = pair.judged()
    proof = _proof(strict, gap, size / unit)
    return CertifiedOptimum(
        assignment=x_MN,
        token_multipliers=alpha_M,
        expert_multipliers=beta_N,
        objective=objective,
        gap=gap * unit,
        proof=proof,
        phases=solved.phases,
    )


def _require_feasible(x_MN: Array, top_k: int, parts: int) -> None:
    """Exact row and column sums: the augmentation guarantees them, and this is not taken on trust.

    Multiples of 1 / parts sum up to an error far below half of that.
    """
    m, n = x_MN.shape
    rows = np.rint(x_MN.sum(axis=1) * parts)
    columns = np.rint(x_MN.sum(axis=0) * parts)
    if (rows != top_k * parts).any() or (columns != m * top_k * parts // n).any():
        raise AssertionError("the augmentation left rows or columns with wrong sums")


def _value(scores_MN: Array, x_MN: Array) -> tuple[float, float]:
    """sum s x and sum |s| x."""
    used = np.nonzero(x_MN)
    gains = scores_MN[used].astype(np.float64) * x_MN[used]
    return math.fsum(gains.tolist()), math.fsum(np.abs(gains).tolist())


def _proof(strict: bool, gap: float, size: float) -> Proof:
    if strict:
        return "strict margins"
    if gap == 0.0:
        return "complementary slackness"
    return "gap" if gap <= GAP_TOLERANCE * size else "none"


@dataclass(frozen=True, eq=False)
class _Pair:
    """Scores s and x (M, N), alpha (M,) and beta (N,) in one unit; multipliers int64 or float64.

    ``fits``: the scores are numbers of the multipliers' type, so that converting them is exact.
    """

    scores: Array
    x: Array
    alpha: Array
    beta: Array
    fits: bool

    def judged(self) -> tuple[bool, float]:
        """Whether every choice is strict, and how far the dual value can lie above sum s x.

        The latter in the unit of the scores.

        With rows of sum k and columns of sum q the difference of the two values is a sum over
        edges, (1 - x) max(0, p) + x max(0, -p). Strictness compares entries of s - beta within a
        row; rounding is monotone, so what is larger as rounded is larger. Scores that had to be
        rounded to float64 are off by u |s| before that.
        """
        strict, gap = self.x.dtype == np.bool_, 0.0
        for block in token_blocks(*self.x.shape):
            x, scores = self.x[block], self.scores[block].astype(self.beta.dtype)
            reduced = scores - self.beta
            p = reduced - self.alpha[block, None]
            lost = 0 if self.fits else 2.0 * UNIT_ROUNDOFF * (np.abs(scores) + np.abs(reduced))
            strict = strict and _is_strict(reduced, x, lost)
            error = _margin_error(reduced, p) + lost
            above, below = np.maximum(p + error, 0), np.maximum(error - p, 0)
            gap += float(above[x == 0].sum() + below[x == 1].sum())
            if x.dtype != np.bool_:
                split = (x > 0) & (x < 1)
                gap += float(np.maximum(above, below)[split].sum())
        return strict, 0.0 if strict else gap * (1.0 + self.x.size * UNIT_ROUNDOFF)


def _margin_error(reduced: Array, p: Array) -> Array | int:
    """Rounding of (s - beta) - alpha: u of either difference, doubled for terms in u^2."""
    if p.dtype.kind == "i":
        return 0
    error: Array = 2.0 * UNIT_ROUNDOFF * (np.abs(reduced) + np.abs(p)) + SMALLEST
    return error


def _is_strict(reduced: Array, x: Array, lost: Array | float) -> bool:
    """Whether every chosen entry exceeds every other of its row, each being off by ``lost``."""
    if x.all():
        return True
    low, high = reduced - lost, reduced + lost
    least = np.where(x, low, high.max(axis=1, keepdims=True)).min(axis=1)
    most = np.where(x, low.min(axis=1, keepdims=True), high).max(axis=1)
    return bool((least > most).all())
