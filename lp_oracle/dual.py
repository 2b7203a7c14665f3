"""The dual of the balanced assignment problem, and what minimises it in one block.

    D(alpha, beta) = k sum_i alpha_i + q sum_j beta_j + sum_ij max(0, s_ij - alpha_i - beta_j)

(Appendix C of arXiv 2607.24653; beta = -b, the selection bias with its sign turned.) D is convex
and piecewise linear. With one block fixed, the minimisers of the other form an *interval* between
two order statistics, and which point of it is taken decides whether alternating minimisation jams.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lp_oracle.problem import Array, AssignmentProblem, Number


class Interval(NamedTuple):
    """A closed interval per token (M,) or per expert (N,)."""

    lower: Array
    upper: Array

    def contains(self, values: ArrayLike, radius: float = 0.0) -> Array:
        """Whether each value lies inside, up to ``radius``; booleans of the interval's shape."""
        points = np.asarray(values)
        # Differences first: a Fraction minus a float radius would no longer be exact.
        inside = (self.lower - points <= radius) & (points - self.upper <= radius)
        return np.asarray(inside, dtype=bool)


def dual_objective(
    scores: ArrayLike, token_multipliers: ArrayLike, expert_multipliers: ArrayLike, top_k: int
) -> Number:
    """D at alpha_M, beta_N: a ``Fraction`` for integer or ``Fraction`` scores, else a float.

    Raises what ``AssignmentProblem`` raises, and ValueError for multipliers of a wrong shape.
    """
    problem, alpha_M, beta_N = _checked(scores, token_multipliers, expert_multipliers, top_k)
    return dual_value(problem, alpha_M, beta_N)


def dual_radius(
    scores: ArrayLike, token_multipliers: ArrayLike, expert_multipliers: ArrayLike, top_k: int
) -> float:
    """How far ``dual_objective`` can lie from D of these float64 numbers; 0 for exact scores.

    With u = 2^-53: a hinge costs two roundings, so at most 2u(|s| + |alpha| + |beta|) plus terms in
    u^2; the products with k and q cost one and two; the sum itself is rounded once (``math.fsum``).
    """
    problem, alpha_M, beta_N = _checked(scores, token_multipliers, expert_multipliers, top_k)
    multipliers = problem.top_k * np.abs(alpha_M).sum() + float(problem.load) * np.abs(beta_N).sum()
    edges = np.abs(problem.scores) + np.abs(alpha_M)[:, None] + np.abs(beta_N)
    underflow = problem.rounding(problem.n, 0.0)
    return underflow + problem.rounding(4, float(multipliers + edges.sum()))


def dual_value(problem: AssignmentProblem, alpha_M: Array, beta_N: Array) -> Number:
    """``dual_objective`` for a problem and multipliers that are already checked."""
    hinge_MN = np.maximum(margins(problem, alpha_M, beta_N), 0)
    load = problem.number(problem.load)
    return total(problem, problem.top_k * alpha_M, load * beta_N, hinge_MN)


def total(problem: AssignmentProblem, *terms: Array) -> Number:
    """The sum over all entries of all arrays: exact for exact scores, else rounded once."""
    values = [value for term in terms for value in term.ravel().tolist()]
    return sum(values, Fraction(0)) if problem.is_exact else math.fsum(values)


def margins(problem: AssignmentProblem, alpha_M: Array, beta_N: Array) -> Array:
    """s_ij - alpha_i - beta_j, shape (M, N): positive where complementary slackness wants x = 1."""
    values: Array = (problem.scores - alpha_M[:, None]) - beta_N
    return values


def margin_radius(problem: AssignmentProblem, alpha_M: Array, beta_N: Array) -> float:
    """How far a margin may lie from its side of zero after an exact half step in float64.

    The step compares fl(s - beta), off by u(|s| + |beta|), and the margin subtracts twice, off by
    u(|s - alpha| + |margin|): together at most u(3|s| + 2|alpha| + 2|beta|) and terms in u^2.
    A rule's interpolation stays inside its interval and adds nothing. 0 in exact arithmetic.
    """
    size = np.abs(problem.scores).max() + np.abs(alpha_M).max() + np.abs(beta_N).max()
    return problem.rounding(4, float(size))


