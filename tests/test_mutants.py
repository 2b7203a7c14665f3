"""Every wrong implementation in tests/mutants is caught by the property named for its mistake."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find
from properties.subject import Subject

pytestmark = pytest.mark.usefixtures("no_shrinking")

FOLDER = Path(__file__).parent / "mutants"


def mutants() -> list[Any]:
    """The classes with a ``killed_by`` of their own, in the order of their definition."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        module = importlib.import_module(f"tests.mutants.{path.stem}")
        for candidate in vars(module).values():
            own = isinstance(candidate, type) and candidate.__module__ == module.__name__
            if own and "killed_by" in vars(candidate):
                found.append(candidate)
    return found


def name_of(mutant: Any) -> str:
    return f"{mutant.__module__.rpartition('.')[2]}-{mutant.__name__}"


def subject_for(candidate: Any) -> Subject:
    """A subject around a new one of that class; ranks construct it by its name."""
    subject = subject_of(candidate(), f"{candidate.__module__}:{candidate.__qualname__}")
    subject.rank_seconds = getattr(candidate, "rank_seconds", subject.rank_seconds)
    return subject


@pytest.mark.parametrize("mutant", mutants(), ids=name_of)
def test_mutant_is_killed_by_its_property(mutant: Any) -> None:
    outcome = judge(find(mutant.killed_by), subject_for(mutant), LANES["gate"])
    expected = getattr(mutant, "verdict", "failed")
    assert outcome.verdict == expected, f"{outcome.verdict}: {outcome.message}"
    assert outcome.message


def test_every_mutant_says_what_is_wrong_with_it() -> None:
    for mutant in mutants():
        assert mutant.__doc__, name_of(mutant)
