"""``latentmoe-gate study``: the same bytes twice, refusals before work, and what it writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lp_oracle import descent
from properties import cli
from properties.errors import UnknownError
from properties.judgement.optimality.optimum import bracket
from properties.study import command, gaps, outputs, page, results, rounds, rules
from properties.study.instances import CLASSES

ROOT = Path(__file__).parents[2]


def study(*arguments: str) -> int:
    return cli.main(["study", "-n", "0", "--instances", "3", *arguments])


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "properties.cli", "study", *arguments]
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_study_repeats_itself_with_any_number_of_workers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told, pages = [], []
    for workers in ("0", "2"):
        folder = tmp_path / workers
        (folder / "drawn").mkdir(parents=True)
        done = in_a_process(
            *("--quick", "--instances", "2", "-n", workers, "--json", str(folder / "study.json")),
            *("--figures", str(folder / "drawn"), "--page", str(folder)),
        )
        assert done.returncode == 0, done.stderr
        assert "rules, ties, q integral: 2 to do\n" in done.stderr
        assert "\r" not in done.stderr
        document = json.loads((folder / "study.json").read_text())
        assert set(document.pop("seconds")) == {"rules", "rounds", "exponent"}
        told.append((done.stdout, document))
        pages.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.[sm][vd]*")})
    assert told[0] == told[1]
    assert pages[0] == pages[1]
    assert len(pages[0]) == 7
    check_document(told[0][1])
    check_page((tmp_path / "0" / "study.md").read_text(), tmp_path / "0")


def check_document(document: dict[str, Any]) -> None:
    assert document["schema"] == results.SCHEMA
    assert document["command"] == "latentmoe-gate study --instances 2 --seed 0 --quick"
    assert {"numpy", "scipy", "python", "latentmoe-gate"} == set(document["versions"])
    assert (document["seed"], document["instances"], document["quick"]) == (0, 2, True)
    assert [entry["name"] for entry in document["rules"]] == [drawn.name for drawn in CLASSES]
    for entry in document["rules"]:
        assert len(entry["rows"]) == 16
        for row in entry["rows"]:
            assert row["dual"]["of"] == row["routing"]["of"] == 2
            assert row["dual"]["low"] <= row["dual"]["hits"] / 2 <= row["dual"]["high"]
            assert (row["worst_gap"] == 0.0) == (row["dual"]["hits"] == 2)
    assert len(document["rounds"]) == len(rounds.QUICK_SHAPES) * len(rounds.PAIRS)
    [written, linear] = document["exponent"]
    assert [size["m"] for size in written["sizes"]] == [16, 32, 64, 128]
    assert len(written["fits"]) == 1
    assert linear["fits"] == []


def check_page(text: str, folder: Path) -> None:
    links = re.findall(r"\]\((figures/[^)]*)\)", text)
    assert len(links) == 3
    for link in links:
        assert (folder / link).read_text().startswith("<?xml")
        assert "<dc:date>" not in (folder / link).read_text()
    assert "{" not in text
    assert text.count("| midpoint | q+1 |") == 3


def never(*arguments: object) -> None:
    raise AssertionError("the study was run")


@pytest.mark.parametrize("option", ["--json", "--figures", "--page"])
def test_bad_paths_are_refused_before_any_work(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "_measured", never)
    missing = tmp_path / "none" / "study"
    assert study(option, str(missing)) == 2
    assert f"{option} {missing} cannot be written: there is no folder" in capsys.readouterr().err
    assert not missing.parent.exists()
    (tmp_path / "file").touch()
    unsuitable = tmp_path if option == "--json" else tmp_path / "file"
    assert study(option, str(unsuitable)) == 2
    assert f"{option} {unsuitable} cannot be written: " in capsys.readouterr().err
    if Path("/proc/self").exists():  # nobody can write there, root included
        assert study(option, "/proc/self/study" if option == "--json" else "/proc/self") == 2
    if Path("/dev/null").exists() and option == "--json":
        assert study(option, "/dev/null") == 2
        assert "it is no regular file" in capsys.readouterr().err


def test_a_page_of_a_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_measured", never)
    assert study("--page", str(tmp_path), "--only", "rules") == 2
    assert "leave out --only" in capsys.readouterr().err
    with pytest.raises(ValueError, match="all three sections"):
        page.page(results.Study(seed=0, instances=1, quick=True))


@pytest.mark.parametrize("words", [["--instances", "0"], ["--seed", "-1"], ["--only", "all"]])
def test_bad_arguments_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        cli.main(["study", *words])
    assert refused.value.code == 2


def test_figures_without_matplotlib_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_measured", never)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "properties.study.figures", raising=False)
    assert study("--figures", str(tmp_path)) == 2
    assert "pip install 'latentmoe-gate[report]'" in capsys.readouterr().err


def test_matplotlib_is_not_loaded_unasked() -> None:
    code = "import sys, properties.cli; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_files_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.json"
    outputs.write_whole(path, b"old")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as part:
            part.write(data[:1])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        outputs.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["study.json"]


def test_a_wrong_certificate_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def everything(problem: Any, bias: Any) -> SimpleNamespace:
        # A feasible assignment that ignores the scores.
        slots = (np.arange(problem.m)[:, None] * problem.top_k + np.arange(problem.top_k)).ravel()
        chosen = np.zeros((problem.m, problem.n), dtype=np.int64)
        chosen[np.repeat(np.arange(problem.m), problem.top_k), slots % problem.n] = 1
        return SimpleNamespace(optimal=True, reason=None, assignment=chosen)

    monkeypatch.setattr(descent, "routing_verdict", everything)
    assert study("--only", "rules") == 1
    assert "a certified assignment is worth" in capsys.readouterr().err


def test_optima_without_a_certificate_do_not_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([True, False, False] * 3)

    def sometimes(*arguments: Any) -> Any:
        if next(answers):
            raise UnknownError("the solver gives up")
        return bracket(*arguments)

    monkeypatch.setattr(rules, "bracket", sometimes)
    assert study("--only", "rules") == 3
    told = capsys.readouterr()
    assert told.out.count("2 of 3 instances with a certified optimum") == 3
    assert "too many optima could not be certified" in told.err


def test_an_optimum_at_scale_without_a_certificate_ends_the_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = SimpleNamespace(certified=False, gap=1.0)
    monkeypatch.setattr(gaps, "certified_optimum", lambda scores, top_k: nothing)
    assert study("--quick", "--only", "rounds") == 4
    assert "the study failed: no certificate: the gap is 1.0" in capsys.readouterr().err


# The pages that people read ------------------------------------------------------------------


def shares_of(text: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """By heading: token rule, expert rule and both shares of every row of a page."""
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    for section in text.split("\n### ")[1:]:
        rows = re.findall(r"^\| (\S+) \| (\S+) \| ([^|]*) \| ([^|]*) \|", section, re.MULTILINE)
        found[section.splitlines()[0].lower()] = rows[1:]  # after the line of dashes
    return found


def test_the_readme_says_what_the_page_says() -> None:
    readme = (ROOT / "README.md").read_text()
    measured = shares_of((ROOT / "docs" / "study.md").read_text())
    told = readme.split("## When does Quantile Balancing reach the LP optimum?")[1].split("\n## ")[
        0
    ]
    for pair in (("k+1", "q+1"), ("k", "q"), ("k+1", "q")):
        [(dual, routing)] = [row[2:] for row in measured["generic, q integral"] if row[:2] == pair]
        assert dual in told
        assert routing in told
    for link in re.findall(r"\]\((figures/[^)]*)\)", (ROOT / "docs" / "study.md").read_text()):
        assert (ROOT / "docs" / link).stat().st_size < 150_000
