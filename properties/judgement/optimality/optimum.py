"""The optimum of a balanced assignment problem between two numbers that are exact.

``linprog`` computes in floating point and stops at a tolerance, so its word is not taken. Its
assignment, rounded to the lattice that the vertices lie on, is checked to be feasible, and its
value, a lower bound of LP*, is summed in rationals. Its multipliers, right or wrong, give by weak
duality an upper bound of LP*, also in rationals. Where both meet, LP* is known exactly. Nothing of
``lp_oracle`` but ``solve_linprog`` is used here, so that this judges the rest of it.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

import lp_oracle
from properties.errors import UnknownError, ViolationError
from properties.protocol import Array

__all__ = [
    "Optimum",
    "best_of_all",
    "bracket",
    "exact_dual",
    "on_one_grid",
    "value_of",
    "written",
]


def on_one_grid(*arrays: Any) -> tuple[list[Array], int]:
    """The same numbers as Python integers over one common denominator, and that denominator.

    Integers, floats and ``Fraction`` objects are all taken for what they are.
    """
    shaped = [np.asarray(values) for values in arrays]
    ratios = [[x.as_integer_ratio() for x in values.ravel().tolist()] for values in shaped]
    denominators = {denominator for pairs in ratios for _, denominator in pairs}
    common = math.lcm(*denominators)
    grids = []
    for values, pairs in zip(shaped, ratios, strict=True):
        grid = np.empty(values.size, dtype=object)
        grid[:] = [numerator * (common // denominator) for numerator, denominator in pairs]
        grids.append(grid.reshape(values.shape))
    return grids, common


def value_of(scores_MN: Array, assignment_MN: Array) -> Fraction:
    """sum s x without rounding; the assignment holds integers or ``Fraction`` objects."""
    used = np.nonzero(assignment_MN)
    (scores,), unit = on_one_grid(scores_MN[used])
    (shares,), parts = on_one_grid(assignment_MN[used])
    return Fraction(int((scores * shares).sum()), unit * parts)


def exact_dual(scores_MN: Array, alpha_M: Array, beta_N: Array, top_k: int) -> Fraction:
    """D = k sum alpha + q sum beta + sum max(0, s - alpha - beta) without rounding."""
    m, n = scores_MN.shape
    (s_MN, alpha, beta), unit = on_one_grid(scores_MN, alpha_M, beta_N)
    margins_MN = s_MN - alpha[:, None] - beta
    hinges = int(margins_MN[margins_MN > 0].sum())
    multipliers = Fraction(top_k * int(alpha.sum())) + Fraction(m * top_k, n) * int(beta.sum())
    return (multipliers + hinges) / unit


@dataclass(frozen=True, eq=False)
class Optimum:
    """lower <= LP* <= upper; ``assignment`` is feasible and attains ``lower``.

    ``solution`` is what ``linprog`` returned. If it kept to its tolerance t, the bounds are at most
    ``tolerance`` = M N t scale apart: with p = s - alpha - beta the difference is the sum of
    max(0, p) (1 - x) + max(0, -p) x, where x now stands at its bounds and no p has the wrong sign
    by more than t scale.
    """

    scores: Array
    top_k: int
    assignment: Array
    solution: lp_oracle.LinearProgramSolution

    @property
    def tolerance(self) -> float:
        """How far apart the bounds may be."""
        return self.scores.size * lp_oracle.SOLVER_TOLERANCE * self.solution.scale

    @cached_property
    def lower(self) -> Fraction:
        """The value of the assignment."""
        return value_of(self.scores, self.assignment)

    @property
    def upper(self) -> Fraction:
        """The dual value at the multipliers."""
        return self._dual[0]

    @property
    def multipliers(self) -> tuple[Array, Array]:
        """alpha (M,) and beta (N,) whose dual value is ``upper``."""
        return self._dual[1], self._dual[2]

    @cached_property
    def _dual(self) -> tuple[Fraction, Array, Array]:
        alpha, beta = self.solution.token_multipliers, self.solution.expert_multipliers
        value = exact_dual(self.scores, alpha, beta, self.top_k)
        if value == self.lower or self.scores.dtype.kind != "i":
            return value, alpha, beta
        # Some optimal multipliers of integer scores are integers, up to a constant: the dual's
        # matrix is totally unimodular too.
        whole = np.rint(alpha + beta[0]), np.rint(beta - beta[0])
        rounded = exact_dual(self.scores, *whole, self.top_k)
        return (rounded, *whole) if rounded < value else (value, alpha, beta)

    @property
    def is_exact(self) -> bool:
        """Whether both bounds meet."""
        return self.lower == self.upper

    def gap_of(self, value: Fraction | float) -> float:
        """The distance of a value from the solver's objective, relative to sum of |s| x."""
        size = value_of(np.abs(self.scores), self.assignment)
        objective = Fraction(self.solution.objective)
        return float(abs(Fraction(value) - objective) / size) if size else 0.0

    def require_attained_by(self, assignment_MN: Array) -> None:
        """Require a certified 0/1 assignment to be the optimum that ``linprog`` found.

        Its value must lie between the bounds. A routing with strict margins is the only optimum, so
        if the solver's assignment is as good, it is the same one. Raises ViolationError.
        """
        value = value_of(self.scores, assignment_MN)
        told = written(self.scores, self.top_k)
        if not self.lower <= value <= self.upper:
            raise ViolationError(
                f"a certified assignment is worth {float(value)!r}, but the optimum lies between "
                f"{float(self.lower)!r} and {float(self.upper)!r}: {told}"
            )
        if value == self.lower and not np.array_equal(assignment_MN, self.assignment):
            raise ViolationError(
                "strict margins make an optimum the only one, but linprog's is another, as good: "
                f"{told}"
            )


