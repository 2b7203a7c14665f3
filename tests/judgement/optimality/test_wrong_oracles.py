"""Every optimality property fails when the oracle that it judges is wrong in the way it names.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lp_oracle
from lp_oracle import certificate, descent, dual
from tests.judgement.optimality.verdicts import Patch, each_wrong, verdict_of


def everywhere(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, wrong: Any) -> None:
    """Replace a function of the oracle where it is defined and where it is offered."""
    monkeypatch.setattr(module, name, wrong)
    if hasattr(lp_oracle, name):
        monkeypatch.setattr(lp_oracle, name, wrong)


def ranks(table: str, **wrong: Callable[[Any], Fraction]) -> Patch:
    """Let rules read other ranks; ``k_1`` and ``q_1`` stand for "k+1" and "q+1"."""
    named = {name.replace("_1", "+1"): rank for name, rank in wrong.items()}

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(descent, table, {**getattr(descent, table), **named})

    return patch


def load(problem: Any) -> int:
    return math.ceil(problem.load)


# The dual ------------------------------------------------------------------------------------


def without_hinges(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(scores: Any, alpha: Any, beta: Any, top_k: int) -> Any:
        load = Fraction(np.shape(scores)[0] * top_k, np.shape(scores)[1])
        return float(top_k * np.sum(alpha) + float(load) * np.sum(beta))

    everywhere(monkeypatch, dual, "dual_objective", wrong)


def load_and_top_k_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dual.dual_objective

    def wrong(scores: Any, alpha: Any, beta: Any, top_k: int) -> Any:
        m, n = np.shape(scores)
        shift = (m * top_k / n - top_k) * (float(np.sum(alpha)) - float(np.sum(beta)))
        return float(right(scores, alpha, beta, top_k)) + shift

    everywhere(monkeypatch, dual, "dual_objective", wrong)


def no_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, dual, "dual_radius", lambda *arguments: 0.0)


def narrow_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dual.token_interval

    def wrong(*arguments: Any) -> dual.Interval:
        interval = right(*arguments)
        return dual.Interval(interval.lower, interval.lower)

    everywhere(monkeypatch, dual, "token_interval", wrong)


def subgradient_without_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dual.expert_subgradient

    def wrong(*arguments: Any) -> dual.Interval:
        interval = right(*arguments)
        return dual.Interval(interval.upper, interval.upper)

    everywhere(monkeypatch, dual, "expert_subgradient", wrong)


def trace_forgets_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(problem: Any, alpha_M: Any, beta_N: Any) -> Any:
        return problem.top_k * alpha_M.sum() + problem.number(problem.load) * beta_N.sum()

    monkeypatch.setattr(descent, "dual_value", wrong)


# Certificates --------------------------------------------------------------------------------


def loads_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    right = certificate._objection

    def wrong(problem: Any, loads_N: Any, margin: Any, allowed: Any) -> Any:
        reason = right(problem, loads_N, margin, allowed)
        return None if reason and "miss the load" in reason else reason

    monkeypatch.setattr(certificate, "_objection", wrong)


def margins_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    right = certificate._objection
    monkeypatch.setattr(
        certificate,
        "_objection",
        lambda problem, loads, margin, allowed: right(problem, loads, 1.0, 0.0),
    )


def ties_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = certificate._objection
    monkeypatch.setattr(
        certificate,
        "_objection",
        lambda problem, loads, margin, allowed: right(
            problem, loads, 1.0 if margin == allowed else margin, allowed
        ),
    )


def radius_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    right = certificate._least_margin
    monkeypatch.setattr(
        certificate, "_least_margin", lambda problem, biased, radius: right(problem, biased, 0.0)
    )


def nothing_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_objection", lambda *arguments: "not today")


def residual_ignored(name: str) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = certificate.Certificate.failures.fget
        assert right is not None
        wrong = property(lambda self: tuple(part for part in right(self) if part != name))
        monkeypatch.setattr(certificate.Certificate, "failures", wrong)

    return patch


def everything_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate.Certificate, "failures", ())


WRONG: list[tuple[str, str, Patch]] = [
    ("OPT-WEAK", "D without hinges", without_hinges),
    ("OPT-WEAK", "q and k swapped in D", load_and_top_k_swapped),
    ("OPT-WEAK", "rounding ignored", no_radius),
    ("OPT-STEP", "rank k + 2", ranks("TOKEN_RULES", k_1=lambda p: Fraction(p.top_k + 2))),
    ("OPT-STEP", "rank k - 1", ranks("TOKEN_RULES", k=lambda p: Fraction(p.top_k - 1))),
    ("OPT-STEP", "rank q + 2", ranks("EXPERT_RULES", q_1=lambda p: Fraction(load(p) + 2))),
    ("OPT-STEP", "rank floor(q)", ranks("EXPERT_RULES", q=lambda p: Fraction(math.floor(p.load)))),
    ("OPT-STEP", "intervals too narrow", narrow_intervals),
    ("OPT-STEP", "ties left out of the subdifferential", subgradient_without_ties),
    ("OPT-DESCENT", "rank q + 2", ranks("EXPERT_RULES", q_1=lambda p: Fraction(load(p) + 2))),
    ("OPT-DESCENT", "rank q - 1", ranks("EXPERT_RULES", q=lambda p: Fraction(load(p) - 1))),
    ("OPT-DESCENT", "rank k + 2", ranks("TOKEN_RULES", midpoint=lambda p: Fraction(p.top_k + 2))),
    ("OPT-DESCENT", "D of the trace without hinges", trace_forgets_the_bounds),
    (
        "OPT-FIXED",
        "midpoint and linear read the corner",
        ranks("EXPERT_RULES", midpoint=lambda p: p.load + 1, linear=lambda p: p.load + 1),
    ),
    ("OPT-FIXED", "rank q + 2", ranks("EXPERT_RULES", q_1=lambda p: Fraction(load(p) + 2))),
    ("OPT-CERT", "loads ignored", loads_ignored),
    ("OPT-CERT", "margins ignored", margins_ignored),
    ("OPT-CERT", "ties accepted", ties_accepted),
    ("OPT-CERT", "radius ignored", radius_taken_once),
    ("OPT-CERT", "nothing is ever certified", nothing_certified),
    ("OPT-CERT", "everything is certified", everything_certified),
    *(
        ("OPT-CERT", f"{name} ignored", residual_ignored(name))
        for name in ("rows", "columns", "bounds", "dual feasibility", "complementary slackness")
    ),
    ("OPT-JAM", "q+1 reads q", ranks("EXPERT_RULES", q_1=lambda p: Fraction(load(p)))),
    ("OPT-JAM", "k reads the midpoint", ranks("TOKEN_RULES", k=lambda p: p.top_k + Fraction(1, 2))),
]


@each_wrong(WRONG)
def test_a_wrong_oracle_is_found(
    property_id: str, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    assert verdict_of(property_id) == "failed"


@pytest.mark.parametrize(
    ("token_rank", "expert_rank"),
    [
        (lambda p: Fraction(p.top_k + 1), lambda p: p.load + 1),
        (lambda p: Fraction(p.top_k), lambda p: p.load),
    ],
    ids=["lower corners", "upper corners"],
)
def test_interior_rules_that_read_corners_do_not_reach_the_optimum(
    token_rank: Any, expert_rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks("TOKEN_RULES", midpoint=token_rank, linear=token_rank)(monkeypatch)
    ranks("EXPERT_RULES", midpoint=expert_rank, linear=expert_rank)(monkeypatch)
    assert verdict_of("OPT-REACH") == "failed"


def test_too_few_rounds_are_unknown_and_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = descent.coordinate_descent
    monkeypatch.setattr(
        lp_oracle, "coordinate_descent", lambda *a, **options: right(*a, **{**options, "rounds": 0})
    )
    assert verdict_of("OPT-REACH", "quick") == "unknown"


@pytest.mark.parametrize("property_id", ["OPT-WEAK", "OPT-FIXED", "OPT-REACH", "OPT-CERT"])
def test_a_solver_that_gives_up_is_unknown(
    property_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = lp_oracle.solve_linprog
    monkeypatch.setattr(
        lp_oracle, "solve_linprog", lambda *a: replace(right(*a), status="time limit")
    )
    assert verdict_of(property_id, "quick") == "unknown"


@pytest.mark.parametrize("property_id", ["OPT-FIXED", "OPT-REACH", "OPT-IMPL"])
def test_a_solution_that_its_multipliers_do_not_confirm_is_unknown(
    property_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = lp_oracle.solve_linprog

    def mirrored(scores: Any, top_k: int) -> Any:
        """Feasible, but the best assignment of other scores."""
        other = right(np.max(scores) - np.asarray(scores), top_k)
        return replace(right(scores, top_k), assignment=other.assignment)

    monkeypatch.setattr(lp_oracle, "solve_linprog", mirrored)
    assert verdict_of(property_id, "quick") == "unknown"


@pytest.mark.parametrize(
    "property_id",
    ["OPT-WEAK", "OPT-STEP", "OPT-DESCENT", "OPT-FIXED", "OPT-REACH", "OPT-CERT", "OPT-JAM"],
)
def test_the_oracle_itself_passes(property_id: str) -> None:
    assert verdict_of(property_id, "quick") == "passed"
