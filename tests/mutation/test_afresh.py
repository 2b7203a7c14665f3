"""Mutants called too early are judged in processes that have them from the start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import afresh, run, scratch
from tests.mutation.packages import PACKAGES

PACKAGE = PACKAGES["rounding"]

# In place of the tests: they fail, or never end, for a mutant that says so in its name.
TESTS = """
import os, sys, time
mutant = os.environ["MUTANT_UNDER_TEST"]
time.sleep(60 if "endless" in mutant else 0)
sys.exit("noticed" in mutant)
"""

CODES: dict[str, int | None] = {
    "m.x_early__mutmut_1": 0,
    "m.x_early_noticed__mutmut_1": 0,
    "m.x_early_noticed__mutmut_2": 33,
    "m.x_early_noticed__mutmut_3": 34,
    "m.x_early_endless__mutmut_1": 0,
    "m.x_late_noticed__mutmut_1": 0,
    "m.x_early_killed__mutmut_1": 1,
    "m.x_early__mutmut_2": None,
}
EARLY = ("m.x_early", "m.x_early_noticed", "m.x_early_endless", "m.x_early_killed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What mutmut leaves behind, and tests that take no time."""
    (tmp_path / "mutants").mkdir()
    meta = {"exit_code_by_key": CODES, "hash_by_function_name": {}}
    (tmp_path / "mutants" / "m.py.meta").write_text(json.dumps(meta), encoding="utf-8")
    monkeypatch.setattr(afresh, "command", lambda package: [sys.executable, "-c", TESTS])
    monkeypatch.setattr(afresh, "patience", lambda folder, package: 2.0)

    def worker(folder: Path, *arguments: str) -> bool:
        assert arguments == ("called",)
        (folder / "called.json").write_text(json.dumps(EARLY), encoding="utf-8")
        return True

    monkeypatch.setattr(scratch, "run_inside", worker)
    return tmp_path


def codes(folder: Path) -> Any:
    (meta,) = scratch.metas(folder).values()
    return meta["exit_code_by_key"]


def test_survivors_called_early_are_run_again_and_no_others(folder: Path) -> None:
    afresh.judge(folder, PACKAGE)
    found = codes(folder)
    changed = {name: code for name, code in found.items() if code != CODES[name]}
    assert changed == {
        "m.x_early_noticed__mutmut_1": scratch.KILLED,
        "m.x_early_noticed__mutmut_2": scratch.KILLED,
        "m.x_early_endless__mutmut_1": scratch.TIMEOUT,
    }
    assert [run.STATUS[code] for code in changed.values()] == ["killed", "killed", "timeout"]


def test_what_there_is_no_time_for_is_not_run(folder: Path) -> None:
    afresh.judge(folder, PACKAGE, time.monotonic() - 1.0)
    found = codes(folder)
    assert [name for name in found if found[name] != CODES[name]] == [
        "m.x_early__mutmut_1",
        "m.x_early_noticed__mutmut_1",
        "m.x_early_noticed__mutmut_2",
        "m.x_early_endless__mutmut_1",
    ]
    assert run.STATUS[found["m.x_early__mutmut_1"]] == "not run"


def test_tests_that_fail_without_a_mutant_judge_none(tmp_path: Path) -> None:
    (tmp_path / "mutants").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        afresh.patience(tmp_path, PACKAGE)


def test_files_left_out_are_not_imported_and_functions_are_not_run() -> None:
    for package in PACKAGES.values():
        for test in package.left_out:
            option = "--deselect" if "::" in test else "--ignore"
            assert f"{option}={test}" in afresh.command(package)
