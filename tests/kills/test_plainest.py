"""The plainest mistakes die in the quick lane, judged here and now."""

from __future__ import annotations

import pytest

from tests.kills.judging import by_name, killed_by_its_own
from tests.kills.plainest import PLAINEST


def test_there_are_forty_and_none_twice() -> None:
    assert len(set(PLAINEST)) == len(PLAINEST) >= 40


@pytest.mark.parametrize("name", PLAINEST)
def test_a_plain_mistake_is_caught_in_the_quick_lane(name: str) -> None:
    assert killed_by_its_own(by_name()[name], "quick")
