"""The measurement as it is called: all are judged in turn, and a wrong one is found out."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from properties.registry import find
from tests.alarms import journal, run
from tests.alarms.judging import Task, implementations, run_once

TOLD: dict[str, Any] = {"lane": "quick", "ranks": False, "code": "c", "commit": "d"}


def judged(reference: str, *ids: str) -> journal.Run:
    return run_once(Task("one", reference, 12345, **TOLD), [find(name) for name in ids])


def test_every_variant_and_every_own_implementation_is_there() -> None:
    found = implementations()
    assert found["own-Reference"] == "properties.reference:Reference"
    assert found["routing-Masked"] == "tests.variants.routing:Masked"
    assert len(found) >= 35
    assert len(set(found.values())) == len(found)


@pytest.mark.usefixtures("no_shrinking")
def test_a_wrong_implementation_is_an_alarm_with_its_seed() -> None:
    told = judged("tests.mutants.norm:EpsOutsideTheRoot", "NRM-VALUE", "NRM-NAN", "ACT-VALUE")
    assert told.seed == 12345
    assert told.verdicts["failed"] == len(told.alarms) > 0
    assert told.verdicts["not offered"] == 1
    assert told.alarms[0].id == "NRM-VALUE"
    assert told.alarms[0].message
    assert told.alarms[0].calls[0].startswith("rms_norm(")


def test_what_cannot_be_loaded_is_an_alarm() -> None:
    (alarm,) = judged("tests.mutants.norm:Nothing", "NRM-VALUE").alarms
    assert alarm.verdict == "suite error"
    assert "has no 'Nothing'" in alarm.message


def test_properties_that_conventions_leave_nothing_of_are_counted() -> None:
    told = judged("tests.variants.routing:RandomTies", "RTR-CUTOFF", "RTR-SUM", "NRM-NAN")
    assert told.verdicts == {"not offered": 2, "passed": 1}
    assert told.left_out == 1
    assert told.judged == 1


def test_those_with_the_fewest_runs_come_first_and_seeds_differ() -> None:
    every = {"a": "m:A", "b": "m:B", "c": "m:C"}
    plan = list(islice(run.tasks(every, {"a": 2, "c": 1}, count(7), TOLD), 6))
    assert [task.name for task in plan] == ["b", "b", "c", "a", "b", "c"]
    assert [task.seed for task in plan] == list(range(7, 13))
    names = Counter(task.name for task in islice(run.tasks(every, {}, count(), TOLD), 300))
    assert set(names.values()) == {100}


def test_a_later_call_goes_on_and_sums_up(tmp_path: Path, capsys: Any) -> None:
    log, page = tmp_path / "log.jsonl", tmp_path / "page.md"
    call = ["norm-lib", "norm-rev", "--lane", "quick", "--workers", "0", "--seed", "3"]
    call += ["--log", str(log), "--runs"]
    assert run.main([*call, "1"]) == run.EXIT_NONE
    with log.open("a", encoding="utf-8") as file:
        file.write('{"seed": 4, "name": "norm-Re')
    assert run.main([*call, "1", "--page", str(page)]) == run.EXIT_NONE
    found = [(told.name, told.seed) for told in journal.read(log).runs]
    assert found == [("norm-Library", 3), ("norm-ReversedSum", 5)]
    told = capsys.readouterr()
    assert "line 2 of" in told.err
    assert "log: 1 runs to go on from, 0 of other code, lane or ranks" in told.out
    assert "2 whole runs of 2 implementations: 16 verdicts" in told.out
    assert "at most 77.6 % of runs" in page.read_text(encoding="utf-8")


def test_an_alarm_ends_with_1_in_later_calls_too(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    wrong = {"norm-Wrong": "tests.mutants.norm:Missing"}
    monkeypatch.setattr(run, "implementations", lambda: wrong)
    call = ["--log", str(tmp_path / "log.jsonl"), "--workers", "0", "--seed", "8", "--runs"]
    assert run.main([*call, "1"]) == run.EXIT_ALARM
    assert "1/1  norm-Wrong  seed 8  0 judged, 0 cases" in capsys.readouterr().out
    assert run.main([*call, "0"]) == run.EXIT_ALARM
    assert "ALARM norm-Wrong the run itself: suite error, seed 8" in capsys.readouterr().out


def test_changed_code_breaks_off_and_is_not_counted(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    log = tmp_path / "log.jsonl"
    digests = iter(["before", "before", "after"])
    monkeypatch.setattr(journal, "digest", lambda: next(digests))
    monkeypatch.setattr(run, "run_once", lambda task: judged(task.reference))
    call = ["norm", "--log", str(log), "--workers", "0", "--lane", "quick"]
    assert run.main(call) == run.EXIT_REFUSED
    assert "the code was changed while it was measured" in capsys.readouterr().err
    assert len(journal.read(log).runs) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing-like-it"], "no implementation is called 'nothing-like-it'; there are own-Refe"),
        (["--runs", "-3"], "'-3' is no whole number, 0 or more"),
        (["--minutes", "soon"], "'soon' is no number of minutes"),
        (["--minutes", "inf"], "'inf' is no number of minutes"),
        (["--seed", "0.5"], "'0.5' is no whole number"),
        (["--lane", "nightly"], "invalid choice: 'nightly'"),
        (["--runs", "1", "--minutes", "1"], "not allowed with"),
    ],
)
def test_wrong_calls_are_refused(words: list[str], message: str, capsys: Any) -> None:
    try:
        code: Any = run.main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == run.EXIT_REFUSED
    assert message in capsys.readouterr().err


def test_files_that_cannot_be_written_or_read_are_refused(tmp_path: Path, capsys: Any) -> None:
    assert run.main(["--log", str(tmp_path / "log"), "--page", str(tmp_path)]) == run.EXIT_REFUSED
    assert f"{tmp_path} cannot be written: Is a directory" in capsys.readouterr().err
    other = tmp_path / "other"
    other.write_text("name,value\n", encoding="utf-8")
    assert run.main(["--log", str(other)]) == run.EXIT_REFUSED
    assert "is no run of this tool; name another file with --log" in capsys.readouterr().err
