"""The properties of the linear program fail when a solver is wrong in the way that they name.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy
from scipy.optimize import linprog

import lp_oracle
from lp_oracle import descent
from properties.judgement.optimality import exchange, program
from properties.registry import find
from tests.judgement.optimality.verdicts import Patch, each_wrong, verdict_of

SOLVED_HERE = ("OPT-VERTEX", "OPT-DUALS", "OPT-INVARIANT", "OPT-CROSS", "OPT-COPIES")

right = lp_oracle.solve_linprog


def solver(wrong: Callable[..., Any]) -> Patch:
    """Let ``wrong(scores, top_k, method=…)`` be the oracle's solver."""
    return lambda monkeypatch: monkeypatch.setattr(lp_oracle, "solve_linprog", wrong)


def altered(**changes: Callable[[Any], Any]) -> Patch:
    """Let the right solution come with other values of these fields."""

    def wrong(scores: Any, top_k: int, **options: Any) -> Any:
        solution = right(scores, top_k, **options)
        return replace(solution, **{name: change(solution) for name, change in changes.items()})

    return solver(wrong)


def of_other_scores(change: Callable[[Any], Any]) -> Patch:
    """Let the program be solved for scores that are changed on the way."""
    return solver(lambda scores, top_k, **options: right(change(scores), top_k, **options))


def program_with(**wrong: Any) -> Patch:
    """Let HiGHS be handed other constraints."""
    return lambda monkeypatch: monkeypatch.setattr(
        scipy.optimize, "linprog", lambda *a, **options: linprog(*a, **{**options, **wrong})
    )


def whole_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractional loads rounded down, and up for as many experts as it takes."""

    def wrong(costs: Any, *, b_eq: Any, **options: Any) -> Any:
        totals = np.floor(b_eq)
        if (totals < b_eq).any():
            experts = int(np.argmax(totals < b_eq))
            missing = round(float(totals[:experts].sum() - totals[experts:].sum()))
            totals[experts : experts + missing] += 1
        return linprog(costs, b_eq=totals, **options)

    monkeypatch.setattr(scipy.optimize, "linprog", wrong)


def one_method_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(scores: Any, top_k: int, *, method: str = "highs") -> Any:
        if method == "highs-ipm":  # stops early, at three bits
            unit = max(float(np.abs(scores).max()), 1e-300) / 8.0
            return right(np.rint(np.asarray(scores) / unit), top_k)
        return right(scores, top_k, method=method)

    monkeypatch.setattr(lp_oracle, "solve_linprog", wrong)


def middle_of_the_feasible_set(solution: Any) -> Any:
    x_MN = solution.assignment
    return (x_MN + x_MN.mean()) / 2.0


def first_exchange_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = exchange._longest_paths
    monkeypatch.setattr(exchange, "_longest_paths", lambda *a: (None, found(*a)[1]))


def an_edge_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange without x <= 1."""
    paths, move = exchange._longest_paths, exchange._exchange
    monkeypatch.setattr(exchange, "_longest_paths", lambda s, counts, parts: paths(s, counts, 99))
    monkeypatch.setattr(exchange, "_exchange", lambda counts, cycle, parts: move(counts, cycle, 99))


# Descents ------------------------------------------------------------------------------------


def start_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = descent.coordinate_descent
    monkeypatch.setattr(
        lp_oracle,
        "coordinate_descent",
        lambda *a, start=None, **options: rounds(*a, **options),
    )


def centred_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multipliers of absolute size: every token step is brought back to mean 0."""
    step = descent._token_step
    monkeypatch.setattr(
        descent, "_token_step", lambda *a: (alpha := step(*a)) - alpha.sum() / Fraction(len(alpha))
    )


def scores_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    step = descent._expert_step
    monkeypatch.setattr(descent, "_expert_step", lambda *a: np.clip(step(*a), -1000, 1000))


def cutoff_above_the_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank k - 1/2 routes alike, but prices a chosen edge at a loss."""
    rules = {**descent.TOKEN_RULES, "midpoint": lambda p: p.top_k - Fraction(1, 2)}
    monkeypatch.setattr(descent, "TOKEN_RULES", rules)


NEGATED: dict[str, Callable[[Any], Any]] = {
    "alpha": lambda solution: -solution.token_multipliers,
    "beta": lambda solution: -solution.expert_multipliers,
    "w": lambda solution: -solution.bound_multipliers,
}

