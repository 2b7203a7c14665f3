"""Misbehaviour that a process survives: what it is called, and that it is never a pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from properties import checks
from properties.calls import Case
from properties.errors import AdapterError
from properties.execution import Outcome, judge
from properties.guard import interruption
from properties.guard.shadows import require_own
from properties.lanes import LANES
from properties.loading import load, subject_of
from properties.registry import find
from properties.report import describe, exit_code, header_lines, note_lines
from tests.hostile import adapters


@pytest.fixture(autouse=True)
def _told_of_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run: nobody has pressed Ctrl-C."""
    monkeypatch.setitem(interruption._state, "installed", True)


def verdict(adapter: Any, property_id: str = "NRM-VALUE") -> Outcome:
    outcome = judge(find(property_id), subject_of(adapter()), LANES["quick"])
    assert (exit_code([outcome]) == 0) == (outcome.verdict == "passed")
    return outcome


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (adapters.Interrupts, "rms_norm raised KeyboardInterrupt: mine"),
        (adapters.Exits, "rms_norm raised SystemExit: 0"),
        (adapters.Closes, "rms_norm raised GeneratorExit"),
        (adapters.Recurses, "rms_norm raised RecursionError"),
        (adapters.Devours, "rms_norm raised"),
        (adapters.Unspeakable, "rms_norm raised SilentError: (its message cannot be read"),
        (adapters.Verbose, "… (1000000 characters)"),
        (adapters.View, "error / radius"),
        (adapters.Lies, "error / radius"),
        (adapters.Nan, "] is nan, expected"),
        (adapters.Memoises, "error / radius"),
        (adapters.Wavers, "error / radius"),
        (adapters.Forks, "error / radius"),
    ],
)
def test_a_violation_is_told_in_a_few_lines(adapter: Any, told: str) -> None:
    outcome = verdict(adapter)
    assert outcome.verdict == "failed"
    assert told in outcome.message
    assert len(outcome.message) < 4000
    assert outcome.calls


def test_memory_that_cannot_be_had_is_named() -> None:
    assert "MemoryError" in verdict(adapters.Devours).message


@pytest.mark.parametrize(
    ("adapter", "property_id"),
    [
        (adapters.NanRoutes, "RTR-SUM"),
        (adapters.NanRoutes, "RTR-WEIGHTS"),
        (adapters.NanLayer, "LAY-VALUE"),
        (adapters.Unsteady, "DSP-REPEAT"),
    ],
)
def test_nan_and_silent_change_are_violations_in_other_topics(
    adapter: Any, property_id: str
) -> None:
    assert verdict(adapter, property_id).verdict == "failed"


def test_an_array_that_hides_elements_is_no_result() -> None:
    outcome = verdict(adapters.Masked)
    assert outcome.verdict == "adapter error"
    assert "numpy.ma.MaskedArray" in outcome.message


def test_an_attribute_that_raises_is_an_adapter_error() -> None:
    outcome = verdict(adapters.BiasRaises, "QB-DEFER")
    assert outcome.verdict == "adapter error"
    assert "reading balancer.bias raised SystemExit" in outcome.message


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (adapters.PatchesNumPy, "np.isnan was replaced"),
        (adapters.PatchesTheSuite, "properties.checks.ratio was replaced"),
        (adapters.PatchesTheSubject, "properties.calls.Case.worst_ratio was replaced"),
    ],
)
def test_a_judge_that_was_replaced_does_not_count(adapter: Any, told: str) -> None:
    outcome = verdict(adapter)
    assert outcome.verdict == "adapter error"
    assert told in outcome.message
    assert np.isnan([1.0]).tolist() == [False]
    assert checks.ratio.__module__ == "properties.rounding.ball"
    assert Case.worst_ratio is None
    assert verdict(adapters.Norm).verdict == "passed"


def test_settings_stay_with_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_HOSTILE_ADAPTERS", "0")
    before = np.geterr()
    outcome, quiet = verdict(adapters.Settings), verdict(adapters.Norm)
    assert outcome.verdict == "passed"
    assert (outcome.cases, outcome.worst_ratio) == (quiet.cases, quiet.worst_ratio)
    assert np.geterr() == before


def test_the_current_folder_is_put_back_and_told() -> None:
    with adapters.back_where_it_was():
        outcome = verdict(adapters.Moves)
        assert str(Path.cwd()) == adapters.WHERE_IT_STARTED
    assert outcome.verdict == "passed"
    [line] = note_lines([outcome])
    assert line.startswith("note: the current folder was changed to /; it was put back (NRM-VALUE")


# Loading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys; sys.exit(0)", "raised SystemExit, which ends a program: 0"),
        ("raise RuntimeError('no device')", "raised RuntimeError: no device"),
        ("import pytest; pytest.skip('x', allow_module_level=True)", "raised Skipped"),
        ("raise GeneratorExit", "raised GeneratorExit"),
        ("import numpy; numpy.mean = None; A = 1", "has no name"),
        (
            "import numpy; from tests.hostile.adapters import Norm as A; numpy.mean = numpy.median",
            "np.mean was replaced",
        ),
        ("class A:\n def __init__(self): import sys; sys.exit(0)", "A() raised SystemExit"),
    ],
)
def test_a_module_that_misbehaves_is_refused(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"hostile_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(np, "mean", np.mean)
    with pytest.raises(AdapterError) as caught:
        load(f"{name}:A")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (adapters.AnswersAll, "balancer() has no observe"),
        (adapters.NoMethod, "route is of type int; it must be a method"),
        (adapters.RaisesWhenRead, "situ_glu raised ValueError: no kernel for this device"),
        (adapters.NamelessInside, "raised OSError: no such file"),
    ],
)
def test_an_object_that_misleads_is_refused(adapter: Any, told: str) -> None:
    with pytest.raises(AdapterError) as caught:
        subject_of(adapter(), "their:Adapter")
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["properties.py", "reference_numpy/__init__.py"])
def test_a_file_that_hides_the_suite_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    with pytest.raises(AdapterError, match="hides the package") as caught:
        require_own(tmp_path)
    assert str(path) in str(caught.value)


def test_where_the_suite_lives_nothing_is_hidden(tmp_path: Path) -> None:
    require_own(Path(__file__).parents[2])
    (tmp_path / "reference_numpy").mkdir()  # without __init__.py it is found last
    require_own(tmp_path)


# The header ---------------------------------------------------------------------------------------


def header(adapter: Any) -> str:
    return "\n".join(header_lines(describe(subject_of(adapter()), "gate", None)))


def test_calls_of_the_reference_are_told() -> None:
    told = header(adapters.CallsTheReference)
    assert "CallsTheReference.rms_norm imports reference_numpy" in told
    assert "Unsteady derives from properties.reference.Reference" in header(adapters.Unsteady)


def test_formats_that_forgive_everything_are_told() -> None:
    told = header(adapters.Coarse)
    assert "float8_e5m2 is declared: one rounding in it may change a value by 12.5 %" in told
    assert "is declared" not in header(adapters.Norm)


def test_the_environment_is_as_before() -> None:
    assert os.getcwd() == adapters.WHERE_IT_STARTED  # noqa: PTH109