def order_statistic(values: Array, rank: Fraction, axis: int) -> Array:
    """The value at the 1-based descending ``rank`` along ``axis``, interpolated between two ranks.

    Rounding is monotone, so the result never leaves the interval between them. Ranks outside
    1..size mean the nearest end.
    """
    size = values.shape[axis]
    rank = min(max(rank, Fraction(1)), Fraction(size))
    first, last = math.floor(rank), math.ceil(rank)
    ascending = np.partition(values, (size - last, size - first), axis=axis)
    upper: Array = ascending.take(size - first, axis=axis)
    if first == last:
        return upper
    lower = ascending.take(size - last, axis=axis)
    weight: Any = rank - first if values.dtype == np.dtype(object) else float(rank - first)
    between: Array = upper + weight * (lower - upper)
    return between


def token_interval(scores: ArrayLike, expert_multipliers: ArrayLike, top_k: int) -> Interval:
    """All alpha_i that minimise D for this beta_N: [(k+1)-th, k-th] largest of s_i - beta.

    ValueError for top_k = N, where no (k+1)-th exists and D is flat for every small alpha.
    """
    problem = AssignmentProblem(np.asarray(scores), top_k)
    problem.require_choice()
    reduced_MN = problem.scores - problem.expert_vector(expert_multipliers, "expert_multipliers")
    rank = Fraction(problem.top_k)
    return Interval(order_statistic(reduced_MN, rank + 1, 1), order_statistic(reduced_MN, rank, 1))


def expert_interval(scores: ArrayLike, token_multipliers: ArrayLike, top_k: int) -> Interval:
    """All beta_j that minimise D for this alpha_M: [(q+1)-th, q-th] largest of s_:,j - alpha.

    If q is not an integer the slope q - #{s - alpha > beta} is never zero, and the only minimiser
    is the ceil(q)-th largest: both ends are equal. ValueError for top_k = N.
    """
    problem = AssignmentProblem(np.asarray(scores), top_k)
    problem.require_choice()
    alpha_M = problem.token_vector(token_multipliers, "token_multipliers")
    reduced_MN = problem.scores - alpha_M[:, None]
    upper, lower = Fraction(math.ceil(problem.load)), Fraction(math.floor(problem.load) + 1)
    return Interval(order_statistic(reduced_MN, lower, 0), order_statistic(reduced_MN, upper, 0))


def token_subgradient(
    scores: ArrayLike,
    token_multipliers: ArrayLike,
    expert_multipliers: ArrayLike,
    top_k: int,
    *,
    radius: float | None = None,
) -> Interval:
    """The subdifferential of D in each alpha_i: k minus the number of edges of positive margin.

    Edges whose margin lies within ``radius`` of zero count for one end only, so alpha_i minimises D
    in its block if and only if 0 lies inside. Left out, the radius is ``margin_radius``: what one
    float64 half step can be off.
    """
    problem, alpha_M, beta_N = _checked(scores, token_multipliers, expert_multipliers, top_k)
    fewest, most = _positive_edges(problem, alpha_M, beta_N, radius, axis=1)
    return Interval(problem.top_k - most, problem.top_k - fewest)


def expert_subgradient(
    scores: ArrayLike,
    token_multipliers: ArrayLike,
    expert_multipliers: ArrayLike,
    top_k: int,
    *,
    radius: float | None = None,
) -> Interval:
    """The subdifferential of D in each beta_j: q minus the load; see ``token_subgradient``.

    Its ends are floats. DeepSeek-V3 moves beta by a fixed step against the sign of q - load.
    """
    problem, alpha_M, beta_N = _checked(scores, token_multipliers, expert_multipliers, top_k)
    fewest, most = _positive_edges(problem, alpha_M, beta_N, radius, axis=0)
    load = float(problem.load)
    return Interval(load - most, load - fewest)


def _positive_edges(
    problem: AssignmentProblem, alpha_M: Array, beta_N: Array, radius: float | None, axis: int
) -> tuple[Array, Array]:
    if radius is None:
        radius = margin_radius(problem, alpha_M, beta_N)
    margin_MN = margins(problem, alpha_M, beta_N)
    surely = np.asarray(margin_MN > radius, dtype=bool)
    perhaps = np.asarray(margin_MN >= -radius, dtype=bool)
    return np.count_nonzero(surely, axis=axis), np.count_nonzero(perhaps, axis=axis)


def _checked(
    scores: ArrayLike, token_multipliers: ArrayLike, expert_multipliers: ArrayLike, top_k: int
) -> tuple[AssignmentProblem, Array, Array]:
    problem = AssignmentProblem(np.asarray(scores), top_k)
    alpha_M = problem.token_vector(token_multipliers, "token_multipliers")
    beta_N = problem.expert_vector(expert_multipliers, "expert_multipliers")
    return problem, alpha_M, beta_N
