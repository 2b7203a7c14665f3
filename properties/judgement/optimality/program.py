"""The linear program itself: vertices, multipliers, and solvers that know nothing of each other.

What a solver returns is held against ``optimum_by_exchange``, in rationals. HiGHS stops at a
tolerance t on scores divided by a power of two ``scale``, so its numbers are allowed just that, and
the rounding of its own arithmetic:

    row and column sums, bounds    t
    reduced costs                  t scale
    slackness of one edge          t (1 + 2 t) (scale + W),  W the largest multiplier of a bound
    value of an assignment rounded to whole parts, and dual value: M N t scale from LP*,

the last because D - s x = sum max(0, p) (1 - x) + max(0, -p) x for every feasible x, and no
p = s - alpha - beta has the wrong sign for its x by more than t scale.

Legend: M tokens, N routed experts; q = M top_k / N = a/g in lowest terms is the target load.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import scipy  # which imports its parts when they are first used

import lp_oracle
from properties.checks import note_ratio, require
from properties.errors import UnknownError
from properties.judgement.optimality.descent import ROUNDOFF, SMALLEST, block_rounding, load_of
from properties.judgement.optimality.exchange import ExactOptimum, in_parts, require_feasible
from properties.judgement.optimality.fixed_points import is_forest
from properties.judgement.optimality.optimum import exact_dual, on_one_grid, value_of, written
from properties.protocol import Array
from properties.subject import Subject

TOLERANCE = lp_oracle.SOLVER_TOLERANCE

__all__ = [
    "best_in_parts",
    "copied",
    "require_equal_dual_values",
    "require_kkt",
    "require_value",
    "require_vertex",
    "solved",
]


def solved(scores_MN: Array, top_k: int, method: Any = "highs") -> lp_oracle.LinearProgramSolution:
    """What the oracle's solver returns; UnknownError if it gives up."""
    solution = lp_oracle.solve_linprog(scores_MN, top_k, method=method)
    if not solution.is_optimal:
        raise UnknownError(f"{method} found no optimum: {solution.status}")
    return solution


def _edge_allowance(scores_MN: Array, solution: lp_oracle.LinearProgramSolution) -> float:
    """What a reduced cost may have the wrong sign by: t scale, and 8 roundings of its terms."""
    parts = (scores_MN, solution.token_multipliers, solution.expert_multipliers)
    size = sum(_largest(part) for part in (*parts, solution.bound_multipliers))
    return TOLERANCE * solution.scale + 8.0 * ROUNDOFF * size + SMALLEST


def _largest(values: Array) -> float:
    return float(np.abs(values).max())


# Vertices ------------------------------------------------------------------------------------


def require_vertex(solution: lp_oracle.LinearProgramSolution, top_k: int, told: str) -> Array:
    """Require x (M, N) to be a vertex up to t, and near a feasible one in parts of 1/g; that one.

    x is a vertex if its entries strictly between the bounds form a forest: around a cycle it could
    move both ways. Removing leaf by leaf, every such entry is what its row or column leaves, which
    the others have off by at most t each, and the M + N sums too.
    """
    off_bounds = np.minimum(solution.assignment, 1.0 - solution.assignment)
    require(off_bounds >= -TOLERANCE, f"x leaves [0, 1] by {-float(off_bounds.min())!r}: {told}")
    free_MN = off_bounds > TOLERANCE
    require(is_forest(free_MN), f"x is no vertex, {free_MN.sum()} entries are between: {told}")
    vertex_MN = in_parts(solution.assignment, top_k)
    require_feasible(vertex_MN, top_k, f"the solver's x in whole parts ({told})")
    distance = float(np.abs(solution.assignment - vertex_MN.astype(np.float64)).max())
    allowed = _vertex_allowance(*vertex_MN.shape)
    require(distance <= allowed, f"x lies {distance!r} from whole parts of 1/g: {told}")
    return vertex_MN


def _vertex_allowance(m: int, n: int) -> float:
    """M N entries and M + N sums off by t each, and a sum's rounding."""
    return (m * n + m + n) * (TOLERANCE + 4.0 * ROUNDOFF * max(m, n))


def best_in_parts(scores_MN: Array, top_k: int) -> Fraction:
    """The best of all feasible matrices with entries in {0, 1/g, …, 1}, for tiny instances only.

    Row by row, over all column sums that the rows so far can have.
    """
    load = load_of(scores_MN, top_k)
    parts, full = load.denominator, load.numerator
    (s_MN,), unit = on_one_grid(scores_MN)
    choices = list(_rows(scores_MN.shape[1], top_k * parts, parts))
    best: dict[tuple[int, ...], int] = {(0,) * scores_MN.shape[1]: 0}
    for scores_N in s_MN.tolist():
        reached: dict[tuple[int, ...], int] = {}
        for sums, value in best.items():
            for row in choices:
                after = tuple(a + b for a, b in zip(sums, row, strict=True))
                gained = value + sum(s * x for s, x in zip(scores_N, row, strict=True))
                if max(after) <= full and gained >= reached.get(after, gained):
                    reached[after] = gained
        best = reached
    return Fraction(best[(full,) * scores_MN.shape[1]], unit * parts)


def _rows(length: int, total: int, largest: int) -> list[tuple[int, ...]]:
    """All tuples of this length and total with entries in 0 … largest."""
    if length == 0:
        return [()] if total == 0 else []
    return [
        (first, *rest)
        for first in range(min(total, largest) + 1)
        for rest in _rows(length - 1, total - first, largest)
    ]


# Multipliers ---------------------------------------------------------------------------------


