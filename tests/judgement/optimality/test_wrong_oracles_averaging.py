"""The properties on drift, averaging and perturbed descent fail when the oracle is wrong.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lp_oracle
from lp_oracle import certificate, descent, perturbation
from tests.judgement.optimality.verdicts import Patch, each_wrong, verdict_of

IDS = ["OPT-DRIFT", "OPT-AVERAGE", "OPT-EVERY"]


# Half steps and certificates -----------------------------------------------------------------


def token_rank(rank: Callable[[Any], Fraction]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(descent, "TOKEN_RULES", {**descent.TOKEN_RULES, "k+1": rank})

    return patch


def expert_rank(rank: Callable[[Any], Fraction]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(descent, "EXPERT_RULES", {**descent.EXPERT_RULES, "q": rank})

    return patch


def centred(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lp_oracle.expert_step

    def wrong(*arguments: Any, **options: Any) -> Any:
        beta_N = right(*arguments, **options)
        return beta_N - beta_N.sum() // len(beta_N)

    monkeypatch.setattr(lp_oracle, "expert_step", wrong)


def sign_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lp_oracle.token_step
    monkeypatch.setattr(
        lp_oracle,
        "token_step",
        lambda scores, beta, top_k, *, rule: right(scores, -np.asarray(beta), top_k, rule=rule),
    )


def nothing_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "_objection", lambda *arguments: "not today")


def margin_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    right = certificate._least_margin

    def wrong(*arguments: Any) -> Any:
        margin, allowed = right(*arguments)
        return Fraction(margin) / 2, allowed

    monkeypatch.setattr(certificate, "_least_margin", wrong)


# Perturbed descent ---------------------------------------------------------------------------


def any_assignment_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is optimal for the perturbed scores is taken for optimal in every phase."""
    monkeypatch.setattr(
        perturbation._Copied, "multipliers", lambda self, counts_MN, start_N: start_N
    )


def first_sweep_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    right = perturbation._Copied.multipliers

    def wrong(self: Any, counts_MN: Any, start_N: Any) -> Any:
        found_N = right(self, counts_MN, start_N)
        return None if found_N is None else start_N

    monkeypatch.setattr(perturbation._Copied, "multipliers", wrong)


def one_copy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a token are not averaged: the first one's experts are its assignment."""
    monkeypatch.setattr(
        perturbation._Copied,
        "counts",
        lambda self, chosen_CN: self.copies * chosen_CN[:: self.copies].astype(np.int64),
    )


def scale_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    right = perturbation._Copied.of.__func__  # type: ignore[attr-defined]

    def wrong(cls: Any, problem: Any) -> Any:
        return replace(right(cls, problem), step=Fraction(1))

    monkeypatch.setattr(perturbation._Copied, "of", classmethod(wrong))


def everything_with_the_largest_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """K = N with a dual that is feasible but not optimal."""
    right = perturbation._everything

    def wrong(problem: Any) -> Any:
        return replace(right(problem), token_multipliers=problem.scores.max(axis=1))

    monkeypatch.setattr(perturbation, "_everything", wrong)


WRONG: list[tuple[str, str, Patch]] = [
    ("OPT-DRIFT", "rank k", token_rank(lambda p: Fraction(p.top_k))),
    ("OPT-DRIFT", "rank k + 2", token_rank(lambda p: Fraction(p.top_k + 2))),
    ("OPT-DRIFT", "rank q + 1", expert_rank(lambda p: Fraction(p.load + 1))),
    ("OPT-DRIFT", "rank floor(q)", expert_rank(lambda p: Fraction(p.load // 1))),
    ("OPT-DRIFT", "midpoint for q", expert_rank(lambda p: p.load + Fraction(1, 2))),
    ("OPT-DRIFT", "beta centred", centred),
    ("OPT-DRIFT", "sign of beta", sign_turned),
    ("OPT-DRIFT", "nothing is ever certified", nothing_certified),
    ("OPT-DRIFT", "margins reported too small", margin_halved),
    ("OPT-AVERAGE", "rank k", token_rank(lambda p: Fraction(p.top_k))),
    ("OPT-AVERAGE", "rank q + 1", expert_rank(lambda p: Fraction(p.load + 1))),
    ("OPT-AVERAGE", "beta centred", centred),
    ("OPT-AVERAGE", "sign of beta", sign_turned),
    ("OPT-AVERAGE", "nothing is ever certified", nothing_certified),
    ("OPT-EVERY", "any assignment is proved", any_assignment_proved),
    ("OPT-EVERY", "multipliers are not settled", first_sweep_is_enough),
    ("OPT-EVERY", "copies are not averaged", one_copy_counts),
    ("OPT-EVERY", "multipliers keep the scale of the grid", scale_forgotten),
    ("OPT-EVERY", "K = N without its dual", everything_with_the_largest_score),
]


@each_wrong(WRONG)
def test_a_wrong_oracle_is_found(
    property_id: str, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    assert verdict_of(property_id) == "failed"


def test_too_few_rounds_are_unknown_and_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lp_oracle.perturbed_descent
    monkeypatch.setattr(
        lp_oracle, "perturbed_descent", lambda *a, **options: right(*a, **options, rounds=0)
    )
    assert verdict_of("OPT-EVERY", "quick") == "unknown"


def test_descent_without_perturbation_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are all zero leave the ties: midpoints stop, and nothing is claimed."""

    def plain(self: Any, rng: Any) -> Any:
        levels_CN = np.repeat(self.levels, self.copies, axis=0)
        yield perturbation._Phase(levels_CN, 1, 1, False)

    monkeypatch.setattr(perturbation._Copied, "phases", plain)
    assert verdict_of("OPT-EVERY", "quick") == "unknown"


@pytest.mark.parametrize("property_id", IDS)
def test_the_oracle_itself_passes(property_id: str) -> None:
    assert verdict_of(property_id, "quick") == "passed"
