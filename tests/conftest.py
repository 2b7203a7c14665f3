"""What tests of verdicts share."""

from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from properties.lanes import Lane


@pytest.fixture
def no_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a property fails is asked, not what the smallest input is."""
    full = Lane.settings

    def generating(lane: Lane, examples: int) -> Any:
        return hypothesis.settings(full(lane, examples), phases=[Phase.generate])

    monkeypatch.setattr(Lane, "settings", generating)
