"""The balanced assignment problem solved by HiGHS through ``scipy.optimize.linprog``.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy  # which imports its parts when they are first used
from numpy.typing import ArrayLike

from lp_oracle.problem import Array, AssignmentProblem, require_summable

Method: TypeAlias = Literal["highs", "highs-ds", "highs-ipm"]

METHODS: tuple[Method, ...] = ("highs", "highs-ds", "highs-ipm")

# HiGHS' own default for primal and for dual feasibility, absolute, of the model it is handed.
SOLVER_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """What the solver claims; ``certify_solution`` recomputes whether it is true.

    ``assignment`` x (M, N). Multipliers carry the signs of the dual: ``token_multipliers`` alpha
    (M,) and ``expert_multipliers`` beta (N,) are the growth of the optimum per unit of row sum and
    of column sum (so -beta is a selection bias), ``bound_multipliers`` w (M, N) >= 0 its growth per
    unit of the upper bound on x. alpha + c and beta - c are equally good. ``objective`` is sum s x
    of this very x. The scores were divided by ``scale``, a power of two, before solving, so the
    solver's absolute tolerance on reduced costs means ``scale`` times as much here. ``status`` is
    "optimal", or the solver's message, and then all arrays are NaN.
    """

    assignment: Array
    token_multipliers: Array
    expert_multipliers: Array
    bound_multipliers: Array
    objective: float
    scale: float
    status: str

    @property
    def is_optimal(self) -> bool:
        """Whether the solver says so."""
        return self.status == "optimal"


def solve_linprog(
    scores: ArrayLike, top_k: int, *, method: Method = "highs", time_limit: float = math.inf
) -> LinearProgramSolution:
    """Solve max sum s x over rows of sum k, columns of sum m k / n and 0 <= x <= 1.

    ``scores`` (M, N) of any real dtype, rounded to float64; ``time_limit`` in seconds. Raises what
    ``AssignmentProblem`` raises, and ValueError for an unknown method; a solver that gives up shows
    in ``status``.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is unknown; use one of {', '.join(METHODS)}")
    problem = AssignmentProblem(np.asarray(scores), top_k)
    scores_MN = problem.scores.astype(np.float64)
    require_summable(scores_MN, problem.m * problem.top_k)
    scale = _scale(scores_MN)
    totals = np.repeat([float(problem.top_k), float(problem.load)], [problem.m, problem.n])
    sums: Any = _sums(problem.m, problem.n)  # linprog takes sparse matrices; its stubs do not
    result = scipy.optimize.linprog(
        -(scores_MN / scale).ravel(),
        A_eq=sums,
        b_eq=totals,
        bounds=(0.0, 1.0),
        method=method,
        options={
            "time_limit": time_limit,
            "primal_feasibility_tolerance": SOLVER_TOLERANCE,
            "dual_feasibility_tolerance": SOLVER_TOLERANCE,
        },
    )
    if result.x is None or result.status != 0:
        return _no_solution(problem, scale, str(result.message))
    # linprog minimises -s x: its marginals are derivatives of that minimum, hence the turned signs.
    multipliers = -scale * np.asarray(result.eqlin.marginals, dtype=np.float64)
    bound_multipliers = -scale * np.asarray(result.upper.marginals, dtype=np.float64)
    assignment_MN = np.asarray(result.x, dtype=np.float64).reshape(scores_MN.shape)
    return LinearProgramSolution(
        assignment=assignment_MN,
        token_multipliers=multipliers[: problem.m],
        expert_multipliers=multipliers[problem.m :],
        bound_multipliers=bound_multipliers.reshape(scores_MN.shape),
        objective=math.fsum((scores_MN * assignment_MN).ravel().tolist()),
        scale=scale,
        status="optimal",
    )


def _scale(scores_MN: Array) -> float:
    """The power of two just above max |s|, so that dividing by it is exact; 1 for all zeros."""
    return math.ldexp(1.0, math.frexp(float(np.abs(scores_MN).max()))[1])


@lru_cache(maxsize=64)
def _sums(m: int, n: int) -> scipy.sparse.csr_array:
    """The (M + N, M N) matrix that maps a flattened x to its row sums, then its column sums."""
    edges_MN = np.arange(m * n, dtype=np.int32).reshape(m, n)
    indices = np.concatenate([edges_MN.ravel(), edges_MN.T.ravel()])
    ends = np.concatenate([np.arange(m) * n, m * n + np.arange(n + 1) * m])
    return scipy.sparse.csr_array(
        (np.ones(2 * m * n), indices, ends.astype(np.int32)), shape=(m + n, m * n)
    )


def _no_solution(problem: AssignmentProblem, scale: float, status: str) -> LinearProgramSolution:
    matrix_MN = np.full((problem.m, problem.n), np.nan)
    return LinearProgramSolution(
        assignment=matrix_MN,
        token_multipliers=np.full(problem.m, np.nan),
        expert_multipliers=np.full(problem.n, np.nan),
        bound_multipliers=matrix_MN,
        objective=math.nan,
        scale=scale,
        status=status,
    )