WRONG: list[tuple[str, str, Patch]] = [
    ("OPT-VERTEX", "no vertex", altered(assignment=middle_of_the_feasible_set)),
    ("OPT-VERTEX", "x >= 0 alone", program_with(bounds=(0.0, None))),
    ("OPT-VERTEX", "loads rounded up and down", whole_loads),
    ("OPT-VERTEX", "near whole numbers", altered(assignment=lambda s: 0.999 * s.assignment)),
    ("OPT-VERTEX", "exchanges stop early", first_exchange_is_the_last),
    ("OPT-VERTEX", "an edge used twice", an_edge_used_twice),
    ("OPT-DUALS", "alpha negated", altered(token_multipliers=NEGATED["alpha"])),
    ("OPT-DUALS", "beta negated", altered(expert_multipliers=NEGATED["beta"])),
    ("OPT-DUALS", "w negated", altered(bound_multipliers=NEGATED["w"])),
    ("OPT-DUALS", "no w", altered(bound_multipliers=lambda s: 0.0 * s.bound_multipliers)),
    (
        "OPT-DUALS",
        "scale forgotten",
        altered(
            token_multipliers=lambda s: s.token_multipliers / s.scale,
            expert_multipliers=lambda s: s.expert_multipliers / s.scale,
            bound_multipliers=lambda s: s.bound_multipliers / s.scale,
        ),
    ),
    ("OPT-DUALS", "another optimum", of_other_scores(lambda s: np.max(s) - np.asarray(s))),
    (
        "OPT-DUALS",
        "alpha off by 1e-4",
        altered(token_multipliers=lambda s: s.token_multipliers + 1e-4 * s.scale),
    ),
    ("OPT-DUALS", "cutoff above the chosen", cutoff_above_the_chosen),
    ("OPT-INVARIANT", "negative scores cut", of_other_scores(lambda s: np.maximum(s, 0))),
    ("OPT-INVARIANT", "large scores cut", of_other_scores(lambda s: np.minimum(s, 2**20))),
    ("OPT-INVARIANT", "start ignored", start_ignored),
    ("OPT-INVARIANT", "alpha brought to mean 0", centred_inside),
    ("OPT-INVARIANT", "beta clipped", scores_clipped),
    ("OPT-CROSS", "minimises", of_other_scores(lambda s: -np.asarray(s))),
    ("OPT-CROSS", "x >= 0 alone", program_with(bounds=(0.0, None))),
    ("OPT-CROSS", "loads rounded up and down", whole_loads),
    ("OPT-CROSS", "interior point stops early", one_method_far_off),
    ("OPT-CROSS", "no crossover", altered(assignment=middle_of_the_feasible_set)),
    ("OPT-CROSS", "objective of scaled scores", altered(objective=lambda s: s.objective / s.scale)),
    ("OPT-CROSS", "exchanges stop early", first_exchange_is_the_last),
    ("OPT-CROSS", "an edge used twice", an_edge_used_twice),
    ("OPT-COPIES", "x >= 0 alone", program_with(bounds=(0.0, None))),
    ("OPT-COPIES", "an edge used twice", an_edge_used_twice),
]


@each_wrong(WRONG)
def test_a_wrong_oracle_is_found(
    property_id: str, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    assert verdict_of(property_id) == "failed"


def test_copies_that_respect_the_bound_would_refute_the_counterexample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find("OPT-COPIES")
    module = __import__("properties.test_optimality_program", fromlist=["copied"])
    monkeypatch.setattr(
        module, "copied", lambda scores, top_k: np.minimum(program.copied(scores, top_k), 1)
    )
    assert verdict_of("OPT-COPIES") == "failed"


@pytest.mark.parametrize("property_id", SOLVED_HERE)
def test_a_solver_that_gives_up_is_unknown(
    property_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(status=lambda solution: "time limit")(monkeypatch)
    assert verdict_of(property_id, "quick") == "unknown"


def test_descents_that_are_not_certified_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = descent.coordinate_descent
    monkeypatch.setattr(
        lp_oracle,
        "coordinate_descent",
        lambda *a, **options: rounds(*a, **{**options, "rounds": 0}),
    )
    assert verdict_of("OPT-DUALS", "quick") == "unknown"


@pytest.mark.parametrize("property_id", SOLVED_HERE)
def test_the_oracle_itself_passes(property_id: str) -> None:
    assert verdict_of(property_id, "quick") == "passed"
