"""Certificates of optimality, from the numbers themselves and not from what a solver says of them.

``certify`` recomputes every Karush-Kuhn-Tucker residual of a primal-dual pair. ``certify_routing``
needs no multipliers: strict margins and exact loads already prove a routing optimal.

Tolerances are not tuned. A residual holds if ``value <= tolerance + radius``: ``radius`` bounds the
rounding of evaluating it (0 for integer and ``Fraction`` scores), and ``tolerance`` is what a
solver leaves that stops at feasibility tolerance t on scores divided by ``scale`` (sigma). An edge
of such a solution has x within t of a bound, or a reduced cost within t sigma of zero. With W the
largest multiplier of any bound,

    rows, columns, bounds            t
    dual feasibility                 t sigma
    complementary slackness          t (1 + 2t) (sigma + W), per edge
    gap                              t (sum |alpha| + sum |beta|) + M N times the line above

with v = w - s + alpha + beta and the last line from the identity

    D - s x = sum alpha (k - rows) + sum beta (q - columns) + sum (w (1 - x) + v x).

A combinatorial solution has t = 0: everything must hold exactly.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from lp_oracle.dual import margin_radius, margins, order_statistic, total
from lp_oracle.linear_program import SOLVER_TOLERANCE, LinearProgramSolution
from lp_oracle.problem import Array, AssignmentProblem, Number


@dataclass(frozen=True)
class Residual:
    """The largest violation of one condition, its rounding error, and what is allowed."""

    name: str
    value: Number
    radius: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the violation cannot be told from an allowed one."""
        return bool(self.value <= self.tolerance + self.radius)

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        limit = f"tolerance {self.tolerance:.3g}, radius {self.radius:.3g}"
        return f"{self.name}: {float(self.value):.6g} ({limit}) {verdict}"


