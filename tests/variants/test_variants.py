"""Right implementations that differ from the reference are accused of nothing.

The counterpart of ``tests/test_mutants.py``: each class with a ``freedom`` of its own uses what the
specification leaves open, and passes every property of its ``topics`` that it offers, or those that
it names as the ``only`` ones.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from properties.execution import judge, select
from properties.lanes import Lane
from properties.loading import subject_of

FOLDER = Path(__file__).parent

# A fifth of the quick lane: what runs in every test run has to be short.
GLANCE = Lane("glance", 0.04, random=False)


def variants() -> list[Any]:
    """The classes with a ``freedom`` of their own, in the order of their definition."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem == Path(__file__).stem:
            continue
        module = importlib.import_module(f"tests.variants.{path.stem}")
        for candidate in vars(module).values():
            own = isinstance(candidate, type) and candidate.__module__ == module.__name__
            if own and "freedom" in vars(candidate):
                found.append(candidate)
    return found


def name_of(variant: Any) -> str:
    return f"{variant.__module__.rpartition('.')[2]}-{variant.__name__}"


@pytest.mark.parametrize("variant", variants(), ids=name_of)
def test_no_property_accuses_a_variant(variant: Any) -> None:
    assert variant.__doc__
    # Ranks construct it by its name.
    subject = subject_of(variant(), f"{variant.__module__}:{variant.__qualname__}")
    entries = select(getattr(variant, "only", ()), variant.topics)
    outcomes = [judge(entry, subject, GLANCE) for entry in entries]
    accused = {
        outcome.id: f"{outcome.verdict}: {outcome.message}"
        for outcome in outcomes
        if outcome.verdict not in ("passed", "not offered")
    }
    assert not accused
    assert any(outcome.verdict == "passed" for outcome in outcomes)
