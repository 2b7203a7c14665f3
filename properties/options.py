"""The options that the plugin adds to pytest, what they select, and in which order.

Imported in every pytest session of an environment that has this package, so the suite itself is
imported only once an implementation is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from properties.registry import Property

__all__ = ["add_options", "place", "selected"]


def add_options(parser: pytest.Parser) -> None:
    """Add ``--implementation`` and the ``--gate-…`` options."""
    group = parser.getgroup("latentmoe-gate", "properties of a Stable LatentMoE implementation")
    group.addoption(
        "--implementation",
        metavar="PKG.MODULE:NAME",
        help="judge this implementation with the tests of `--pyargs properties`",
    )
    group.addoption(
        "--gate-lane",
        choices=("quick", "gate", "nightly"),
        default="gate",
        help="how many cases: quick, gate (default; repeats exactly) or nightly (random)",
    )
    group.addoption(
        "--gate-seed", type=int, metavar="N", help="draw other cases than the lane's own"
    )
    group.addoption(
        "--gate-only", action="append", default=[], metavar="ID", help="only this property"
    )
    group.addoption(
        "--gate-topic", action="append", default=[], metavar="TOPIC", help="only this topic"
    )
    group.addoption(
        "--gate-ranks",
        type=int,
        metavar="N",
        help="worlds of 2 and 4 ranks up to N, for an implementation that has them (default: 4, in "
        "the nightly lane both, in a whole run of the quick lane none)",
    )
    group.addoption("--gate-json", metavar="FILE", type=Path, help="write the run as JSON")
    group.addoption(
        "--gate-call-seconds",
        type=float,
        metavar="N",
        help="how long one call of the implementation may take; 0 is no limit (default 60)",
    )
    group.addoption(
        "--gate-save", metavar="FOLDER", help="write the arrays of failures to files there"
    )
    group.addoption(
        "--gate-folder", metavar="FOLDER", help="where processes of a run leave traces for others"
    )


def selected(config: pytest.Config) -> list[Property]:
    """The properties that the options select.

    Raises KeyError for an id that does not exist, and pytest.UsageError for such a topic.
    """
    from properties.execution import select

    return select(
        config.getoption("--gate-only"),
        _topics(config),
        lane=config.getoption("--gate-lane"),
        ranks=config.getoption("--gate-ranks"),
    )


def place(item: pytest.Item) -> int:
    """Where a test comes: first those on ranks, which one worker has then, to start them once.

    Next those whose one case takes as long in every lane, so that none is the last, which one
    worker waits for.
    """
    entry = getattr(getattr(item, "function", None), "specification", None)
    if entry is None:
        return 2
    return 0 if "ranks" in entry.needs else 1 if entry.examples == 1 else 2


def _topics(config: pytest.Config) -> list[str]:
    from properties.registry import TOPICS

    topics: list[str] = config.getoption("--gate-topic")
    for topic in topics:
        if topic not in TOPICS:
            raise pytest.UsageError(
                f"--gate-topic: there is no topic {topic!r}; the topics are {', '.join(TOPICS)}"
            )
    return topics
