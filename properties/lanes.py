"""The lanes: how many cases a property is given, and where their randomness comes from.

``gate`` repeats itself exactly, on every machine with the same Hypothesis version; ``quick`` is its
first fifth, for an edit loop; ``nightly`` draws twenty times as many cases afresh and keeps
Hypothesis' example database. Of a statement about the mathematics alone, which is as true whatever
implementation is judged, the gate draws the quick lane's cases too. A whole run of the quick lane
leaves those out, several ranks, and what is long (``properties.execution.select``).
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import HypothesisWarning
from hypothesis.internal.conjecture import engine, providers
from hypothesis.internal.constants_ast import Constants

SHRINKING_SECONDS = 8


@dataclass(frozen=True)
class Lane:
    """A named amount of work: ``factor`` times a property's gate-lane examples."""

    name: str
    factor: float
    random: bool

    def settings(self, examples: int) -> settings:
        """Hypothesis settings for a property with that many gate-lane examples."""
        chosen: dict[str, Any] = {"derandomize": True, "database": None}
        phases = [Phase.generate, Phase.shrink]
        if self.random:
            chosen = {"derandomize": False, "database": settings.get_profile("default").database}
            phases += [Phase.reuse, Phase.target]
        return settings(
            settings.get_profile("ci"),
            max_examples=max(1, round(examples * self.factor)),
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=phases,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            **chosen,
        )


LANES = {
    "quick": Lane("quick", 0.2, random=False),
    "gate": Lane("gate", 1.0, random=False),
    "nightly": Lane("nightly", 20.0, random=True),
}


def lane_for(name: str, *, theory: bool) -> Lane:
    """The lane of that name; for statements that never call the implementation, what it is there.

    This repository's own tests judge those in the gate lane, once for all.
    """
    return LANES["quick" if theory and name == "gate" else name]


def seeded(
    function: Callable[..., None], lane: Lane, property_id: str, seed: int | None
) -> Callable[..., None]:
    """Fix the draws of a Hypothesis test, unless the lane is random and no seed is named.

    The seed depends on the property's id, so that editing one property leaves the draws of every
    other as they were.
    """
    if lane.random and seed is None:
        return function
    return hypothesis.seed(zlib.crc32(f"{property_id}/{seed or 0}".encode()))(function)


@contextmanager
def reproducible_hypothesis() -> Iterator[None]:
    """Make draws independent of the caller's modules, and a failure of how it can be shown.

    Hypothesis mixes literals found in the modules that happen to be imported into what it draws: an
    edit of the implementation under test would change the inputs it is judged on. It also shrinks
    for up to five minutes per failure, which a gate with a verdict within a minute cannot afford.
    Neither has a public setting. It warns of inputs that are long to print, which is no verdict
    where warnings are errors.
    """
    saved = providers._get_local_constants, engine.MAX_SHRINKING_SECONDS
    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = Constants
    engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            yield
    finally:
        providers._get_local_constants, engine.MAX_SHRINKING_SECONDS = saved
        providers.CONSTANTS_CACHE.cache.clear()
