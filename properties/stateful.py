"""A property that is a Hypothesis state machine: its cases are sequences of calls.

The specification's function builds the machine; each sequence is one case, judged as it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis.errors import HypothesisException, StopTest
from hypothesis.reporting import with_reporter
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from properties.lanes import Lane, reproducible_hypothesis, seeded

if TYPE_CHECKING:
    from properties.registry import Property
    from properties.subject import Case, Subject

__all__ = ["SubjectMachine", "run_sequences"]


class SubjectMachine(RuleBasedStateMachine):
    """A machine whose rules call one subject.

    A rule that finds that nothing more can be judged hands the reason to ``settle``; it is for the
    rules to do nothing from then on.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.settled: Exception | None = None
        self.ended: Callable[[BaseException | None], Any] | None = None

    def settle(self, reason: Exception) -> None:
        """End the sequence: an UnknownError or a NotOfferedError, as of any other property."""
        self.settled = reason

    def teardown(self) -> None:
        """Hand in how the sequence ended; Hypothesis calls this while the error is on its way."""
        error = sys.exc_info()[1]
        if not isinstance(error, StopTest | HypothesisException):  # it gives up on the sequence
            assert self.ended is not None
            self.ended(error or self.settled)


def _silent(text: object) -> None:
    """Hypothesis prints the last sequence's steps; the report prints its calls."""


def run_sequences(
    entry: Property,
    subject: Subject,
    lane: Lane,
    seed: int | None,
    settle: Callable[[Case, BaseException | None], Any],
) -> None:
    """Run a property's sequences; ``settle`` is told of every case and the error that ended it."""
    assert entry.steps is not None

    def machine() -> SubjectMachine:
        with subject.new_case() as case:
            made: SubjectMachine = entry.function(subject)
        made.ended = lambda error: settle(case, error)
        return made

    steps = entry.steps[1] if lane.random else entry.steps[0]
    chosen = settings(lane.settings(entry.examples), stateful_step_count=steps)
    # Hypothesis' database goes by the source of the factory, which all machines share.
    machine.__dict__["_hypothesis_internal_add_digest"] = entry.id.encode()
    factory: Any = seeded(machine, lane, entry.id, seed)  # type: ignore[arg-type]
    with reproducible_hypothesis(), with_reporter(_silent):
        run_state_machine_as_test(factory, settings=chosen)
