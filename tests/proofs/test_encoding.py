"""The encoding says what the code does, and its short forms say what they stand for."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import z3

from lp_oracle import EXPERT_RULES, TOKEN_RULES
from tests.proofs.agreement import CHECKS, subsets
from tests.proofs.claims import (
    EVERY_PAIR,
    SOUND_PAIRS,
    above_optimum,
    first_solution,
    fixed_points,
)
from tests.proofs.encoding import (
    EXPERT_SIDES,
    TOKEN_SIDES,
    Formula,
    Margins,
    Shape,
    Term,
    indicator,
    number,
    total,
)
from tests.proofs.solving import UndecidedError, decide

ROWS = [(n, top_k) for n in range(2, 7) for top_k in range(1, n)]
ALWAYS_TRUE = ("returns it", "in a forest")


@pytest.mark.parametrize("check", CHECKS)
def test_formulas_agree_with_the_code(check: Any) -> None:
    """And often enough both are true, and both are false, to be compared at all."""
    outcomes: dict[str, list[bool]] = {}
    for name, said, true in check(Margins):
        assert said == true, name
        outcomes.setdefault(name, []).append(true)
    for name, seen in outcomes.items():
        assert sum(seen) >= 10, name
        assert len(seen) - sum(seen) >= 10 or name.endswith(ALWAYS_TRUE), name


def test_every_rule_has_a_side() -> None:
    assert set(TOKEN_SIDES) == set(TOKEN_RULES)
    assert set(EXPERT_SIDES) == set(EXPERT_RULES)


@pytest.mark.parametrize("motion", ["rest", "rise", "fall"])
def test_order_of_the_terms_is_implied(motion: Any) -> None:
    """The premises beyond the signs of c hold for all numbers, so they assume nothing."""
    shape = Shape(2, 3, 1)
    margins = Margins.unknown(shape, motion)
    premises = margins.premises(motion)
    signs = 0 if motion == "rest" else shape.n
    assert decide(premises) is not None
    assert decide([*premises[:signs], z3.Not(z3.And(premises[signs:]))]) is None


def _row(n: int, top_k: int) -> tuple[Margins, Term, Term]:
    """One token; its k-th and (k+1)-th largest as unknowns, with what defines them."""
    row = Margins.unknown(Shape(1, n, top_k), "rest")
    return row, z3.Real("upper"), z3.Real("lower")


def _is_ranked(row: Margins, value: Term, rank: int) -> Formula:
    above = total(indicator(x > value) for x in row.p[0])
    least = total(indicator(x >= value) for x in row.p[0])
    return row.reads(above, least, rank, "upper")


@pytest.mark.parametrize(("n", "top_k"), ROWS)
def test_interior_covers_midpoint_and_linear(n: int, top_k: int) -> None:
    """Interior is 0 strictly between both statistics or equal to both; so are both rules."""
    row, upper, lower = _row(n, top_k)
    defined = [_is_ranked(row, upper, top_k), _is_ranked(row, lower, top_k + 1)]
    interior = row.token_rule(0, "interior")
    by_definition = z3.Or(z3.And(lower < 0, upper > 0), z3.And(lower == 0, upper == 0))
    assert decide([*defined, interior != by_definition]) is None
    for weight in (Fraction(1, 2), 1 - Fraction(top_k, n)):
        read = upper + number(weight) * (lower - upper)
        assert decide([*defined, read == 0, z3.Not(interior)]) is None


@pytest.mark.parametrize(("n", "top_k"), ROWS)
def test_short_form_of_the_certificate(n: int, top_k: int) -> None:
    """An expert is in argtop_k if at most k are as good; after an exact step signs say so."""
    row, _, _ = _row(n, top_k)
    p = row.p[0]
    in_top = [indicator(total(indicator(y >= x) for y in p) <= top_k) for x in p]
    exact_step = [total(row.positive[0]) <= top_k, total(row.least[0]) >= top_k]
    strict = total(in_top) == top_k
    assert decide([*exact_step, strict != row.margin_is_strict(0)]) is None
    by_signs = [
        z3.If(total(row.positive[0]) == top_k, above, least)
        for above, least in zip(row.positive[0], row.least[0], strict=True)
    ]
    differ = z3.Or([x != y for x, y in zip(in_top, by_signs, strict=True)])
    assert decide([*exact_step, strict, differ]) is None


def test_fractional_load_has_one_minimiser() -> None:
    margins = Margins.unknown(Shape(2, 3, 1), "rest")
    with pytest.raises(ValueError, match="q = 2/3 has one minimiser: use the side 'upper'"):
        margins.expert_rule(0, "lower")


def test_giving_up_is_not_a_proof() -> None:
    """Three cubes that sum to 114: not known to be decidable, and surely not in a second."""
    x, y, z = z3.Ints("x y z")
    with pytest.raises(UndecidedError):
        decide([x * x * x + y * y * y + z * z * z == 114, x > 10**6], seconds=1)


@pytest.mark.parametrize("shape", [Shape(4, 2, 1), Shape(3, 3, 1)], ids=str)
def test_renumbering_loses_nothing(shape: Shape) -> None:
    """Any row, column or cut that fails can be moved to the front: ask for all, find no more."""
    for pair in SOUND_PAIRS:
        rest = fixed_points(shape, pair, "rest")
        unproved = z3.Not(rest.margins.certified())
        fewer = rest.margins.fewer_tight_edges_than_vertices()
        assert decide([*rest.formulas, fewer, unproved]) is None
    for pair in EVERY_PAIR:
        rest = fixed_points(shape, pair, "rest")
        cuts = itertools.product(subsets(shape.m), subsets(shape.n))
        violated = z3.Or([rest.margins.is_violated(rows, columns) for rows, columns in cuts])
        anywhere = decide([*rest.formulas, violated])
        assert (anywhere is None) == (first_solution(above_optimum(rest)) is None)
