"""How a property judges the oracle that a test has made wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find

Patch = Callable[[pytest.MonkeyPatch], None]


def verdict_of(property_id: str, lane: str = "gate") -> str:
    """The verdict on the reference, with the oracle as it is now."""
    return judge(find(property_id), subject_of(Reference()), LANES[lane]).verdict


def each_wrong(cases: Sequence[tuple[str, str, Any]]) -> pytest.MarkDecorator:
    """Parametrise (property_id, patch) by cases of property id, what is wrong, and the patch."""
    return pytest.mark.parametrize(
        ("property_id", "patch"),
        [(property_id, patch) for property_id, _, patch in cases],
        ids=[f"{property_id}-{what}" for property_id, what, _ in cases],
    )
