"""What DSP-PARALLEL and LAY-PARALLEL draw of bad tokens: in the gate lane, of every kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from properties.execution import judge
from properties.judgement.parallel import division
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find
from properties.strategies.splits import BadToken
from tests.mutants.ranks_parallel import Dispatched

each_property = pytest.mark.parametrize("property_id", ["DSP-PARALLEL", "LAY-PARALLEL"])


@cache
def drawn(property_id: str) -> list[Any]:
    """The inputs of every case of the gate lane."""
    cases: list[Any] = []

    def remember(subject: object, drawn: Any) -> None:
        del subject
        cases.append(drawn)

    subject = subject_of(Dispatched())
    judge(replace(find(property_id), function=remember), subject, LANES["gate"])
    return cases


def spoilt(property_id: str) -> list[tuple[Any, BadToken]]:
    return [(case, case.bad) for case in drawn(property_id) if case.bad is not None]


def tokens_of(case: Any) -> int:
    """The number of tokens of a case."""
    inputs = case.inputs
    x = inputs.layer.x if hasattr(inputs, "layer") else inputs.x
    return int(np.prod(x.shape[:-1]))


@each_property
def test_bad_tokens_are_of_every_kind(property_id: str) -> None:
    values = [bad.value for _, bad in spoilt(property_id)]
    assert any(np.isnan(values))
    assert {np.inf, -np.inf} <= set(values)


@each_property
def test_bad_tokens_are_rare_and_among_others(property_id: str) -> None:
    cases, bad_ones = drawn(property_id), spoilt(property_id)
    assert 0.1 * len(cases) <= len(bad_ones) <= 0.4 * len(cases)
    for case, bad in bad_ones:
        assert 0 <= bad.row < tokens_of(case) >= 2


@each_property
def test_bad_tokens_are_beside_tokens_of_their_rank_and_of_others(property_id: str) -> None:
    subject = subject_of(Dispatched())
    beside, elsewhere = False, False
    for case, bad in spoilt(property_id):
        split = division(subject, case.seed, tokens_of(case), 4)
        owns = [own for own in map(split.own, split.firsts) if len(own)]
        beside |= any(bad.row in own and len(own) > 1 for own in owns)
        elsewhere |= any(bad.row not in own for own in owns)
    assert beside
    assert elsewhere
