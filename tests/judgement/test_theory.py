"""Statements about the mathematics hold in the gate lane, which runs of the gate cut short."""

from __future__ import annotations

import pytest

from properties.execution import judge, select
from properties.lanes import LANES, lane_for
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import Property, catalogue
from properties.report import left_out_lines

THEORY = [entry for entry in catalogue().values() if entry.theory]


@pytest.mark.parametrize("entry", THEORY, ids=lambda entry: entry.id)
def test_theory_holds(entry: Property) -> None:
    outcome = judge(entry, subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "passed", outcome.message


def test_only_theory_is_cut_short_and_only_in_the_gate() -> None:
    assert lane_for("gate", theory=True) is LANES["quick"]
    assert lane_for("gate", theory=False) is LANES["gate"]
    assert lane_for("nightly", theory=True) is LANES["nightly"]


def test_a_whole_quick_run_leaves_theory_ranks_and_what_is_long_out_and_says_so() -> None:
    chosen = {entry.id for entry in select(lane="quick")}
    ranks = {entry.id for entry in catalogue().values() if "ranks" in entry.needs}
    long = {entry.id for entry in catalogue().values() if entry.long}
    assert long == {"QB-SIZES", "DSP-GRAD-SIZES", "LAY-SIZES"}
    assert set(catalogue()) - chosen == {entry.id for entry in THEORY} | ranks | long
    several = f"on several ranks {', '.join(name for name in catalogue() if name in ranks)}"
    told = f"left to the gate lane: {len(THEORY)} statements and claims that need no implementation"
    told += "; sizes, a second each: QB-SIZES, DSP-GRAD-SIZES, LAY-SIZES"
    assert left_out_lines(chosen, ()) == [told]
    assert left_out_lines(chosen, ("ranks",)) == [f"{told}; {several} (here with --ranks 2)"]
    assert left_out_lines(set(catalogue()), ("ranks",)) == []


def test_what_is_asked_for_is_judged_in_the_quick_lane_too() -> None:
    assert [entry.id for entry in select(["OPT-WEAK"], lane="quick")] == ["OPT-WEAK"]
    assert "OPT-WEAK" in {entry.id for entry in select(topics=["optimality"], lane="quick")}
    assert "QB-RANKS" in {entry.id for entry in select(topics=["balancing"], lane="quick")}
    assert "QB-RANKS" in {entry.id for entry in select(lane="quick", ranks=2)}
    assert len(select()) == len(select(lane="nightly")) == len(catalogue())
