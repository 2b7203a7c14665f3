"""What DSP-PARALLEL draws of bad tokens: in the gate lane, of every kind, among others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.execution import judge
from properties.judgement.parallel import division
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find
from properties.strategies.splits import BadToken, ParallelExperts
from tests.mutants.ranks_parallel import Dispatched


def drawn() -> list[ParallelExperts]:
    """The inputs of every case of the gate lane."""
    cases: list[ParallelExperts] = []

    def remember(subject: object, drawn: ParallelExperts) -> None:
        del subject
        cases.append(drawn)

    subject = subject_of(Dispatched())
    judge(replace(find("DSP-PARALLEL"), function=remember), subject, LANES["gate"])
    return cases


def spoilt() -> list[tuple[ParallelExperts, BadToken]]:
    return [(case, case.bad) for case in drawn() if case.bad is not None]


def test_bad_tokens_are_of_every_kind() -> None:
    values = [bad.value for _, bad in spoilt()]
    assert any(np.isnan(values))
    assert {np.inf, -np.inf} <= set(values)


def test_bad_tokens_are_rare_and_among_others() -> None:
    cases = drawn()
    assert 0.1 * len(cases) <= len(spoilt()) <= 0.4 * len(cases)
    for case, bad in spoilt():
        assert 0 <= bad.row < len(case.inputs.x) >= 2


def test_bad_tokens_are_beside_tokens_of_their_rank_and_of_others() -> None:
    subject = subject_of(Dispatched())
    beside, elsewhere = False, False
    for case, bad in spoilt():
        split = division(subject, case.seed, len(case.inputs.x), 4)
        owns = [own for own in map(split.own, split.firsts) if len(own)]
        beside |= any(bad.row in own and len(own) > 1 for own in owns)
        elsewhere |= any(bad.row not in own for own in owns)
    assert beside
    assert elsewhere
