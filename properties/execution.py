"""Judging one property, or all of them, without a test runner."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis.errors import Flaky, HypothesisException

from properties.causes import cause_of
from properties.errors import AdapterError, NotOfferedError, UnknownError, ViolationError
from properties.figures import Tally, plain
from properties.guard.surroundings import Surroundings
from properties.lanes import Lane, lane_for, reproducible_hypothesis, seeded
from properties.literals import calls_literal, save_calls
from properties.registry import Property, catalogue, find
from properties.stateful import run_sequences
from properties.subject import Case, Subject

Verdict = Literal["passed", "failed", "unknown", "not offered", "adapter error", "suite error"]

About = Literal["implementation", "mathematics"]

# A verdict is unknown beyond this share of the cases, and from this number on: with the few cases
# of the quick lane, one would be more than the share.
UNKNOWN_CAP = 0.05
FEWEST_UNKNOWN = 2


@dataclass
class Outcome:
    """What one property's cases came to.

    ``worst_ratio`` is the largest ratio of error to radius seen, None where nothing was compared
    within a radius. ``figures`` are measured values that a property reports beside its verdict.
    ``about`` is "mathematics" where no case called the implementation: the statement holds, or not,
    of the oracle and the reference alone. ``shown`` says what ``calls`` are. Outcomes with the same
    ``cause``, if it is not empty, have one mistake behind them. ``notes`` tell what else happened.
    """

    id: str
    topic: str
    kind: str
    verdict: Verdict
    headline: str
    cases: int = 0
    unknown: int = 0
    worst_ratio: float | None = None
    worst_what: str = ""
    message: str = ""
    calls: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    about: About = "implementation"
    shown: str = "the smallest input found"
    cause: str = ""
    saved: str = ""
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain builtins, as JSON and pytest-xdist need them."""
        return asdict(self)


class _Log:
    """The cases of one property so far."""

    def __init__(self) -> None:
        self.cases = 0
        self.unknown: dict[str, int] = {}
        self.undecided = 0
        self.left_out = 0
        self.worst_ratio: float | None = None
        self.worst_what = ""
        self.figures: dict[str, Any] = {}
        self.failure: tuple[AdapterError | ViolationError, Case] | None = None
        self.called = False

    def add(self, case: Case) -> None:
        self.cases += 1
        self.called = self.called or bool(case.calls)
        worse = case.worst_ratio is not None and case.worst_ratio >= (self.worst_ratio or 0.0)
        if worse:
            self.worst_ratio, self.worst_what = case.worst_ratio, case.worst_what
        for name, value in case.figures.items():
            self._add_figure(name, value)
        if case.unknown:
            self.undecided += 1
            self.unknown[case.unknown[0]] = self.unknown.get(case.unknown[0], 0) + 1

    def settle(self, case: Case, error: BaseException | None) -> bool:
        """Take in a case that ended with that error, or well; whether the error is dealt with."""
        undecided = isinstance(error, UnknownError | NotOfferedError)
        if undecided:
            case.unknown.append(str(error))
            self.left_out += isinstance(error, NotOfferedError)
        elif isinstance(error, AdapterError | ViolationError):
            self.failure = (error, case)
        if self.failure is None:
            self.add(case)
        return undecided

    def _add_figure(self, name: str, value: Any) -> None:
        """Numbers are summarised over the cases, truths counted, tallies joined, texts kept."""
        if isinstance(value, str):
            self.figures[name] = value
            return
        if isinstance(value, Tally):
            known = self.figures.get(name)
            self.figures[name] = value if known is None else known.joined(value)
            return
        number = float(value)
        start: dict[str, Any] = {"cases": 0, "sum": 0.0, "max": number}
        start["counted"] = isinstance(value, bool | np.bool_)
        known = self.figures.setdefault(name, start)
        known["cases"] += 1
        known["sum"] += number
        known["max"] = max(known["max"], number)


def judge(
    entry: Property,
    subject: Subject,
    lane: Lane,
    seed: int | None = None,
    *,
    save: Path | None = None,
) -> Outcome:
    """Run a property's cases on a subject and say what came of it.

    Never raises for what the implementation does; the outcome's message tells. ``save`` is a folder
    that the arrays of a failure are written to.
    """
    outcome = Outcome(entry.id, entry.topic, entry.kind, "passed", entry.headline)
    missing = [name for name in entry.needs if name not in subject.offered]
    if entry.any_of and not set(entry.any_of) & set(subject.offered):
        missing.append(" or ".join(entry.any_of))
    if missing:
        outcome.verdict = "not offered"
        outcome.message = f"needs {', '.join(missing)}"
        return outcome
    given_up = subject.trace.given_up(entry.needs or entry.any_of)
    if given_up:
        outcome.verdict, outcome.message, outcome.cause = "unknown", given_up, given_up
        return outcome
    log, before = _Log(), Surroundings.now()
    started = time.perf_counter()
    with subject.trace.judging(entry.id):
        _judge_cases(entry, subject, lane, seed, log, outcome)
    outcome.seconds = time.perf_counter() - started
    if save is not None and log.failure is not None:
        outcome.saved = str(save_calls(save / f"{entry.id}.npz", log.failure[1].calls))
    _summarise(outcome, log)
    _look_around(outcome, before)
    return outcome


