"""Wrong encodings are noticed: they disagree with the code, and claims or controls fall."""

from __future__ import annotations

from typing import Any

import pytest
import z3

from tests.proofs.agreement import (
    check_certificates,
    check_cuts,
    check_steps,
    check_tight_edges,
)
from tests.proofs.claims import first_solution, fixed_points, fixed_without_optimum
from tests.proofs.encoding import (
    Formula,
    Margins,
    Pair,
    Shape,
    Side,
    Term,
    indicator,
    number,
    total,
)


class ClosedInterval(Margins):
    """Admits the ends of the interval as interior."""

    def reads(self, above: Term, least: Term, rank: int, side: Side) -> Formula:
        if side == "interior":
            return z3.And(above <= rank, least >= rank)
        return super().reads(above, least, rank, side)


class AnyTightEdges(Margins):
    """Drops the hypothesis on ties."""

    def fewer_tight_edges_than_vertices(self) -> Formula:
        return z3.BoolVal(True)


class OneTightEdgeMore(Margins):
    """Admits as many tight edges as vertices: one cycle in a single component."""

    def fewer_tight_edges_than_vertices(self) -> Formula:
        counts = self.tight_counts()
        return total(counts[: self.shape.m]) <= total(indicator(count > 0) for count in counts)


class TiesAreAbove(Margins):
    """Takes p >= 0 for p > 0 in what tokens see."""

    def __init__(self, shape: Shape, p: Any, c: Any) -> None:
        super().__init__(shape, p, c)
        self.positive = self.least


class TiesAreBelow(Margins):
    """Takes p > 0 for p >= 0 in what tokens see. No claim falls: fewer points are fixed."""

    def __init__(self, shape: Shape, p: Any, c: Any) -> None:
        super().__init__(shape, p, c)
        self.least = self.positive


class ExpertsIgnoreTheConstant(Margins):
    """Experts see p against 0 instead of c."""

    def expert_rule(self, j: int, side: Side) -> Formula:
        return Margins(self.shape, self.p, [number(0)] * self.shape.n).expert_rule(j, side)


class NextStatistic(Margins):
    """Reads the rank below the one named."""

    def reads(self, above: Term, least: Term, rank: int, side: Side) -> Formula:
        return super().reads(above, least, rank + 1, side)


class CutWithoutTightEdges(Margins):
    """Forgets that tight edges leave a cut."""

    def is_violated(self, rows: Any, columns: Any) -> Formula:
        loose = Margins(self.shape, self.p, self.c)
        loose.least = loose.positive
        return loose.is_violated(rows, columns)


class AnyLoad(Margins):
    """Certifies strict margins alone."""

    def load_is_exact(self, j: int) -> Formula:
        return z3.BoolVal(True)


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (ClosedInterval, check_steps),
        (AnyTightEdges, check_tight_edges),
        (OneTightEdgeMore, check_tight_edges),
        (TiesAreAbove, check_steps),
        (TiesAreBelow, check_steps),
        (ExpertsIgnoreTheConstant, check_steps),
        (NextStatistic, check_steps),
        (CutWithoutTightEdges, check_cuts),
        (AnyLoad, check_certificates),
    ],
)
def test_wrong_encodings_disagree_with_the_code(wrong: type[Margins], check: Any) -> None:
    assert any(said != true for _, said, true in check(wrong))


@pytest.mark.parametrize(
    ("weaker", "shape"),
    [
        (AnyTightEdges, Shape(2, 2, 1)),
        (OneTightEdgeMore, Shape(2, 2, 1)),
        (ClosedInterval, Shape(2, 2, 1)),
        (ClosedInterval, Shape(3, 3, 1)),
    ],
)
def test_claim_falls_without_its_hypotheses(weaker: type[Margins], shape: Shape) -> None:
    assert first_solution(fixed_without_optimum(shape)) is None
    assert first_solution(fixed_without_optimum(shape, weaker)) is not None


def test_fixed_points_vanish_from_a_wrong_encoding() -> None:
    """A claim would still be "proved" of nothing: it takes the controls to notice."""
    pair: Pair = ("lower", "lower")
    assert fixed_points(Shape(3, 3, 1), pair, "rest").solve() is not None
    assert fixed_points(Shape(3, 3, 1), pair, "rest", kind=TiesAreBelow).solve() is None
