"""How rows of the kill matrix are made, kept and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from properties.lanes import LANES
from tests.kills import judging, run
from tests.kills.combinations import COMBINATIONS
from tests.kills.judging import FirstFailure, by_name, calling, cells, digest, row, row_of_correct
from tests.kills.page import page
from tests.mutants.norm import NormMissing


def test_a_row_names_the_properties_that_fail() -> None:
    found = row("norm-NormMissing")
    assert found["named"] == "NRM-VALUE"
    assert found["quick"] is True
    assert found["killed"][0] == "NRM-VALUE"
    assert set(found["killed"]) <= set(cells(NormMissing))
    assert "undecided" not in found


def test_what_mutants_are_derived_from_passes_here() -> None:
    assert row_of_correct("norm-Norm")["failed"] == []


def test_a_property_that_does_not_pass_on_what_is_derived_from_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "correct", lambda: {"norm-Norm": NormMissing})
    assert "NRM-VALUE" in row_of_correct("norm-Norm")["failed"]


def test_the_other_properties_are_asked_whether_one_kills_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "cells", lambda mutant: [mutant.killed_by, "NRM-VALUE"])
    assert judging.other_killer("norm-NormMissing") == "NRM-VALUE"
    monkeypatch.setattr(judging, "cells", lambda mutant: [mutant.killed_by, "NRM-BOUND"])
    assert judging.other_killer("norm-EpsOutsideTheRoot") is None


def test_the_search_ends_at_the_first_mutant_that_one_property_kills_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {"a": "X", "b": None, "c": None}
    monkeypatch.setattr(run, "other_killer", others.get)
    assert run.first_alone(["a", "b", "c"]) == {"a": "X", "b": None}


def test_a_lane_ends_at_the_first_case_that_fails() -> None:
    for lane in LANES.values():
        same = FirstFailure(**vars(lane))
        assert [phase.name for phase in same.settings(10).phases] == ["generate"]
        assert same.settings(10).max_examples == lane.settings(10).max_examples


def test_ranks_are_launched_for_mistakes_of_ranks_alone() -> None:
    assert "QB-RANKS" not in cells(by_name()["histogram-CountedTwice"])
    assert "QB-RANKS" in cells(by_name()["ranks_sneaks-CountsTravelAsFloats"])


def test_a_digest_changes_with_the_source_and_the_properties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = ["NRM-VALUE"]
    before, statements = digest(NormMissing, ids), judging._statements

    def edited(wanted: str | None) -> str:
        def changed(module: str) -> list[tuple[str | None, str]]:
            return [(n, text + " " if n == wanted else text) for n, text in statements(module)]

        with monkeypatch.context() as patched:
            patched.setattr(judging, "_statements", changed)
            return digest(NormMissing, ids)

    assert before == edited("WeightMissing") == edited("NoSuchMutant")
    assert before != edited("NormMissing")
    assert before != edited(None), "a helper, or what the mutant is derived from"
    assert before != digest(NormMissing, [*ids, "NRM-SCALE"])


def test_data_are_written_whole_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kills.json"
    some = {"digest": "0", "named": "NRM-VALUE", "quick": True, "killed": ["NRM-VALUE"]}
    known: dict[str, dict[str, Any]] = {
        "mutants": {"norm-WeightMissing": some, "norm-NormMissing": some},
        "correct": {"norm-Norm": {"digest": "1", "failed": []}},
    }
    run.write(known, path)
    assert json.loads(path.read_text(encoding="utf-8")) == known
    assert list(tmp_path.iterdir()) == [path]
    gone = {**known, "mutants": {**known["mutants"], "norm-Gone": some}}
    path.write_text(json.dumps(gone), encoding="utf-8")
    monkeypatch.setattr(run, "DATA", path)
    assert run.read() == known
    assert list(run.read()["mutants"]) == ["norm-NormMissing", "norm-WeightMissing"]
    assert run.stale("norm-NormMissing", known["mutants"])
    some["digest"] = digest(NormMissing, cells(NormMissing))
    assert not run.stale("norm-NormMissing", known["mutants"])


def test_the_page_tells_what_kills_a_mutant() -> None:
    one = {"digest": "0", "named": "NRM-VALUE", "quick": True, "killed": ["NRM-VALUE"]}
    many = {**one, "killed": ["NRM-VALUE", "NRM-SCALE"], "quick": False}
    survivor = {**one, "killed": []}
    rows = {
        "norm-NormMissing": {**one, "alone": True},
        "norm-WeightMissing": many,
        "norm-EpsOnTheSum": survivor,
    }
    text = page({"mutants": rows, "correct": {}})
    assert "**2 of 3** mutants" in text
    assert "| NRM-VALUE | 3 | 2 | 1 | `norm-NormMissing` |" in text
    assert "| NRM-SCALE | 0 | 1 | 0 | none, see below |" in text
    assert "* `norm-WeightMissing`: **NRM-VALUE**, NRM-SCALE\n" in text
    assert "* `norm-EpsOnTheSum`: not NRM-VALUE\n" in text
    assert "| norm | 8 | 3 | 2 | 2 |" in text


def test_claims_of_balancing_call_an_implementation() -> None:
    assert {"QB-ONESTEP", "QB-VALUE"} <= calling()
    assert not {"QB-FRACTION", "OPT-WEAK"} & calling()


def test_every_condition_has_mutants_that_exist() -> None:
    names = [name for names in COMBINATIONS.values() for name in names.split()]
    assert set(names) <= set(by_name())
    assert len(names) == len(set(names))
    assert len(COMBINATIONS) == 8
