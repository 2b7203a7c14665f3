"""What the README shows of a failure is what a run prints."""

from __future__ import annotations

from pathlib import Path

from properties.execution import judge
from properties.lanes import LANES
from properties.loading import load
from properties.registry import find
from properties.report import describe, failure_text

README = Path(__file__).parents[2] / "README.md"


def test_the_failure_is_what_a_run_prints() -> None:
    subject = load("tests.mutants.norm:EpsOutsideTheRoot")
    outcome = judge(find("NRM-VALUE"), subject, LANES["gate"])
    told = failure_text(outcome, describe(subject, "gate", None))
    assert told in README.read_text(encoding="utf-8")