def bracket(scores_MN: Array, top_k: int) -> Optimum:
    """Solve with ``linprog`` and check the assignment.

    For q = a/g in lowest terms every vertex has entries in {0, 1/g, …, 1}: multiplied by g, rows
    and columns sum to integers, and the constraint matrix is totally unimodular. Raises
    UnknownError if the solver gives up, its assignment is not near a feasible point of that kind,
    or its multipliers do not confirm it to the solver's own tolerance.
    """
    solution = lp_oracle.solve_linprog(scores_MN, top_k)
    if not solution.is_optimal:
        raise UnknownError(f"linprog found no optimum: {solution.status}")
    m, n = scores_MN.shape
    load = Fraction(m * top_k, n)
    parts = load.denominator
    counts_MN = np.rint(solution.assignment * parts).astype(np.int64)
    feasible = (
        (counts_MN >= 0).all()
        and (counts_MN <= parts).all()
        and (counts_MN.sum(axis=1) == top_k * parts).all()
        and (counts_MN.sum(axis=0) == load.numerator).all()
    )
    if not feasible:
        raise UnknownError("the assignment of linprog rounds to no feasible one")
    assignment_MN = counts_MN if parts == 1 else counts_MN * Fraction(1, parts)
    optimum = Optimum(scores_MN, top_k, assignment_MN, solution)
    if optimum.upper - optimum.lower > optimum.tolerance:
        raise UnknownError("the multipliers of linprog do not confirm its assignment")
    return optimum


def best_of_all(scores_MN: Array, top_k: int) -> Fraction:
    """LP* for an integer load by trying every assignment of 0s and 1s: for tiny instances only."""
    m, n = scores_MN.shape
    load = m * top_k // n
    (s_MN,), unit = on_one_grid(scores_MN)
    rows = list(itertools.combinations(range(n), top_k))
    best: int | None = None
    for choice in itertools.product(rows, repeat=m):
        loads = np.bincount(np.array(choice).ravel(), minlength=n)
        if (loads == load).all():
            value = sum(s_MN[i, j] for i, row in enumerate(choice) for j in row)
            best = value if best is None else max(best, value)
    if best is None:
        raise ValueError(f"no 0/1 assignment has loads {m} * {top_k} / {n}: q must be an integer")
    return Fraction(best, unit)


def written(scores_MN: Array, top_k: int) -> str:
    """The instance as a reader can copy it: every float shortest and exact."""
    return f"s = {scores_MN.tolist()}, k = {top_k}"
