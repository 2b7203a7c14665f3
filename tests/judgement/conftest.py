"""Tests of judgement ask whether a property fails, not what the smallest input is."""

import pytest


@pytest.fixture(autouse=True)
def _no_shrinking(no_shrinking: None) -> None:
    """Everywhere here."""
