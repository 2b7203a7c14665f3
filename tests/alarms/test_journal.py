"""Nothing that a log holds is lost, and no seed is used twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.alarms.journal import (
    JUDGED_BY,
    JUDGED_WITH,
    LogError,
    append,
    commit,
    digest,
    fresh_seeds,
    read,
)
from tests.alarms.test_summary import ALARM, RUN


def test_runs_come_back_as_they_were(tmp_path: Path) -> None:
    log = tmp_path / "new" / "log.jsonl"
    assert read(log).runs == []
    written = [RUN, replace(RUN, seed=18, alarms=(ALARM,)), replace(RUN, seed=20, lane="quick")]
    for run in written:
        append(log, run)
    journal = read(log)
    assert journal.runs == written
    assert journal.trouble == []
    assert journal.of(RUN.code, "gate", ranks=False) == written[:2]
    assert journal.of(RUN.code, "gate", ranks=True) == []
    assert journal.of("other", "gate", ranks=False) == []


@pytest.mark.parametrize("kept", [5, 30, 150])
def test_half_a_last_line_costs_no_other_run(tmp_path: Path, kept: int) -> None:
    log = tmp_path / "log.jsonl"
    append(log, RUN)
    whole = log.read_bytes()
    log.write_bytes(whole + whole.replace(b"17", b"18", 1)[:kept])
    cut = read(log)
    assert cut.runs == [RUN]
    told = f"line 2 of {log} is cut off: that run is not counted, every other is"
    assert cut.trouble == [told]
    # What is known of its seed keeps it from coming again.
    assert cut.seeds == ({17} if kept == 5 else {17, 18})
    append(log, replace(RUN, seed=19))
    later = read(log)
    assert [run.seed for run in later.runs] == [17, 19]
    assert later.trouble == [told]


@pytest.mark.parametrize("line", ["1, 2, 3", "[]", "3", "{}", '{"seed": 1, "alarms": []}'])
def test_another_kind_of_file_is_refused(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    append(log, RUN)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(LogError, match=r"line 2 of .* is no run of this tool"):
        read(log)


def test_seeds_are_new_ones() -> None:
    assert list(islice(fresh_seeds(5, {6, 7, 9, 100}), 4)) == [5, 8, 10, 11]


def test_the_digest_changes_with_what_decides_a_verdict_and_with_nothing_else(
    tmp_path: Path,
) -> None:
    for name in [*(f"{folder}/part.py" for folder in JUDGED_BY), *JUDGED_WITH]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1\n", encoding="utf-8")
    before = digest(tmp_path)
    assert len(before) == 12
    (tmp_path / "properties" / "note.md").write_text("text", encoding="utf-8")
    assert digest(tmp_path) == before
    (tmp_path / "properties" / "part.py").write_text("a = 2\n", encoding="utf-8")
    changed = digest(tmp_path)
    (tmp_path / "lp_oracle" / "more.py").write_text("", encoding="utf-8")
    assert len({before, changed, digest(tmp_path)}) == 3


def test_without_git_the_commit_is_unknown(tmp_path: Path) -> None:
    assert commit(tmp_path) == "unknown"
