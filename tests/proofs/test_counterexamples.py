"""What the solver finds once a hypothesis is dropped, judged in exact arithmetic without it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from lp_oracle import (
    INSTANCES,
    PinnedInstance,
    coordinate_descent,
    dual_objective,
    expert_step,
    token_step,
)
from tests.lp_oracle.drawing import best_value, is_generic
from tests.proofs.agreement import constant, holds, subsets
from tests.proofs.claims import (
    BOTH_INTERIOR,
    CLAIMS,
    EQUAL_CORNERS,
    WITH_A_CORNER,
    first_solution,
    fixed_points,
    fraction_jams,
    jams,
    uncertified,
)
from tests.proofs.encoding import EXPERT_SIDES, TOKEN_SIDES, Margins, Pair, Shape, Side
from tests.proofs.solving import Solution

# Where each pair with a corner first rests above LP* on tied scores; every other has none there.
CORNER_TIES: dict[Pair, tuple[int, ...]] = {
    ("lower", "interior"): (3,),
    ("lower", "upper"): (1, 2, 3),
    ("interior", "lower"): (3,),
    ("interior", "upper"): (1,),
    ("upper", "lower"): (1, 2, 3),
    ("upper", "interior"): (1,),
}


def rules(pair: Pair) -> Iterator[tuple[str, str]]:
    """The rules of the oracle on these sides."""
    for token_rule, token_side in TOKEN_SIDES.items():
        for expert_rule, expert_side in EXPERT_SIDES.items():
            if (token_side, expert_side) == pair:
                yield token_rule, expert_rule


def require_jam(found: Solution | None, pair: Pair) -> Solution:
    """From beta = 0 every rule of these sides stops at once, for ever, above the optimum."""
    assert found is not None
    scores, top_k = found.scores, found.shape.top_k
    best = best_value(scores, top_k)
    for token_rule, expert_rule in rules(pair):
        trace = coordinate_descent(
            scores,
            top_k,
            token_rule=token_rule,  # type: ignore[arg-type]
            expert_rule=expert_rule,  # type: ignore[arg-type]
        )
        assert (trace.outcome, trace.rounds) == ("jammed", 1)
        assert trace.minimises
        assert trace.drifts == (0,)
        assert trace.dual_values[0] == trace.dual_values[1] > best
    return found


@pytest.mark.parametrize("pair", EQUAL_CORNERS, ids="-".join)
@pytest.mark.parametrize("top_k", [1, 2])
def test_equal_corners_jam_at_three_by_three(pair: Pair, top_k: int) -> None:
    """Generic scores; TWO proves that no smaller shape will do. Midpoints find the optimum."""
    found = first_solution(jams(Shape(3, 3, top_k), [pair]), Margins.no_cycle_cancels)
    scores = require_jam(found, pair).scores
    assert is_generic(scores)
    trace = coordinate_descent(scores, top_k, token_rule="midpoint", expert_rule="midpoint")
    assert trace.outcome == "certified"
    assert trace.dual_values[-1] == best_value(scores, top_k)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
def test_ties_jam_interior_rules_at_five_by_five(top_k: int) -> None:
    """TIES proves that nothing with fewer entries will do."""
    cases = jams(Shape(5, 5, top_k), [BOTH_INTERIOR])
    found = require_jam(first_solution(cases, Margins.every_vertex_is_tight), BOTH_INTERIOR)
    assert not is_generic(found.scores)


@pytest.mark.parametrize("pair", WITH_A_CORNER, ids="-".join)
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_ties_jam_pairs_with_a_corner_at_four_by_four(pair: Pair, top_k: int) -> None:
    """CORNER-TIES proves that nothing with fewer entries will do."""
    found = first_solution(jams(Shape(4, 4, top_k), [pair]), Margins.every_vertex_is_tight)
    if top_k in CORNER_TIES[pair]:
        require_jam(found, pair)
    else:
        assert first_solution(jams(Shape(4, 4, top_k), [pair])) is None


@pytest.mark.parametrize("top_k", [1, 4])
def test_fraction_jams_interior_rules_at_two_by_five(top_k: int) -> None:
    """Generic scores; FRACTION proves that nothing with fewer entries will do."""
    needed = (Margins.no_cycle_cancels, Margins.every_vertex_is_tight)
    found = first_solution(fraction_jams(Shape(2, 5, top_k), ["interior"]), *needed)
    assert is_generic(require_jam(found, ("interior", "upper")).scores)


@pytest.mark.parametrize(("top_k", "side"), [(1, "upper"), (2, "lower")])
def test_fraction_jams_corners_at_two_by_three(top_k: int, side: Side) -> None:
    """Generic scores. CORNER-FRACTION proves that nothing with fewer entries will do."""
    shape = Shape(2, 3, top_k)
    found = first_solution(fraction_jams(shape, [side]), Margins.no_cycle_cancels)
    assert is_generic(require_jam(found, (side, "upper")).scores)
    other: Side = "lower" if side == "upper" else "upper"
    assert first_solution(fraction_jams(shape, [other])) is None


def test_claims_fail_where_they_are_said_to() -> None:
    """Each named shape contradicts the claim that stops short of it."""
    claims = {claim.name: claim for claim in CLAIMS}
    for name, shape in {
        "TWO": Shape(3, 3, 1),
        "TIES": Shape(5, 5, 1),
        "CORNER-TIES": Shape(4, 4, 1),
        "FRACTION": Shape(2, 5, 1),
        "CORNER-FRACTION": Shape(2, 3, 1),
    }.items():
        assert not claims[name].holds_at(shape)
        assert claims[name].counterexample(shape) is not None


def _stops_above_optimum(instance: PinnedInstance) -> bool:
    return instance.outcome == "jammed" and instance.dual_value > instance.optimum


@pytest.mark.parametrize(
    "instance",
    [pytest.param(x, id=name) for name, x in INSTANCES.items() if _stops_above_optimum(x)],
)
def test_pinned_jams_satisfy_the_formulas(instance: PinnedInstance) -> None:
    """Where their descents stop: a fixed point of the named sides, and a cut that is violated."""
    scores, top_k = instance.scores, instance.top_k
    pair = TOKEN_SIDES[instance.token_rule], EXPERT_SIDES[instance.expert_rule]
    trace = coordinate_descent(
        scores, top_k, token_rule=instance.token_rule, expert_rule=instance.expert_rule
    )
    beta_N = trace.expert_multipliers
    alpha_M = token_step(scores, beta_N, top_k, rule=instance.token_rule)
    c_N = expert_step(scores, alpha_M, top_k, rule=instance.expert_rule) - beta_N
    shape = Shape(*scores.shape, top_k)
    margins = constant(Margins, shape, scores - alpha_M[:, None] - beta_N, c_N)
    assert all(holds(formula) for formula in margins.fixed_point(pair))
    cuts = itertools.product(subsets(shape.m), subsets(shape.n))
    assert any(holds(margins.is_violated(rows, columns)) for rows, columns in cuts)


def test_ties_can_withhold_the_certificate_at_the_optimum() -> None:
    """At 2 x 2 nothing rests above LP*, yet a tie leaves argtop_k without a proof."""
    found = first_solution(uncertified(fixed_points(Shape(2, 2, 1), BOTH_INTERIOR, "rest")))
    assert found is not None
    scores = found.scores
    trace = coordinate_descent(scores, 1, token_rule="midpoint", expert_rule="midpoint")
    assert trace.outcome == "jammed"
    assert trace.dual_values[-1] == best_value(scores, 1)


def test_scores_have_the_margins_that_were_found() -> None:
    """Up to a factor and what a token step subtracts."""
    found = fixed_points(Shape(3, 3, 1), BOTH_INTERIOR, "rise", together=True).solve()
    assert found is not None
    zeros = np.zeros(3, dtype=int)
    assert len(set(found.increments)) == 1
    assert found.increments[0] > 0
    assert found.scores.min() == 0
    trace = coordinate_descent(found.scores, 1)
    assert trace.outcome == "certified"
    assert dual_objective(found.scores, trace.token_multipliers, zeros, 1) == trace.dual_values[0]
