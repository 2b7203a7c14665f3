"""Radii that nothing ever exceeds prove nothing: each value property fails for gross faults.

A value property is one that compares a result with a ball. Judged here are all properties of the
catalogue on the inputs that the gate lane generates: a property lets no fault pass that its methods
can show, unless ``reasons`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis
import pytest
from hypothesis import Phase

from properties.execution import Outcome, judge
from properties.lanes import Lane
from properties.loading import subject_of
from properties.registry import Property, catalogue
from tests.bite.faults import FAULTS, PRECISIONS, Fault, Faulty
from tests.bite.reasons import LOWER, reasons

REASONS = dict(reasons())


@dataclass(frozen=True)
class Unshrunk(Lane):
    """The gate lane's inputs, without the search for smaller ones."""

    def settings(self, examples: int) -> hypothesis.settings:
        return hypothesis.settings(super().settings(examples), phases=[Phase.generate])


OFFERED = subject_of(Faulty(Fault("none", "nothing"), PRECISIONS["float32"])).offered

GATE, TENTH, GLANCE = (Unshrunk("bite", share, random=False) for share in (1.0, 0.1, 0.04))


def applicable() -> list[tuple[Property, Fault, str]]:
    """Property, fault and precision, for all faults that the property's methods can show.

    Without methods a property is about the mathematics alone. Activation, norm and balancing have
    neither experts nor weights; roundings depend on the precision, and are tried in all of them.
    What the reference does not offer, no fault can spoil.
    """
    return [
        (entry, fault, precision)
        for entry in catalogue().values()
        for fault in FAULTS.values()
        for precision in (PRECISIONS if fault.name == LOWER else ("float32",))
        if _can_show(entry, fault)
    ]


def _can_show(entry: Property, fault: Fault) -> bool:
    called = {*entry.needs, *entry.any_of}
    if not set(entry.needs) <= OFFERED:
        return False
    return bool(called & set(fault.methods)) if fault.methods else bool(called)


def judged(entry: Property, fault: Fault, precision: str, lane: Lane) -> Outcome:
    return judge(entry, subject_of(Faulty(fault, PRECISIONS[precision])), lane)


@pytest.mark.parametrize(
    ("entry", "fault", "precision"),
    applicable(),
    ids=lambda part: getattr(part, "id", getattr(part, "name", part)),
)
def test_a_fault_is_noticed_or_there_is_a_reason_why_not(
    entry: Property, fault: Fault, precision: str
) -> None:
    reason = REASONS.get((entry.id, fault.name, precision))
    if reason is not None:
        outcome = judged(entry, fault, precision, GLANCE)
        assert outcome.verdict in ("passed", "unknown"), f"noticed, although it {reason}"
        return
    for lane in (TENTH, GATE):
        outcome = judged(entry, fault, precision, lane)
        assert outcome.verdict in ("passed", "failed", "unknown"), outcome.message
        if outcome.verdict == "failed" or outcome.worst_ratio is None:
            return
    pytest.fail(
        f"{entry.id} compares with a radius and lets {fault.mistake!r} pass, with a worst ratio of "
        f"{outcome.worst_ratio}: sharpen it, or say why in tests/bite/reasons.py"
    )


def test_reasons_name_properties_and_faults_that_exist() -> None:
    known = {(entry.id, fault.name, precision) for entry, fault, precision in applicable()}
    assert set(REASONS) <= known
    assert len(REASONS) == len(list(reasons()))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_without_a_fault_the_implementation_is_right(precision: str) -> None:
    """So it is the fault that is noticed, and not the frame around it."""
    healthy = Fault("none", "nothing")
    for property_id in ("ACT-VALUE", "RTR-WEIGHTS", "QB-VALUE", "DSP-DENSE", "LAY-VALUE"):
        outcome = judged(catalogue()[property_id], healthy, precision, GLANCE)
        assert outcome.verdict == "passed", outcome.message
