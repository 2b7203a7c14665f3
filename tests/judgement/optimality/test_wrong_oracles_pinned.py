"""The pinned counterexamples fail when the oracle, the reference or the pinned facts are wrong.

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
import reference_numpy
from lp_oracle import certificate, descent, instances
from properties.judgement.optimality.pinned import best_value, unmet_demand
from tests.judgement.optimality.verdicts import Patch, each_wrong, verdict_of
from tests.lp_oracle.drawing import best_value as best_value_of_tests
from tests.lp_oracle.drawing import drawn

PINNED = (
    "OPT-TIES",
    "OPT-FRACTION",
    "OPT-PRICEWAR",
    "OPT-ALTERNATE",
    "QB-LOCALMEAN",
    "QB-NOTMONO",
)


def ranks(table: str, rule: str, rank: Callable[[Any], Fraction]) -> Patch:
    """Let a rule read another rank."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(descent, table, {**getattr(descent, table), rule: rank})

    return patch


def pinned(name: str, **wrong: Any) -> Patch:
    """Pin another fact."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        if name in lp_oracle.INSTANCES:
            changed = replace(lp_oracle.INSTANCES[name], **wrong)
            monkeypatch.setitem(instances.INSTANCES, name, changed)
        else:
            monkeypatch.setattr(lp_oracle, name, replace(getattr(lp_oracle, name), **wrong))

    return patch


def load(problem: Any) -> int:
    return math.ceil(problem.load)


def without_hinges(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(problem: Any, alpha_M: Any, beta_N: Any) -> Any:
        return problem.top_k * alpha_M.sum() + problem.number(problem.load) * beta_N.sum()

    monkeypatch.setattr(descent, "dual_value", wrong)


def always_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_objection", lambda *arguments: None)


def never_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_objection", lambda *arguments: "not today")


def solver_below_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lp_oracle.solve_linprog

    def wrong(scores: Any, top_k: int) -> Any:
        other = right(np.max(scores) - np.asarray(scores), top_k)
        return replace(right(scores, top_k), assignment=other.assignment)

    monkeypatch.setattr(lp_oracle, "solve_linprog", wrong)


def update(wrong: Callable[..., Any]) -> Patch:
    """Replace the reference's update by a function of the right one and its arguments."""
    right = reference_numpy.quantile_update

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            reference_numpy,
            "quantile_update",
            lambda logits, bias, **options: wrong(right, logits, bias, **options),
        )

    return patch


def idle(right: Any, logits: Any, bias: Any, **options: Any) -> Any:
    return np.array(bias)


def turned(right: Any, logits: Any, bias: Any, **options: Any) -> Any:
    return -right(logits, bias, **options)


def of_the_mean(right: Any, logits: Any, bias: Any, **options: Any) -> Any:
    s_MN = reference_numpy.scores(logits)
    return -np.mean(s_MN, axis=0)


