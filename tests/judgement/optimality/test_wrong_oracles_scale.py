"""OPT-SOLVER and OPT-SCALE fail when the solver at scale is wrong, or claims more than it has.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lp_oracle
from properties.strategies import scale
from tests.judgement.optimality.verdicts import verdict_of

right = lp_oracle.certified_optimum

Change = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked here shows at a tenth of the size."""
    monkeypatch.setattr(scale, "REPORT_SHAPE", (896, 112, 16))


def swapped(found: Any) -> Any:
    """Exchange two experts between two tokens, where that is possible: feasible, but worse."""
    x_MN = found.assignment.copy()
    for i, other in zip(range(len(x_MN) - 1), range(1, len(x_MN)), strict=True):
        gives = np.flatnonzero((x_MN[i] == 1) & (x_MN[other] == 0))
        takes = np.flatnonzero((x_MN[i] == 0) & (x_MN[other] == 1))
        if gives.size and takes.size:
            x_MN[i, [gives[0], takes[0]]] = 0, 1
            x_MN[other, [gives[0], takes[0]]] = 1, 0
            break
    return replace(found, assignment=x_MN)


def one_token_short(found: Any) -> Any:
    x_MN = found.assignment.copy()
    x_MN[0, np.argmax(x_MN[0])] = 0
    return replace(found, assignment=x_MN)


def shifted_experts(found: Any) -> Any:
    beta_N = found.expert_multipliers.copy()
    beta_N[0] += 0.25
    return replace(found, expert_multipliers=beta_N)


WRONG: dict[str, Change] = {
    "an exchange that loses": swapped,
    "a token with one expert too few": one_token_short,
    "the multiplier of one expert": shifted_experts,
    "a bias for multipliers": lambda found: replace(
        found, expert_multipliers=-found.expert_multipliers
    ),
    "no multipliers": lambda found: replace(found, token_multipliers=0.0 * found.token_multipliers),
}

OVERCLAIMED: dict[str, Change] = {
    "every optimum is the only one": lambda found: replace(found, proof="strict margins", gap=0.0),
    "every proof is exact": lambda found: replace(found, proof="complementary slackness", gap=0.0),
    "no gap is left": lambda found: replace(found, gap=0.0),
    "a rounded objective": lambda found: replace(
        found, objective=float(np.float32(found.objective))
    ),
}


def patched(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    monkeypatch.setattr(
        lp_oracle, "certified_optimum", lambda scores, top_k: change(right(scores, top_k))
    )


@pytest.mark.parametrize("name", sorted({**WRONG, **OVERCLAIMED}))
def test_the_proof_is_not_taken_on_trust(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, {**WRONG, **OVERCLAIMED}[name])
    assert verdict_of("OPT-SOLVER") == "failed"


@pytest.mark.parametrize("name", sorted(WRONG))
def test_the_size_of_the_report_hides_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, WRONG[name])
    assert verdict_of("OPT-SCALE") == "failed"


def test_what_is_not_certified_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, lambda found: replace(found, proof="none", gap=np.inf))
    assert verdict_of("OPT-SOLVER") == "unknown"


def test_the_right_solver_passes() -> None:
    assert verdict_of("OPT-SCALE") == "passed"
