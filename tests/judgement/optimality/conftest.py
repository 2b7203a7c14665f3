"""Tests of verdicts ask whether a property fails, not what the smallest input is."""

import pytest

from properties import lanes


@pytest.fixture(autouse=True)
def no_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SHRINKING_SECONDS", 0)