WRONG: list[tuple[str, str, Patch]] = [
    ("OPT-TIES", "q+1 reads q", ranks("EXPERT_RULES", "q+1", lambda p: Fraction(load(p)))),
    ("OPT-TIES", "q reads q+1", ranks("EXPERT_RULES", "q", lambda p: Fraction(load(p) + 1))),
    ("OPT-TIES", "k reads k+1", ranks("TOKEN_RULES", "k", lambda p: Fraction(p.top_k + 1))),
    ("OPT-TIES", "k+1 reads k", ranks("TOKEN_RULES", "k+1", lambda p: Fraction(p.top_k))),
    (
        "OPT-TIES",
        "the linear cutoff is a midpoint",
        ranks("TOKEN_RULES", "linear", lambda p: p.top_k + Fraction(1, 2)),
    ),
    (
        "OPT-TIES",
        "the midpoint reads q + 3/2",
        ranks("EXPERT_RULES", "midpoint", lambda p: load(p) + Fraction(3, 2)),
    ),
    ("OPT-TIES", "D without hinges", without_hinges),
    ("OPT-TIES", "everything is certified", always_certified),
    ("OPT-TIES", "another optimum", pinned("TIES_INTERIOR", optimum=Fraction(3))),
    ("OPT-TIES", "another dual", pinned("TIES_TOKEN_K", dual_value=Fraction(3))),
    ("OPT-TIES", "scores that do not jam", pinned("TIES_MIRROR", rows=((0, 1), (1, 0)))),
    ("OPT-TIES", "a pair that does not jam", pinned("TIES_CORNER", others=(("k", "linear"),))),
    ("OPT-FRACTION", "q rounded down", ranks("EXPERT_RULES", "q", lambda p: p.load // 1 * 1)),
    ("OPT-FRACTION", "k reads k+1", ranks("TOKEN_RULES", "k", lambda p: Fraction(p.top_k + 1))),
    ("OPT-FRACTION", "k+1 reads k", ranks("TOKEN_RULES", "k+1", lambda p: Fraction(p.top_k))),
    (
        "OPT-FRACTION",
        "the linear statistic is a midpoint",
        ranks("EXPERT_RULES", "linear", lambda p: load(p) + Fraction(1, 2)),
    ),
    (
        "OPT-FRACTION",
        "the midpoint reads the minimiser",
        ranks("EXPERT_RULES", "midpoint", lambda p: Fraction(load(p))),
    ),
    ("OPT-FRACTION", "another optimum", pinned("FRACTION_RISES", optimum=Fraction(3, 2))),
    ("OPT-FRACTION", "another dual", pinned("FRACTION_LINEAR", dual_value=Fraction(3))),
    ("OPT-FRACTION", "another start", pinned("FRACTION_OFF_MINIMISER", start=Fraction(1))),
    ("OPT-PRICEWAR", "q reads q+1", ranks("EXPERT_RULES", "q", lambda p: Fraction(load(p) + 1))),
    (
        "OPT-PRICEWAR",
        "q reads a midpoint",
        ranks("EXPERT_RULES", "q", lambda p: load(p) + Fraction(1, 2)),
    ),
    ("OPT-PRICEWAR", "k+1 reads k", ranks("TOKEN_RULES", "k+1", lambda p: Fraction(p.top_k))),
    ("OPT-PRICEWAR", "D without hinges", without_hinges),
    ("OPT-PRICEWAR", "nothing is certified", never_certified),
    ("OPT-PRICEWAR", "everything is certified", always_certified),
    (
        "OPT-PRICEWAR",
        "no near-ties",
        pinned("PRICE_WAR", near=((0,) * 4, (0, 2, 0, 0), (0,) * 4, (2, 0, 0, 0)), near_optimum=4),
    ),
    (
        "OPT-ALTERNATE",
        "q reads a midpoint",
        ranks("EXPERT_RULES", "q", lambda p: load(p) + Fraction(1, 2)),
    ),
    ("OPT-ALTERNATE", "k+1 reads k", ranks("TOKEN_RULES", "k+1", lambda p: Fraction(p.top_k))),
    ("OPT-ALTERNATE", "everything is certified", always_certified),
    ("OPT-ALTERNATE", "another instance", pinned("ALTERNATING", rows=((0, 0), (0, 0)))),
    (
        "QB-LOCALMEAN",
        "the oracle's linear is q",
        ranks("EXPERT_RULES", "linear", lambda p: Fraction(load(p))),
    ),
    ("QB-LOCALMEAN", "ties accepted, loads ignored", always_certified),
    ("QB-LOCALMEAN", "the update does nothing", update(idle)),
    ("QB-LOCALMEAN", "the update's sign is turned", update(turned)),
    ("QB-LOCALMEAN", "the update is a mean, which averages", update(of_the_mean)),
    ("QB-LOCALMEAN", "ranks of other sizes", pinned("LOCAL_MEAN", parts=((0, 1, 2), (3,)))),
    (
        "QB-NOTMONO",
        "the oracle's linear is q",
        ranks("EXPERT_RULES", "linear", lambda p: Fraction(load(p))),
    ),
    ("QB-NOTMONO", "D without hinges", without_hinges),
    ("QB-NOTMONO", "the update does nothing", update(idle)),
    ("QB-NOTMONO", "the update's sign is turned", update(turned)),
    ("QB-NOTMONO", "loads that even out", pinned("UNEVEN_LOADS", loads=((1, 1, 3, 3), (2,) * 4))),
]


@each_wrong(WRONG)
def test_a_wrong_fact_or_oracle_is_found(
    property_id: str, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    assert verdict_of(property_id) == "failed"


@pytest.mark.parametrize("property_id", PINNED)
def test_the_oracle_itself_passes(property_id: str) -> None:
    assert verdict_of(property_id) == "passed"


@pytest.mark.parametrize("property_id", PINNED)
def test_a_solver_whose_multipliers_do_not_confirm_it_never_passes(
    property_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver_below_the_optimum(monkeypatch)
    assert verdict_of(property_id) in ("unknown", "failed")


def test_a_reference_that_reads_another_statistic_fails_the_fraction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = reference_numpy.quantile_update
    monkeypatch.setattr(
        reference_numpy,
        "quantile_update",
        lambda *a, **options: right(*a, **{**options, "statistic": "q"}),
    )
    assert verdict_of("QB-FRACTION") == "failed"


def test_best_value_agrees_with_the_enumeration_of_the_tests() -> None:
    for scores, top_k in drawn(9, 30, [(2, 3, 1), (2, 3, 2), (3, 3, 1), (2, 4, 3), (3, 2, 1)]):
        integers = np.rint(scores * 20).astype(np.int64)
        assert best_value(integers, top_k) == best_value_of_tests(integers, top_k)


def test_demand_is_met_at_the_optimum_and_only_there() -> None:
    """The min-cut says what complementary slackness says: D = LP* exactly if demands can be met."""
    met = []
    for scores, top_k in drawn(11, 120, [(2, 3, 1), (3, 3, 1), (3, 3, 2), (4, 4, 1), (2, 5, 1)]):
        integers = np.rint(scores * 3).astype(np.int64)
        trace = lp_oracle.coordinate_descent(
            integers, top_k, token_rule="k+1", expert_rule="q+1", rounds=1
        )
        alpha, beta = trace.token_multipliers, trace.expert_multipliers
        is_met = unmet_demand(integers, alpha, beta, top_k) == 0
        assert is_met == (trace.dual_values[-1] == best_value(integers, top_k))
        met.append(is_met)
    assert 10 < sum(met) < 110
