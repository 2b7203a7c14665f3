"""State machines as properties: cases, verdicts, and the shortest sequence of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from properties.errors import AdapterError, NotOfferedError, UnknownError, ViolationError
from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.pages import explanation
from properties.registry import Property, find
from properties.stateful import SubjectMachine
from tests.gate.adapters import Minimal


class Norms(SubjectMachine):
    """Calls rms_norm; the ``limit``-th call of a sequence ends it as ``ending`` says."""

    limit = 3
    ending: Callable[[], Exception] = staticmethod(lambda: ViolationError("three"))
    longest = 0

    def __init__(self, subject: Any) -> None:
        super().__init__(subject)
        self.done = 0

    @rule(size=st.integers(1, 5))
    def norm(self, size: int) -> None:
        if self.settled is not None:
            return
        ones = np.ones((1, size))
        self.subject.rms_norm(ones, ones[0], eps=1.0)
        self.done += 1
        type(self).longest = max(self.longest, self.done)
        if self.done == self.limit:
            error = self.ending()
            if not isinstance(error, UnknownError | NotOfferedError):
                raise error
            self.settle(error)


def entry(machine: type[SubjectMachine], examples: int = 10) -> Property:
    known = find("QB-HIST-MODEL")
    return replace(known, function=machine, needs=("rms_norm",), examples=examples, steps=(6, 9))


def ending(error: Callable[[], Exception], limit: int = 3) -> type[Norms]:
    return type("Ending", (Norms,), {"ending": staticmethod(error), "limit": limit})


def test_a_failure_is_the_shortest_sequence_of_calls(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = judge(
        entry(ending(lambda: ViolationError("three"))), subject_of(Minimal()), LANES["gate"]
    )
    assert (outcome.verdict, outcome.message) == ("failed", "three")
    assert len(outcome.calls) == 3
    assert all("np.array([[1.0]], np.float64)" in call for call in outcome.calls)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("lane", "examples", "steps"), [("quick", 2, 6), ("gate", 10, 6), ("nightly", 200, 9)]
)
def test_sequences_are_cases_of_so_many_calls(lane: str, examples: int, steps: int) -> None:
    machine = ending(lambda: ViolationError("never"), limit=100)
    outcome = judge(entry(machine), subject_of(Minimal()), LANES[lane], seed=1)
    assert outcome.verdict == "passed"
    assert outcome.cases == examples
    assert machine.longest == steps
    assert outcome.about == "implementation"


def test_an_adapter_error_is_told_as_one() -> None:
    outcome = judge(
        entry(ending(lambda: AdapterError("odd"))), subject_of(Minimal()), LANES["gate"]
    )
    assert (outcome.verdict, outcome.message) == ("adapter error", "odd")


def test_undecided_and_left_out_sequences_are_counted() -> None:
    undecided = judge(
        entry(ending(lambda: UnknownError("why"))), subject_of(Minimal()), LANES["gate"]
    )
    assert undecided.verdict == "unknown"
    assert undecided.unknown == undecided.cases == 10
    left = judge(entry(ending(lambda: NotOfferedError("no"))), subject_of(Minimal()), LANES["gate"])
    assert (left.verdict, left.message) == ("not offered", "no")


def test_a_mistake_of_the_suite_is_told_as_one() -> None:
    outcome = judge(entry(ending(lambda: KeyError("x"))), subject_of(Minimal()), LANES["gate"])
    assert outcome.verdict == "suite error"
    assert "KeyError" in outcome.message


def test_what_is_not_offered_is_not_run() -> None:
    known = replace(entry(Norms), needs=("layer",))
    assert judge(known, subject_of(Minimal()), LANES["gate"]).verdict == "not offered"


def test_the_page_says_how_long_sequences_are() -> None:
    assert "32 sequences of up to 30 calls" in explanation(find("QB-HIST-MODEL"))
