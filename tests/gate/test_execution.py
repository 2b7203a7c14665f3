"""Verdicts: what the gate makes of right, wrong and awkward implementations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from properties.checks import note_figure, require, unknown, within
from properties.errors import NotOfferedError, UnknownError
from properties.execution import Outcome, judge, judge_all
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import Property, catalogue, find
from properties.report import (
    EXIT_ADAPTER,
    EXIT_PASSED,
    exit_code,
    figure_lines,
    topic_lines,
    verdict_line,
)
from properties.rounding import Ball
from properties.subject import Subject
from tests.gate import adapters


def norm_verdict(implementation: Any, lane: str = "gate", seed: int | None = None) -> Outcome:
    return judge(find("NRM-VALUE"), subject_of(implementation), LANES[lane], seed)


def pinned(function: Any, **drawn: Any) -> Property:
    return Property("TST-PINNED", "theorem", "norm", "here", (), (), 40, drawn, function)


def verdict_of(function: Any) -> Outcome:
    return judge(pinned(function), subject_of(adapters.Minimal()), LANES["gate"])


def test_a_correct_implementation_passes_with_a_ratio_below_one() -> None:
    outcome = norm_verdict(adapters.Minimal())
    assert outcome.verdict == "passed"
    assert outcome.cases >= 100
    assert outcome.worst_ratio is not None
    assert 0.0 < outcome.worst_ratio <= 1.0


def test_a_wrong_implementation_fails_on_a_small_input() -> None:
    outcome = norm_verdict(adapters.WithoutEps())
    assert outcome.verdict == "failed"
    assert "error / radius" in outcome.message
    assert outcome.calls[-1].startswith("rms_norm(\n    x=np.array(")


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (adapters.ReturnsList, "of type builtins.list; expected a numpy.ndarray of shape"),
        (adapters.ReturnsFloat32, "dtype float32; expected a numpy.ndarray"),
        (adapters.ReturnsTransposed, "rms_norm is a numpy.ndarray of shape"),
    ],
)
def test_results_of_the_wrong_kind_are_adapter_errors(adapter: Any, told: str) -> None:
    outcome = norm_verdict(adapter())
    assert outcome.verdict == "adapter error"
    assert told in outcome.message


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (adapters.Raises, "rms_norm raised ZeroDivisionError: no rows"),
        (adapters.Mutates, "rms_norm modified one of its inputs in place"),
        (adapters.SkipsItself, "rms_norm raised Skipped: not today"),
        (adapters.RejectsInput, "rms_norm raised UnsatisfiedAssumption"),
        (adapters.Forgets, "not deterministic"),
    ],
)
def test_misbehaviour_is_a_violation_never_a_pass(adapter: Any, told: str) -> None:
    outcome = norm_verdict(adapter())
    assert outcome.verdict == "failed"
    assert told in outcome.message


def test_ids_that_are_not_integers_are_an_adapter_error() -> None:
    outcome = judge(find("RTR-VALID"), subject_of(adapters.FloatIds()), LANES["quick"])
    assert outcome.verdict == "adapter error"
    assert "expected integers" in outcome.message


def test_a_routing_must_have_names() -> None:
    outcome = judge(find("RTR-VALID"), subject_of(adapters.TupleRouting()), LANES["quick"])
    assert outcome.verdict == "adapter error"
    assert "expected properties.protocol.Routing" in outcome.message


def test_missing_methods_are_not_offered_rather_than_passed() -> None:
    outcome = judge(find("RTR-VALID"), subject_of(adapters.Minimal()), LANES["quick"])
    assert outcome.verdict == "not offered"
    assert outcome.message == "needs route"


def test_a_part_that_no_case_offers_is_not_offered_and_one_that_some_lack_is_unknown() -> None:
    def sometimes(subject: Subject, number: int) -> None:
        if number > 0:
            raise NotOfferedError("route returned no cutoff")

    def verdict(numbers: Any) -> Outcome:
        entry = pinned(sometimes, number=numbers)
        return judge(entry, subject_of(adapters.Minimal()), LANES["gate"])

    outcome = verdict(st.integers(1, 9))
    assert (outcome.verdict, outcome.message) == ("not offered", "route returned no cutoff")
    assert outcome.unknown == 0
    assert verdict(st.integers(0, 9)).verdict == "unknown"
    assert verdict(st.just(0)).verdict == "passed"


def test_too_many_unknown_cases_are_no_pass() -> None:
    def undecided(subject: Subject) -> None:
        raise UnknownError("no certificate")

    outcome = verdict_of(undecided)
    assert outcome.verdict == "unknown"
    assert "no certificate" in outcome.message


def test_a_violation_outweighs_an_unknown() -> None:
    def both(subject: Subject) -> None:
        unknown(subject, "no finite radius")
        require(False, "wrong all the same")

    assert verdict_of(both).verdict == "failed"


def test_an_infinite_radius_is_unknown_unless_another_element_violates() -> None:
    def compare(values: list[float]) -> Any:
        def check(subject: Subject) -> None:
            radius = np.array([np.inf, 1e-3])
            expected = Ball(np.array([1.0, 2.0]), radius, subject.arithmetic)
            within(subject, np.array(values), expected, "value")

        return check

    assert verdict_of(compare([7.0, 2.0])).verdict == "unknown"
    assert verdict_of(compare([7.0, 2.1])).verdict == "failed"


def test_figures_are_summarised() -> None:
    def measure(subject: Subject) -> None:
        note_figure(subject, "rounds", 7)
        note_figure(subject, "rule", "midpoint")
        note_figure(subject, "reached", True)

    outcome = verdict_of(measure)
    assert figure_lines([outcome], theory=True) == [
        "TST-PINNED      rounds: mean 7, max 7 over 1 cases",
        "                rule: midpoint",
        "                reached: 1 of 1 cases",
    ]


def test_a_statement_that_never_calls_the_implementation_is_told_apart() -> None:
    def theory(subject: Subject) -> None:
        note_figure(subject, "dual", 17)

    def about_it(subject: Subject) -> None:
        subject.rms_norm(np.ones((1, 2)), np.ones(2), eps=1.0)

    alone, own = verdict_of(theory), verdict_of(about_it)
    assert (alone.about, own.about) == ("mathematics", "implementation")
    assert figure_lines([alone, own], theory=False) == []
    assert any(line.startswith("(theory)") for line in topic_lines([alone, own]))
    assert "(1 passed; theory: 1 passed; " in verdict_line([alone, own], 1.0)


def test_one_of_several_methods_is_enough() -> None:
    def either(subject: Subject) -> None:
        subject.rms_norm(np.ones((1, 2)), np.ones(2), eps=1.0)

    entry = replace(pinned(either), any_of=("rms_norm", "layer"))
    absent = replace(entry, any_of=("layer", "experts"))
    judged = [judge(one, subject_of(adapters.Minimal()), LANES["gate"]) for one in (entry, absent)]
    assert [outcome.verdict for outcome in judged] == ["passed", "not offered"]
    assert judged[1].message == "needs layer or experts"


def test_theory_alone_makes_no_adapter_pass() -> None:
    def theory(subject: Subject) -> None:
        del subject

    absent = Outcome("TST-ABSENT", "norm", "theorem", "not offered", "")
    assert exit_code([verdict_of(theory), absent]) == EXIT_ADAPTER
    assert "nothing was judged" in verdict_line([verdict_of(theory), absent], 1.0)
    assert exit_code([verdict_of(theory)]) == EXIT_PASSED


def test_the_gate_lane_repeats_itself_and_a_seed_changes_it() -> None:
    seen: list[list[bytes]] = []

    class Recorder(adapters.Minimal):
        def rms_norm(self, x: Any, weight: Any, *, eps: float) -> Any:
            seen[-1].append(x.tobytes())
            return super().rms_norm(x, weight, eps=eps)

    for seed in (None, None, 1):
        seen.append([])
        assert norm_verdict(Recorder(), "quick", seed).verdict == "passed"
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def test_draws_do_not_depend_on_the_modules_around(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[int]] = []

    def remember(subject: Subject, number: int) -> None:
        drawn[-1].append(number)

    entry = pinned(remember, number=st.integers(0, 10**12))
    for round_ in range(2):
        drawn.append([])
        judge(entry, subject_of(adapters.Minimal()), LANES["nightly"], seed=3)
        path = tmp_path / f"constants_{round_}.py"
        path.write_text("VALUES = " + repr([123456789 + 7 * n for n in range(200)]))
        monkeypatch.syspath_prepend(str(tmp_path))
        __import__(f"constants_{round_}")
    assert len(drawn[0]) > 500
    assert drawn[0] == drawn[1]


def test_each_property_keeps_its_own_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = InMemoryExampleDatabase()
    profile = settings(settings.get_profile("default"), database=kept)
    monkeypatch.setitem(settings._profiles, "default", profile)

    def verdict(property_id: str, worst: int) -> str:
        def failing(subject: Subject, number: int) -> None:
            require(number < worst, "too large")

        drawn = {"number": st.integers(0, 9)}
        entry = Property(property_id, "theorem", "norm", "here", (), (), 40, drawn, failing)
        return judge(entry, subject_of(adapters.Minimal()), LANES["nightly"]).verdict

    assert verdict("TST-FIRST", 5) == "failed"
    first = set(kept.data)
    assert first
    assert verdict("TST-SECOND", 5) == "failed"
    assert set(kept.data) - first


def test_judging_all_selects_by_id_and_topic() -> None:
    outcomes = judge_all(
        subject_of(adapters.Minimal()), only=["nrm-value", "RTR-VALID"], topics=["norm"]
    )
    assert [outcome.id for outcome in outcomes] == ["NRM-VALUE"]


def test_an_unknown_id_is_refused_with_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean NRM-VALUE"):
        find("NRM-VALU")


def test_every_statement_is_complete() -> None:
    for entry in catalogue().values():
        assert len(entry.statement) > 200, entry.id
        assert entry.source, entry.id
        if entry.kind == "theorem" and entry.needs:
            assert "If it fails" in entry.statement, entry.id
