"""Every pinned instance: its optimum, its dual and its outcome, each by independent means."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

import lp_oracle
from lp_oracle import (
    EXPERT_RULES,
    INSTANCES,
    TOKEN_RULES,
    AssignmentProblem,
    PinnedInstance,
    certify,
    certify_solution,
    coordinate_descent,
    dual_objective,
    exact,
    expert_step,
    solve_linprog,
    token_step,
)
from lp_oracle import instances as pinned
from tests.lp_oracle.drawing import best_value, drawn, is_generic

EVERY = pytest.mark.parametrize("instance", INSTANCES.values(), ids=INSTANCES.keys())
JAMS = [name for name, instance in INSTANCES.items() if instance.outcome == "jammed"]


@EVERY
def test_optimum(instance: PinnedInstance) -> None:
    """By enumeration, by the solver, and by an exact certificate of the solver's rounded pair."""
    scores, top_k = instance.scores, instance.top_k
    assert best_value(scores, top_k) == instance.optimum
    solution = solve_linprog(scores, top_k)
    assert certify_solution(scores, top_k, solution).certified
    parts = Fraction(1, AssignmentProblem(scores, top_k).load.denominator)
    certificate = certify(
        scores,
        top_k,
        exact(np.rint(solution.assignment * parts.denominator)) * parts,
        np.rint(solution.token_multipliers).astype(int),
        np.rint(solution.expert_multipliers).astype(int),
    )
    assert certificate.certified, str(certificate)
    assert certificate.primal_value == certificate.dual_value == instance.optimum


@EVERY
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_descent(instance: PinnedInstance, centre: bool, dtype: type) -> None:
    for token_rule, expert_rule in instance.pairs:
        trace = coordinate_descent(
            instance.scores.astype(dtype),
            instance.top_k,
            token_rule=token_rule,
            expert_rule=expert_rule,
            centre=centre,
        )
        assert trace.outcome == instance.outcome
        assert trace.minimises
        if dtype is np.int64:
            assert trace.dual_values[-1] == instance.dual_value
        else:
            assert abs(trace.dual_values[-1] - float(instance.dual_value)) < 1e-12


@pytest.mark.parametrize("name", JAMS)
def test_jam_lasts(name: str) -> None:
    """The multipliers where it jams are a fixed point, up to the same constant for all experts."""
    instance = INSTANCES[name]
    scores, top_k = instance.scores, instance.top_k
    assert instance.dual_value > instance.optimum
    for token_rule, expert_rule in instance.pairs:
        trace = coordinate_descent(scores, top_k, token_rule=token_rule, expert_rule=expert_rule)
        beta = trace.expert_multipliers
        for _ in range(5):
            alpha = token_step(scores, beta, top_k, rule=token_rule)
            after = expert_step(scores, alpha, top_k, rule=expert_rule)
            assert dual_objective(scores, alpha, after, top_k) == instance.dual_value
            assert len(set(after - beta)) == 1
            beta = after


@pytest.mark.parametrize("name", [name for name in JAMS if not name.startswith("TIES")])
def test_jam_is_not_the_fault_of_ties(name: str) -> None:
    assert is_generic(INSTANCES[name].scores)


@pytest.mark.parametrize(
    "name", [name for name in JAMS if name.startswith(("CORNER_JAM", "MIRROR_JAM"))]
)
@pytest.mark.parametrize("token_rule", TOKEN_RULES)
@pytest.mark.parametrize("expert_rule", EXPERT_RULES)
def test_only_equal_corners_jam_there(name: str, token_rule: str, expert_rule: str) -> None:
    instance = INSTANCES[name]
    trace = coordinate_descent(
        instance.scores,
        instance.top_k,
        token_rule=token_rule,  # type: ignore[arg-type]
        expert_rule=expert_rule,  # type: ignore[arg-type]
    )
    if (token_rule, expert_rule) in instance.pairs:
        assert trace.outcome == "jammed"
        assert trace.dual_values[-1] == instance.dual_value
    elif "midpoint" in (token_rule, expert_rule) or "linear" in (token_rule, expert_rule):
        assert trace.outcome == "certified"
    elif (token_rule, expert_rule) in [("k+1", "q"), ("k", "q+1")]:
        assert trace.dual_values[-1] == instance.optimum


