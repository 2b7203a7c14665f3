"""The catalogue refuses entries that are not specifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from properties.registry import TOPICS, catalogue, specification
from properties.subject import Subject


def documented(subject: Subject) -> None:
    """A statement."""


def undocumented(subject: Subject) -> None:
    pass


def drawing(subject: Subject, number: int) -> None:
    """A statement about a number."""


@pytest.mark.parametrize(
    ("property_id", "function", "drawn", "told"),
    [
        ("value", documented, {}, "is not a property id"),
        ("ACT-", documented, {}, "is not a property id"),
        ("ACT-NEW", undocumented, {}, "has no docstring"),
        ("ACT-NEW", drawing, {}, "takes"),
        ("ACT-NEW", documented, {"number": st.integers()}, "takes"),
        ("NRM-VALUE", documented, {}, "is already defined in properties.test_norm"),
        ("ACT-NEW", documented, {}, "which is no topic"),
    ],
)
def test_malformed_entries_are_refused(
    property_id: str, function: Callable[..., None], drawn: dict[str, Any], told: str
) -> None:
    catalogue()
    with pytest.raises(ValueError, match=told):
        specification(property_id, source="here", **drawn)(function)
    assert "ACT-NEW" not in catalogue()


def test_every_topic_has_properties_in_its_own_file() -> None:
    entries = catalogue().values()
    assert {entry.topic for entry in entries} == set(TOPICS)
    for entry in entries:
        module = entry.function.__module__
        assert module.startswith(f"properties.test_{entry.topic}"), entry.id


def test_ids_begin_with_their_topics_letters() -> None:
    letters = {
        "activation": "ACT",
        "routing": "RTR",
        "balancing": "QB",
        "optimality": "OPT",
        "experts": "DSP",
        "norm": "NRM",
        "layer": "LAY",
        "ledger": "LED",
    }
    for entry in catalogue().values():
        assert entry.id.startswith(letters[entry.topic] + "-"), entry.id
