"""Every claim proved at small shapes, and controls that it is not proved of nothing.

``make proofs`` goes on to larger shapes; docs/proofs.md has its table.
"""

from __future__ import annotations

import pytest
import z3

from tests.proofs.claims import (
    BOTH_INTERIOR,
    CLAIMS,
    EQUAL_CORNERS,
    EVERY_PAIR,
    Claim,
    first_solution,
    fixed_points,
    shapes,
    uncertified,
)
from tests.proofs.encoding import Formula, Margins, Motion, Pair, Shape

SMALL = list(shapes(largest=6, entries=16))
INTEGRAL = [shape for shape in SMALL if shape.is_integral]
LARGE = Shape(8, 8, 3)
MOTIONS: tuple[Motion, ...] = ("rest", "rise", "fall")


def _known(claims: tuple[Claim, ...], sizes: list[Shape]) -> list[object]:
    return [
        pytest.param(claim, shape, id=f"{claim.name}-{shape.m}x{shape.n}-k{shape.top_k}")
        for claim in claims
        for shape in sizes
        if claim.holds_at(shape)
    ]


@pytest.mark.parametrize(("claim", "shape"), _known(CLAIMS, SMALL) + _known(CLAIMS[:3], [LARGE]))
def test_no_real_scores_contradict(claim: Claim, shape: Shape) -> None:
    assert claim.counterexample(shape) is None


def test_every_claim_is_proved_somewhere() -> None:
    assert all(any(claim.holds_at(shape) for shape in SMALL) for claim in CLAIMS)


def generic(margins: Margins) -> Formula:
    """No cycle cancels; what FIXED assumes, where trying all cycles takes long."""
    if margins.shape.entries <= 9:
        return margins.no_cycle_cancels()
    return margins.fewer_tight_edges_than_vertices()


def generic_motions(pair: Pair) -> set[Motion]:
    """How beta moves at fixed points of these rules, for generic scores.

    "lower" tokens have at least k + 1 edges p >= 0 and "upper" experts at most q - 1 edges p > c,
    so c > 0 unless ties make both the same; and so on. Equal corners balance only at rest.
    """
    if pair in EQUAL_CORNERS:
        return {"rest"}
    if pair == BOTH_INTERIOR:
        return {"rest", "rise", "fall"}
    return {"rise"} if pair[0] == "lower" or pair[1] == "upper" else {"fall"}


@pytest.mark.parametrize("pair", EVERY_PAIR, ids="-".join)
@pytest.mark.parametrize("shape", [s for s in INTEGRAL if s.entries <= 12], ids=str)
def test_fixed_points_exist(shape: Shape, pair: Pair) -> None:
    """Modulo one constant, with generic scores, and certified but for the equal corners."""
    found = {
        motion
        for motion in MOTIONS
        if fixed_points(shape, pair, motion, together=True).solve(generic) is not None
    }
    assert found == generic_motions(pair)
    for motion in found if pair not in EQUAL_CORNERS else ():
        case = fixed_points(shape, pair, motion, together=True)
        assert case.solve(generic, Margins.certified) is not None


@pytest.mark.parametrize("pair", EVERY_PAIR, ids="-".join)
@pytest.mark.parametrize("shape", INTEGRAL, ids=str)
def test_ties_admit_tight_edges(shape: Shape, pair: Pair) -> None:
    """Without the hypothesis on Z every pair rests at tied scores without a certificate."""
    found = first_solution(uncertified(fixed_points(shape, pair, "rest")))
    assert found is not None
    assert (found.margins == 0).any()


@pytest.mark.parametrize("pair", EQUAL_CORNERS, ids="-".join)
@pytest.mark.parametrize("shape", INTEGRAL, ids=str)
def test_hypothesis_admits_tight_edges(shape: Shape, pair: Pair) -> None:
    """It leaves some Z to argue about: two equal corners rest on trees of tight edges."""
    found = fixed_points(shape, pair, "rest").solve(Margins.fewer_tight_edges_than_vertices)
    assert found is not None
    assert (found.margins == 0).any(axis=0).all()
    assert (found.margins == 0).any(axis=1).all()


@pytest.mark.parametrize("shape", INTEGRAL, ids=str)
def test_at_rest_both_interior_rules_leave_no_tight_edge(shape: Shape) -> None:
    rest = fixed_points(shape, BOTH_INTERIOR, "rest")
    rest.formulas.append(z3.Sum(rest.margins.tight_counts()) > 0)
    assert rest.solve(Margins.fewer_tight_edges_than_vertices) is None
    assert rest.solve() is not None
