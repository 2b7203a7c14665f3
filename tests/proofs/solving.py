"""Asking the solver, and turning what it finds into scores that can be judged without it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import z3

from lp_oracle import exact
from tests.proofs.encoding import Formula, Margins, Shape, Term

SECONDS = 120


class UndecidedError(Exception):
    """The solver gave up. That proves nothing, and fails whatever asked."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Rational margins p (M, N) and increments c (N,) that satisfy a formula."""

    shape: Shape
    margins: Any
    increments: Any

    @property
    def scores(self) -> Any:
        """Integers from 0 on whose first token step from beta = 0 leads to these margins.

        They are p times a positive number, and a constant more in every row, which moves alpha.
        """
        denominators = [Fraction(value).denominator for value in self.margins.ravel()]
        whole = np.array(self.margins * math.lcm(*denominators), dtype=np.int64)
        return whole - whole.min(axis=1, keepdims=True)


def decide(formulas: Iterable[Formula], seconds: int = SECONDS) -> z3.ModelRef | None:
    """A model, or None if there is none. Raises UndecidedError if the solver does not know."""
    solver = z3.Solver()
    solver.set(timeout=1000 * seconds)
    solver.add(*formulas)
    answer = solver.check()
    if answer == z3.unknown:
        raise UndecidedError(f"{solver.reason_unknown()} after at most {seconds} s")
    return solver.model() if answer == z3.sat else None


def solution(margins: Margins, formulas: Iterable[Formula]) -> Solution | None:
    """Margins that satisfy all formulas, or None if there are none."""
    model = decide(formulas)
    if model is None:
        return None
    return Solution(
        margins.shape,
        exact([_values(model, row) for row in margins.p]),
        exact(_values(model, margins.c)),
    )


def _values(model: z3.ModelRef, terms: Sequence[Term]) -> list[Fraction]:
    return [model.eval(term, model_completion=True).as_fraction() for term in terms]
