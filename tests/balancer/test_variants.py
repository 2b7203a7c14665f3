"""Balancers that are right, each in its own way, pass every property of the state."""

from __future__ import annotations

from typing import Any

import pytest

from properties import test_balancing_machine, test_balancing_state
from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import Property, catalogue
from tests.balancer.variants import VARIANTS, NoPadding, NothingOptional

MODULES = (test_balancing_machine.__name__, test_balancing_state.__name__)
STATE = [entry for entry in catalogue().values() if entry.function.__module__ in MODULES]
NOT_OFFERED = {
    (NothingOptional, "QB-REPLAY"),
    (NothingOptional, "QB-STATE"),
    (NoPadding, "QB-MASK"),
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize("entry", STATE, ids=lambda entry: entry.id)
def test_a_right_balancer_passes(entry: Property, variant: Any) -> None:
    outcome = judge(entry, subject_of(variant()), LANES["quick"])
    expected = "not offered" if (variant, entry.id) in NOT_OFFERED else "passed"
    assert outcome.verdict == expected, outcome.message
    assert outcome.unknown == 0