@dataclass(frozen=True)
class Certificate:
    """All conditions of optimality of x, alpha, beta, w, and both objective values.

    If it is ``certified``, the optimum lies within ``gap.value + gap.radius`` of both values, up to
    what ``solver_tolerance`` admits; with integer or ``Fraction`` scores and t = 0 it equals both.
    """

    rows: Residual
    columns: Residual
    bounds: Residual
    dual_feasibility: Residual
    complementary_slackness: Residual
    gap: Residual
    primal_value: Number
    dual_value: Number

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """In the order primal, dual, both."""
        primal = (self.rows, self.columns, self.bounds)
        return (*primal, self.dual_feasibility, self.complementary_slackness, self.gap)

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the conditions that do not hold."""
        return tuple(residual.name for residual in self.residuals if not residual.holds)

    @property
    def certified(self) -> bool:
        """Whether every condition holds."""
        return not self.failures

    def __str__(self) -> str:
        values = f"primal {float(self.primal_value):.17g}, dual {float(self.dual_value):.17g}"
        return "\n".join([values, *map(str, self.residuals)])


def certify(
    scores: ArrayLike,
    top_k: int,
    assignment: ArrayLike,
    token_multipliers: ArrayLike,
    expert_multipliers: ArrayLike,
    *,
    bound_multipliers: ArrayLike | None = None,
    solver_tolerance: float = 0.0,
    scale: float = 1.0,
) -> Certificate:
    """Recompute feasibility, complementary slackness and gap of x (M, N), alpha (M,), beta (N,).

    ``bound_multipliers`` w (M, N) defaults to max(0, s - alpha - beta): the best one for these
    alpha and beta, and dual feasible by construction. ``solver_tolerance`` and ``scale`` are t and
    sigma of the rule in the module's docstring. Raises ValueError for wrong shapes and entries that
    are not finite.
    """
    problem = AssignmentProblem(np.asarray(scores), top_k)
    shape = (problem.m, problem.n)
    alpha_M = problem.token_vector(token_multipliers, "token_multipliers")
    beta_N = problem.expert_vector(expert_multipliers, "expert_multipliers")
    margin_MN = margins(problem, alpha_M, beta_N)
    if bound_multipliers is None:
        w_MN = np.maximum(margin_MN, 0)
    else:
        w_MN = problem.array(bound_multipliers, shape, "bound_multipliers")
    pair = _Pair(
        problem=problem,
        x=problem.array(assignment, shape, "assignment"),
        alpha=alpha_M,
        beta=beta_N,
        w=w_MN,
        v=w_MN - margin_MN,
        tolerance=solver_tolerance,
        scale=scale,
    )
    return pair.certificate()


def certify_solution(scores: ArrayLike, top_k: int, solution: LinearProgramSolution) -> Certificate:
    """``certify`` what ``solve_linprog`` returned for these scores, to HiGHS' tolerance.

    Raises ValueError if the solver returned no solution.
    """
    if not solution.is_optimal:
        raise ValueError(f"there is nothing to certify: the solver reports {solution.status!r}")
    return certify(
        scores,
        top_k,
        solution.assignment,
        solution.token_multipliers,
        solution.expert_multipliers,
        bound_multipliers=solution.bound_multipliers,
        solver_tolerance=SOLVER_TOLERANCE,
        scale=solution.scale,
    )


@dataclass(frozen=True, eq=False)
class _Pair:
    """A candidate: x (M, N), alpha (M,), beta (N,), and multipliers w of x <= 1, v of x >= 0."""

    problem: AssignmentProblem
    x: Array
    alpha: Array
    beta: Array
    w: Array
    v: Array
    tolerance: float
    scale: float

    def certificate(self) -> Certificate:
        load = self.problem.number(self.problem.load)
        multiplier_terms = (self.problem.top_k * self.alpha, load * self.beta)
        gains_MN = self.problem.scores * self.x
        return Certificate(
            rows=self._sums("rows", 1, Fraction(self.problem.top_k)),
            columns=self._sums("columns", 0, self.problem.load),
            bounds=self._bounds(),
            dual_feasibility=self._dual_feasibility(),
            complementary_slackness=self._slackness(),
            gap=self._gap(*multiplier_terms, gains_MN),
            primal_value=total(self.problem, gains_MN),
            dual_value=total(self.problem, *multiplier_terms, self.w),
        )

    @property
    def _weight(self) -> float:
        return max(_size(self.w), _size(self.v))

    @property
    def _edge_radius(self) -> float:
        """Rounding error of v: that of the margin, and of subtracting it from w."""
        of_margin = margin_radius(self.problem, self.alpha, self.beta)
        return of_margin + self.problem.rounding(4, _size(self.w))

    @property
    def _edge_tolerance(self) -> float:
        return self.tolerance * (1 + 2 * self.tolerance) * (self.scale + self._weight)

    def _sums(self, name: str, axis: int, target: Fraction) -> Residual:
        # A sum of c terms in any order errs by at most (c - 1) u sum |x|; q and the difference
        # round once more each.
        count = self.x.shape[axis]
        difference = np.abs(self.x.sum(axis=axis) - self.problem.number(target))
        absolute = float(np.abs(self.x).sum(axis=axis).max()) + float(target)
        radius = self.problem.rounding(count + 2, absolute)
        return Residual(name, difference.max(), radius, self.tolerance)

    def _bounds(self) -> Residual:
        outside = _violation(-self.x, self.x - 1)
        radius = self.problem.rounding(1, float(outside))
        return Residual("bounds", outside, radius, self.tolerance)

    def _dual_feasibility(self) -> Residual:
        violation = _violation(-self.w, -self.v)
        allowed = self.tolerance * self.scale
        return Residual("dual feasibility", violation, self._edge_radius, allowed)

    def _slackness(self) -> Residual:
        products_MN = np.abs((1 - self.x) * self.w) + np.abs(self.x * self.v)
        radius = (1 + _size(self.x)) * (self._edge_radius + self.problem.rounding(4, self._weight))
        name = "complementary slackness"
        return Residual(name, products_MN.max(), radius, self._edge_tolerance)

    def _gap(self, token_terms: Array, expert_terms: Array, gains_MN: Array) -> Residual:
        gap = total(self.problem, token_terms, expert_terms, self.w, -gains_MN)
        value = gap if gap >= 0 else -gap
        rounded = sum(float(np.abs(t).sum()) for t in (token_terms, expert_terms, gains_MN))
        edges = self.x.size
        radius = self.problem.rounding(2, rounded + float(value)) + edges * self._edge_radius
        multipliers = float(np.abs(self.alpha).sum() + np.abs(self.beta).sum())
        allowed = self.tolerance * multipliers + edges * self._edge_tolerance
        return Residual("gap", value, radius, allowed)


def _violation(*constraints: Array) -> Number:
    """How far the worst of constraints of the form value <= 0 is violated."""
    worst: Number = max([0.0, *(values.max() for values in constraints)])
    return worst


def _size(values: Array) -> float:
    return float(np.abs(values).max())


@dataclass(frozen=True, eq=False)
class RoutingVerdict:
    """Whether top-k of s + b is proved to be the optimum of the assignment problem.

    ``reason`` says what is missing, and is None where ``optimal``. A verdict that is not optimal
    proves nothing: a routing with ties at the cutoff may still be the best. ``loads`` (N,) counts
    the tokens of every expert, ties broken towards the lowest expert id; ``margin`` is the least
    difference between a token's k-th and (k+1)-th biased score (infinite for k = N).
    """

    optimal: bool
    reason: str | None
    loads: Array
    margin: Number
    assignment: Array


def certify_routing(
    scores: ArrayLike, bias: ArrayLike, top_k: int, *, radius: float = 0.0
) -> RoutingVerdict:
    """Prove the routing top-k of s_MN + b_N optimal: every margin > 2 radius, every load exactly q.

    Then beta = -b with any alpha between the k-th and (k+1)-th biased scores satisfies
    complementary slackness. ``radius`` is how far each score may lie from the one meant; with 0 the
    statement is about these very numbers, and it is sound in float64 too, since rounding is
    monotone: fl(s + b) > fl(s' + b') implies s + b > s' + b'. Raises what ``AssignmentProblem``
    raises, ValueError for a wrong or infinite bias or a radius below 0.
    """
    problem = AssignmentProblem(np.asarray(scores), top_k)
    if not 0.0 <= radius < math.inf:
        raise ValueError(f"radius = {radius} must be a finite number of at least 0")
    return routing_verdict(problem, problem.expert_vector(bias, "bias"), radius)


def routing_verdict(
    problem: AssignmentProblem, bias_N: Array, radius: float = 0.0
) -> RoutingVerdict:
    """``certify_routing`` for a problem and a bias that are already checked."""
    biased_MN = problem.scores + bias_N
    order_MN = np.argsort(-biased_MN, axis=1, kind="stable")
    assignment_MN = np.zeros(biased_MN.shape, dtype=np.int64)
    np.put_along_axis(assignment_MN, order_MN[:, : problem.top_k], 1, axis=1)
    loads_N = assignment_MN.sum(axis=0)
    margin, allowed = _least_margin(problem, biased_MN, radius)
    reason = _objection(problem, loads_N, margin, allowed)
    return RoutingVerdict(reason is None, reason, loads_N, margin, assignment_MN)


def _least_margin(
    problem: AssignmentProblem, biased_MN: Array, radius: float
) -> tuple[Number, Number]:
    """The least margin over tokens, and what it must exceed."""
    if problem.top_k == problem.n:
        return math.inf, 0.0
    last_in = order_statistic(biased_MN, Fraction(problem.top_k), 1)
    first_out = order_statistic(biased_MN, Fraction(problem.top_k + 1), 1)
    margin: Number = (last_in - first_out).min()
    if radius == 0.0:
        return margin, 0.0
    # Three roundings of u |biased score| each: both additions of the bias, and the difference.
    size = max(float(np.abs(last_in).max()), float(np.abs(first_out).max()))
    return margin, 2 * radius + problem.rounding(8, size)


def _objection(
    problem: AssignmentProblem, loads_N: Array, margin: Number, allowed: Number
) -> str | None:
    if not problem.is_integral:
        return f"q = {problem.load} is not an integer, so no routing has load q everywhere"
    if not margin > allowed:
        return (
            "the least margin between a token's k-th and (k+1)-th biased score is "
            f"{float(margin):.6g}, not above {float(allowed):.6g}"
        )
    wrong = np.flatnonzero(loads_N != int(problem.load))
    if wrong.size:
        first = int(wrong[0])
        return (
            f"{wrong.size} of {problem.n} experts miss the load q = {problem.load}; "
            f"expert {first} has {loads_N[first]}"
        )
    return None