def test_ties_jam_every_pair_of_rules() -> None:
    instance = pinned.TIES_JAM
    for token_rule in TOKEN_RULES:
        for expert_rule in EXPERT_RULES:
            trace = coordinate_descent(
                instance.scores, 1, token_rule=token_rule, expert_rule=expert_rule
            )
            assert (trace.outcome, trace.dual_values[-1]) == ("jammed", 5)
    assert not is_generic(instance.scores)


def test_every_pair_of_rules_has_its_smallest_ties() -> None:
    pinned_for = [
        pair
        for name, instance in INSTANCES.items()
        if name.startswith("TIES") and name != "TIES_JAM"
        for pair in instance.pairs
    ]
    assert sorted(pinned_for) == sorted(itertools.product(TOKEN_RULES, EXPERT_RULES))


def test_complements_are_mirrors() -> None:
    np.testing.assert_array_equal(pinned.MIRROR_JAM_TOP1.scores, 8 - pinned.CORNER_JAM_TOP2.scores)
    np.testing.assert_array_equal(pinned.MIRROR_JAM_TOP2.scores, 8 - pinned.CORNER_JAM_TOP1.scores)


@pytest.mark.parametrize(("token_rule", "expert_rule"), [("k+1", "q+1"), ("k", "q")])
def test_two_rows_or_two_columns_never_jam(token_rule: str, expert_rule: str) -> None:
    shapes = [(2, 2, 1), (2, 4, 2), (4, 2, 1), (2, 6, 3), (6, 2, 1), (8, 2, 1), (2, 8, 4)]
    for scores, top_k in drawn(0, 60, shapes):
        integers = np.rint(scores * 1000).astype(int)
        trace = coordinate_descent(
            integers,
            top_k,
            token_rule=token_rule,  # type: ignore[arg-type]
            expert_rule=expert_rule,  # type: ignore[arg-type]
        )
        assert trace.dual_values[-1] == best_value(integers, top_k)


def test_fraction_jams_every_token_rule_at_two_by_five() -> None:
    instance = pinned.FRACTION_JAM
    for rule in TOKEN_RULES:
        trace = coordinate_descent(instance.scores, 1, token_rule=rule, expert_rule="q")
        assert (trace.outcome, trace.dual_values[-1]) == ("jammed", instance.dual_value)


def test_fraction_at_two_by_three_jams_only_in_a_corner() -> None:
    """Interior token rules approach the optimum geometrically and never get there."""
    instance = pinned.FRACTION_CORNER_JAM
    for rule in TOKEN_RULES:
        trace = coordinate_descent(instance.scores, 2, token_rule=rule, expert_rule="q", rounds=60)
        gap = trace.dual_values[-1] - instance.optimum
        expected = {"k+1": ("jammed", gap == Fraction(1, 3)), "k": ("jammed", gap == 0)}
        interior = ("unfinished", 0 < gap < 1e-12)
        assert (trace.outcome, True) == expected.get(rule, interior)


def test_alternating_increments() -> None:
    instance = pinned.ALTERNATING
    trace = coordinate_descent(instance.scores, 1, token_rule="k+1", expert_rule="q", rounds=7)
    expected = [[0, 3], [2, 0], [0, 2], [2, 0], [0, 2], [2, 0], [0, 2]]
    np.testing.assert_array_equal(trace.increments, expected)
    assert set(trace.dual_values[1:]) == {4}


def test_cutoffs_at_different_ends_rest_above_the_optimum() -> None:
    """Midpoints on one side need one and the same end, or interior points, on the other."""
    scores = np.array([[0, -1], [0, -2], [4, 0], [8, 0], [-16, 0], [-32, 0]])
    beta = np.zeros(2, dtype=int)
    upper = lp_oracle.token_step(scores, beta, 1, rule="k")
    lower = lp_oracle.token_step(scores, beta, 1, rule="k+1")
    alpha = np.concatenate([upper[:2], lower[2:]])
    assert (lp_oracle.expert_step(scores, alpha, 1, rule="midpoint") == beta).all()
    assert lp_oracle.dual_objective(scores, alpha, beta, 1) == 12
    assert best_value(scores, 1) == 11
    assert is_generic(scores)
