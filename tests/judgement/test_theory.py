"""Statements about the mathematics hold in the gate lane, which runs of the gate cut short."""

from __future__ import annotations

import pytest

from properties.execution import judge
from properties.lanes import LANES, lane_for
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import Property, catalogue

THEORY = [entry for entry in catalogue().values() if entry.theory]


@pytest.mark.parametrize("entry", THEORY, ids=lambda entry: entry.id)
def test_theory_holds(entry: Property) -> None:
    outcome = judge(entry, subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "passed", outcome.message


def test_only_theory_is_cut_short_and_only_in_the_gate() -> None:
    assert lane_for("gate", theory=True) is LANES["quick"]
    assert lane_for("gate", theory=False) is LANES["gate"]
    assert lane_for("nightly", theory=True) is LANES["nightly"]
