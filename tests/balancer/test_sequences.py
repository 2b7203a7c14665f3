"""Every mistake that docs/balancer.md names is found, and every sequence on it is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from properties.errors import ViolationError
from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find
from tests.balancer.sequences import (
    NAMED,
    PROPERTY,
    Caller,
    Sequence,
    on_ranks,
    one_line,
    sequences,
)
from tests.kills.judging import FirstFailure
from tests.mutants.balancing_state import Keeps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "balancer.md"
PRINTED = list(sequences(PAGE.read_text(encoding="utf-8")))
MUTANTS = {mutant.__name__: mutant for mutant in NAMED}


def test_the_page_has_every_named_mistake_once() -> None:
    """`python -m tests.balancer.sequences > docs/balancer.md` brings it up to date."""
    assert [sequence.name for sequence in PRINTED] == list(MUTANTS)


def test_the_section_on_ranks_is_what_the_gate_finds() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith("\n\n" + on_ranks())


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: printed.name)
def test_the_last_call_and_no_other_shows_the_mistake(printed: Sequence) -> None:
    call = Caller(MUTANTS[printed.name]())
    for each in printed.calls[:-1]:
        call(each)
    with pytest.raises(ViolationError) as caught:
        call(printed.calls[-1])
    assert str(caught.value).splitlines()[0] == printed.message


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: printed.name)
def test_without_the_mistake_all_calls_are_right(printed: Sequence) -> None:
    call = Caller(Keeps())
    for each in printed.calls:
        call(each)


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: printed.name)
def test_no_sequence_is_longer_than_a_person_reads(printed: Sequence) -> None:
    assert len(printed.calls) <= 5
    assert max(map(len, printed.calls)) <= 200


@pytest.mark.parametrize("mutant", NAMED, ids=lambda mutant: mutant.__name__)
def test_the_machine_finds_it_in_the_gate_lane(mutant: Any) -> None:
    lane = FirstFailure(**vars(LANES["gate"]))
    outcome = judge(find(PROPERTY), subject_of(mutant()), lane)
    assert outcome.verdict == "failed", outcome.message
    assert outcome.calls[0].startswith("balancer(")


def test_calls_are_put_on_one_line() -> None:
    assert one_line("balancer(\n    num_experts=2,\n    top_k=1,\n)") == (
        "balancer(num_experts=2, top_k=1)"
    )
    assert one_line("balancer.update()") == "balancer.update()"