def _judge_cases(
    entry: Property, subject: Subject, lane: Lane, seed: int | None, log: _Log, outcome: Outcome
) -> None:
    try:
        _run_cases(entry, subject, lane, seed, log)
    except AdapterError as error:
        _fail(outcome, "adapter error", str(error), log)
    except ViolationError as error:
        _fail(outcome, "failed", str(error), log)
    except Flaky:
        told = str(log.failure[0]) if log.failure else "an error"
        note = "; the same input passed when it was tried again: the result is not deterministic"
        _fail(outcome, "failed", told + note, log)
    except HypothesisException as error:
        _fail(outcome, "unknown", f"the suite could not generate cases: {error}", log)
    except Exception as error:
        its_own = _stands_in(error, subject)
        _fail(outcome, "adapter error" if its_own else "suite error", traceback.format_exc(), log)


def _stands_in(error: BaseException, subject: Subject) -> bool:
    """Whether code of the implementation raised: what it returned may be an object that does."""
    kind = subject.implementation
    module = (kind if isinstance(kind, type) else type(kind)).__module__
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return last.f_globals.get("__name__") == module != "properties.reference"


def _look_around(outcome: Outcome, before: Surroundings) -> None:
    """What the implementation replaced while it was judged makes its verdict void."""
    outcome.notes += before.moved()
    tampered = before.tampered()
    if tampered:
        outcome.verdict, outcome.cause = "adapter error", "; ".join(tampered)
        outcome.message = (
            f"{outcome.cause} while this property was judged. The suite computes in the same "
            "process, so the verdict does not count; what was replaced has been put back"
        )


def judge_all(
    subject: Subject,
    *,
    only: Iterable[str] = (),
    topics: Iterable[str] = (),
    lane: str = "gate",
    seed: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Judge the whole catalogue, or a part of it, one property after the other.

    Raises KeyError for an unknown property id or lane.
    """
    outcomes = []
    for entry in select(only, topics, lane=lane):
        outcomes.append(judge(entry, subject, lane_for(lane, theory=entry.theory), seed))
        if on_outcome is not None:
            on_outcome(outcomes[-1])
    return outcomes


def select(
    only: Iterable[str] = (),
    topics: Iterable[str] = (),
    *,
    lane: str = "gate",
    ranks: int | None = None,
) -> list[Property]:
    """The catalogue's entries with these ids and topics; where none is named, the lane's.

    Those are all, except in the quick lane: it leaves out what can be judged without any
    implementation, claims among it, what is long, and what starts several ranks, unless ``ranks``
    asks for them.
    Raises KeyError if an id does not exist.
    """
    wanted = {find(property_id).id for property_id in only}
    chosen_topics = set(topics)
    short = lane == "quick" and not (wanted or chosen_topics)
    return [
        entry
        for entry in catalogue().values()
        if (not wanted or entry.id in wanted)
        and (not chosen_topics or entry.topic in chosen_topics)
        and not (short and _left_to_the_gate(entry, ranks))
    ]


def _left_to_the_gate(entry: Property, ranks: int | None) -> bool:
    return entry.theory or entry.long or ("ranks" in entry.needs and ranks is None)


def _run_cases(entry: Property, subject: Subject, lane: Lane, seed: int | None, log: _Log) -> None:
    def one_case(**drawn: Any) -> None:
        with subject.new_case() as case:
            try:
                entry.function(subject, **drawn)
            except BaseException as error:
                if not log.settle(case, error):
                    raise
            else:
                log.settle(case, None)
            if drawn and case.worst_ratio is not None:
                hypothesis.target(min(case.worst_ratio, 1e3), label="error / radius")

    if entry.steps:
        run_sequences(entry, subject, lane, seed, log.settle)
        return
    if not entry.drawn:
        one_case()
        return
    # Hypothesis' database goes by source and signature, which all properties share.
    one_case.__dict__["_hypothesis_internal_add_digest"] = entry.id.encode()
    test = seeded(given(**entry.drawn)(one_case), lane, entry.id, seed)
    with reproducible_hypothesis():
        lane.settings(entry.examples)(test)()


def _fail(outcome: Outcome, verdict: Verdict, message: str, log: _Log) -> None:
    outcome.verdict, outcome.message = verdict, message
    outcome.cause = cause_of(log.failure[0], message) if log.failure is not None else ""
    if log.failure is not None:
        case = log.failure[1]
        outcome.calls = calls_literal(case.calls)
        if case.worst_ratio is not None:
            log.worst_ratio, log.worst_what = case.worst_ratio, case.worst_what


def _summarise(outcome: Outcome, log: _Log) -> None:
    outcome.cases, outcome.unknown = log.cases, log.undecided
    outcome.worst_ratio, outcome.worst_what = log.worst_ratio, log.worst_what
    outcome.figures = {name: plain(value) for name, value in log.figures.items()}
    called = log.called or log.left_out > 0 or (log.failure is not None and log.failure[1].calls)
    outcome.about = "implementation" if called or log.cases == 0 else "mathematics"
    if outcome.verdict == "passed" and 0 < log.cases == log.left_out:
        outcome.verdict, outcome.unknown = "not offered", 0
        outcome.message = next(iter(log.unknown))
        return
    fewest = min(FEWEST_UNKNOWN, log.cases)  # a property of one case may leave it undecided
    too_many = log.undecided >= fewest and log.undecided > UNKNOWN_CAP * log.cases
    if outcome.verdict == "passed" and too_many:
        reason = max(log.unknown, key=lambda text: log.unknown[text])
        outcome.verdict = "unknown"
        outcome.message = f"{log.undecided} of {log.cases} cases undecided, mostly: {reason}"