def require_kkt(
    subject: Subject, scores_MN: Array, top_k: int, solution: lp_oracle.LinearProgramSolution
) -> None:
    """Require every Karush-Kuhn-Tucker residual, summed in rationals, to be what t allows."""
    told = written(scores_MN, top_k)
    for name, (residual, allowed) in _residuals(scores_MN, top_k, solution).items():
        note_ratio(subject, float(residual) / allowed, name)
        require(
            residual <= allowed,
            f"{name}: off by {float(residual)!r}, more than {allowed!r}: {told}",
        )


def _residuals(
    scores_MN: Array, top_k: int, solution: lp_oracle.LinearProgramSolution
) -> dict[str, tuple[Fraction, float]]:
    """The largest violation of each condition, and what is allowed."""
    m, n = scores_MN.shape
    (s_MN, alpha, beta, w_MN), unit = on_one_grid(
        scores_MN,
        solution.token_multipliers,
        solution.expert_multipliers,
        solution.bound_multipliers,
    )
    (x_MN,), one = on_one_grid(solution.assignment)
    v_MN = w_MN - s_MN + alpha[:, None] + beta
    load = load_of(scores_MN, top_k)
    of_sums = TOLERANCE + (m + n) * ROUNDOFF * (1.0 + top_k + float(load))
    of_edges = _edge_allowance(scores_MN, solution)
    weight = max(_largest(solution.bound_multipliers), float(Fraction(int(abs(v_MN).max()), unit)))
    slack_MN = abs((one - x_MN) * w_MN) + abs(x_MN * v_MN)
    return {
        "rows": (_off(x_MN.sum(axis=1), one, Fraction(top_k)), of_sums),
        "columns": (_off(x_MN.sum(axis=0), one, load), of_sums),
        "bounds": (Fraction(int(max(0, -x_MN.min(), x_MN.max() - one)), one), TOLERANCE),
        "signs of the multipliers of bounds": (
            Fraction(int(max(0, -w_MN.min(), -v_MN.min())), unit),
            of_edges,
        ),
        "complementary slackness": (
            Fraction(int(slack_MN.max()), unit * one),
            (1.0 + 2.0 * TOLERANCE) * (of_edges + TOLERANCE * weight),
        ),
    }


def _off(sums: Array, one: int, target: Fraction) -> Fraction:
    return max(abs(Fraction(int(value), one) - target) for value in sums.tolist())


def require_equal_dual_values(
    scores_MN: Array,
    top_k: int,
    solution: lp_oracle.LinearProgramSolution,
    trace: lp_oracle.DescentTrace,
) -> float:
    """Require D at a certified descent, and at the solver's multipliers, to be the routing's value.

    Exactly for the descent on integers, where rounding adds nothing. The float64 token step may
    miss the minimum of D by ``block_rounding``; the solver's multipliers by M N edges of what t
    allows. Returns the difference of both dual values, relative to scale.
    """
    value = value_of(scores_MN, trace.verdict.assignment)
    alpha, beta = trace.token_multipliers, trace.expert_multipliers
    balanced = exact_dual(scores_MN, alpha, beta, top_k)
    rounding = 0.0
    if scores_MN.dtype.kind == "f":
        rounding = float(block_rounding(scores_MN, beta, Fraction(top_k)).sum())
    told = written(scores_MN, top_k)
    require(
        0 <= balanced - value <= rounding,
        f"D is {float(balanced)!r} where the certified routing is worth {float(value)!r}: {told}",
    )
    multipliers = solution.token_multipliers, solution.expert_multipliers
    solver = exact_dual(scores_MN, *multipliers, top_k)
    allowed = scores_MN.size * _edge_allowance(scores_MN, solution)
    require(
        0 <= solver - value <= allowed,
        f"D is {float(solver)!r} at the solver's multipliers, {float(value)!r} at the optimum: "
        f"{told}",
    )
    return float(abs(solver - balanced)) / solution.scale


# Values --------------------------------------------------------------------------------------


def require_value(best: ExactOptimum, solution: lp_oracle.LinearProgramSolution, who: str) -> None:
    """Require the solver's assignment to be worth LP* up to t, and its objective to say so."""
    s_MN, top_k = best.scores, best.top_k
    told = f"{who}, {written(s_MN, top_k)}"
    value = value_of(s_MN, require_vertex(solution, top_k, told))
    allowed = s_MN.size * _edge_allowance(s_MN, solution)
    require(
        0 <= best.value - value <= allowed,
        f"an assignment worth {float(value)!r}, but LP* = {float(best.value)!r}: {told}",
    )
    # x is off by what ``require_vertex`` allows; products and their sum are rounded.
    share = _vertex_allowance(*s_MN.shape) + 2.0 * ROUNDOFF
    require(
        abs(Fraction(solution.objective) - value) <= share * float(np.abs(s_MN).sum()),
        f"the objective is {solution.objective!r}, of an x worth {float(value)!r}: {told}",
    )


def copied(scores_MN: Array, top_k: int) -> Array:
    """How often ``linear_sum_assignment`` pairs a copy of i with a copy of j, (M, N), integer q.

    k copies of every token, q of every expert. Two copies of i may both take copies of j, which
    x <= 1 forbids: there is only one pair to be had if k = 1 or q = 1.
    """
    load = int(load_of(scores_MN, top_k))
    m, n = scores_MN.shape
    tokens, experts = np.repeat(np.arange(m), top_k), np.repeat(np.arange(n), load)
    rows, columns = scipy.optimize.linear_sum_assignment(
        scores_MN[np.ix_(tokens, experts)], maximize=True
    )
    counts_MN = np.zeros((m, n), dtype=np.int64)
    np.add.at(counts_MN, (tokens[rows], experts[columns]), 1)
    return counts_MN
