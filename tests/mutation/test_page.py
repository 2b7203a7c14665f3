"""Scores and kinds are what they are of results written by hand; mutmut is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import page, run, scratch
from tests.mutation.packages import PACKAGES
from tests.mutation.rules import EQUIVALENT
from tests.mutation.triage import OPEN, WORDING, kind_of


def mutant(status: str, before: str = "a < b", after: str = "a <= b") -> dict[str, Any]:
    return {
        "file": "package/file.py",
        "function": "name",
        "status": status,
        "before": before,
        "after": after,
    }


def results(*statuses: str, package: str = "lp_oracle", every: int = 1) -> dict[str, Any]:
    mutants = {str(number): mutant(status) for number, status in enumerate(statuses)}
    return {"package": package, "every": every, "mutants": mutants}


def test_the_score_counts_timeouts_as_killed_and_what_no_test_reaches_as_alive() -> None:
    found = results("killed", "killed", "timeout", "survived", "not covered", "suspicious")
    assert page.score(found["mutants"]) == (3, 6)
    assert page.row("all", found["mutants"]) == "| all | 2 | 1 | 1 | 1 | 1 | 3 / 6 |"


def test_what_was_not_drawn_or_not_run_is_out_of_the_score_and_said() -> None:
    found = results("killed", "not drawn", "survived", "not run", every=2)
    assert page.score(found["mutants"]) == (1, 2)
    line = page.score_line(found)
    assert "1 of 2 mutants killed (50.0 %)" in line
    assert "every mutant number 1 + 2n of 4" in line
    assert "1 mutants were not run" in line


def test_a_section_replaces_its_own_and_leaves_the_others(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    page.write(results("killed", package="lp_oracle"), written)
    page.write(results("survived", package="reference_numpy"), written)
    page.write(results("killed", "killed", package="lp_oracle"), written)
    text = written.read_text(encoding="utf-8")
    assert text.startswith(page.HEAD)
    assert text.index("## `reference_numpy`") < text.index("## `lp_oracle`")
    assert text.count("\n## ") == 2
    assert "lp_oracle: 2 of 2" in text
    assert "reference_numpy: 0 of 1" in text


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ('raise ValueError("k is too large")', 'raise ValueError("K IS TOO LARGE")', WORDING),
        ('raise ValueError(f"k is {k}")', 'raise ValueError(f"XXk is {k}XX")', WORDING),
        ('raise ValueError("k is too large")', "raise ValueError(None)", OPEN),
        ('kind = "stable"', 'kind = "STABLE"', OPEN),
        ("a < b", "a <= b", OPEN),
    ],
)
def test_only_what_rewords_a_message_is_a_message(
    before: str, after: str, kind: tuple[str, str]
) -> None:
    assert kind_of(mutant("survived", before, after)) == kind


def test_a_rule_is_about_its_own_package() -> None:
    casts = mutant("survived", "x.astype(np.float64)", "x.astype(None)")
    assert kind_of(casts) == OPEN
    assert kind_of(casts | {"file": "lp_oracle/problem.py"})[0] == EQUIVALENT
    assert kind_of(casts | {"file": "reference_numpy/layer.py"}) == OPEN


def test_what_was_killed_in_the_same_function_is_not_run_again(tmp_path: Path) -> None:
    digests = {"x_f": "same", "x_g": "new"}
    codes = dict.fromkeys(
        ("p.x_f__mutmut_1", "p.x_f__mutmut_2", "p.x_f__mutmut_3", "p.x_g__mutmut_1")
    )
    path = tmp_path / "mutants" / "p.py.meta"
    path.parent.mkdir()
    path.write_text(json.dumps({"exit_code_by_key": codes, "hash_by_function_name": digests}))
    known: dict[str, dict[str, Any]] = {
        "p.x_f__mutmut_1": {"digest": "same", "status": "killed", "code": 1},
        "p.x_f__mutmut_2": {"digest": "same", "status": "timeout", "code": -24},
        "p.x_f__mutmut_3": {"digest": "same", "status": "survived", "code": 0},
        "p.x_g__mutmut_1": {"digest": "old", "status": "killed", "code": 1},
    }
    scratch.preset(tmp_path, known, 1)
    meta = scratch.metas(tmp_path)[path]
    assert list(meta["exit_code_by_key"].values()) == [1, -24, None, None]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("lp_oracle.dual.x_value__mutmut_12", "value"),
        ("lp_oracle.dual.x__private__mutmut_1", "_private"),
        ("lp_oracle.dual.xǁPricesǁvalue__mutmut_3", "Prices.value"),
    ],
)
def test_names_of_mutants_lead_to_functions(name: str, function: str) -> None:
    assert run.function_of(name) == function


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_what_is_mutated_and_asked_exists(package: Any) -> None:
    for part in (package.source, *package.tests):
        assert (scratch.ROOT / part).is_dir()
    for test in package.left_out:
        file, _, function = test.partition("::")
        assert f"def {function}" in (scratch.ROOT / file).read_text(encoding="utf-8")


def test_a_sample_of_nothing_and_a_missing_earlier_run_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scratch, "ROOT", tmp_path)
    for arguments, said in (
        (["--every", "0", "lp_oracle"], "'0' is no whole number, 1 or more"),
        (["--again", "lp_oracle"], "run without it first"),
        (["numpy"], "invalid choice: 'numpy'"),
    ):
        with pytest.raises(SystemExit):
            run.main(arguments)
        assert said in capsys.readouterr().err
