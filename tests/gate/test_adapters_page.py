"""The adapters of docs/adapters.md: judged as they stand on the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from properties.execution import judge, judge_all
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adapters.md"
CODE = re.compile(r"```python\n# (?P<file>\w+)\.py\n(?P<code>.*?)```", re.DOTALL)


def adapter(file: str, name: str, change: Callable[[str], str] = str) -> Any:
    blocks = {match["file"]: match["code"] for match in CODE.finditer(PAGE.read_text())}
    defined: dict[str, Any] = {"__name__": file}
    exec(compile(change(blocks[file]), f"{file}.py", "exec"), defined)
    return subject_of(defined[name]())


@pytest.mark.parametrize(
    ("file", "name", "topics", "offered"),
    [
        ("balancing_adapter", "Balancing", ["balancing"], {"QB-HIST-MODEL", "QB-OFF"}),
        ("experts_adapter", "Experts", ["activation", "experts"], {"ACT-VJP", "DSP-GRAD"}),
    ],
)
def test_an_adapter_of_the_page_passes(
    file: str, name: str, topics: list[str], offered: set[str]
) -> None:
    outcomes = judge_all(adapter(file, name), topics=topics, lane="quick")
    verdicts = {outcome.id: outcome.verdict for outcome in outcomes}
    assert set(verdicts.values()) <= {"passed", "not offered"}
    assert {i for i in offered if verdicts[i] == "passed"} == offered


def test_a_balancer_that_counts_while_off_fails_as_the_page_says() -> None:
    broken = adapter(
        "balancing_adapter",
        "Balancing",
        lambda code: code.replace(" and self.enabled", "").replace("not self.enabled or ", ""),
    )
    assert judge(find("QB-OFF"), broken, LANES["gate"]).verdict == "failed"
