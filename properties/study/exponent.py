"""How the gap that Eq. 14 leaves shrinks as the batch grows, experts and top_k fixed.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import lp_oracle
from properties.study.gaps import Pair, gaps_of, known_at_scale
from properties.study.instances import router_scores
from properties.study.statistics import PowerLaw, power_law
from properties.study.workers import Workers

NUM_EXPERTS = 16
TOP_K = 2
ROUNDS = 100
SEEDS = 16
QUICK_SEEDS = 4

# Tokens per expert, and the ranges of them that a power law is fitted to.
RATIOS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
QUICK_RATIOS: tuple[int, ...] = (1, 2, 4, 8)
FIT_RANGES: tuple[tuple[int, int], ...] = ((1, 8), (8, 1024))

AS_WRITTEN: Pair = ("k+1", "q+1")
LINEAR: Pair = ("k+1", "linear")
PAIRS = (AS_WRITTEN, LINEAR)

__all__ = [
    "AS_WRITTEN",
    "FIT_RANGES",
    "LINEAR",
    "NUM_EXPERTS",
    "PAIRS",
    "QUICK_RATIOS",
    "RATIOS",
    "ROUNDS",
    "TOP_K",
    "Series",
    "Size",
    "measure",
    "seeds",
]


def seeds(*, quick: bool) -> int:
    """Instances per size."""
    return QUICK_SEEDS if quick else SEEDS


@dataclass(frozen=True)
class Size:
    """The relative gaps on all instances of one number of tokens; 0 where LP* is reached.

    ``jammed`` counts the descents that came to rest; the others were still moving after ``ROUNDS``.
    """

    m: int
    gaps: list[float]
    jammed: int

    @property
    def mean(self) -> float:
        """The mean gap, those of 0 included."""
        return sum(self.gaps) / len(self.gaps)


@dataclass(frozen=True)
class Series:
    """One pair of rules at all sizes; for Eq. 14 as written, a power law in m for each range."""

    token_rule: str
    expert_rule: str
    sizes: list[Size]
    fits: list[PowerLaw]


def measure(seed: int, ratios: Sequence[int], instances: int, workers: Workers) -> list[Series]:
    """A series for each of ``PAIRS``, on the same ``instances`` per size.

    The linear quantile takes as many rounds as Eq. 14 did on that instance until it came to rest.
    """
    tokens = [ratio * NUM_EXPERTS for ratio in ratios]
    items = [(seed, m, index) for m in tokens for index in range(instances)]
    found = workers.map(_gaps, items[::-1], "exponent")[::-1]
    by_size = {m: found[at * instances :][:instances] for at, m in enumerate(tokens)}
    return [_series(i, pair, by_size) for i, pair in enumerate(PAIRS)]


def _gaps(item: tuple[int, int, int]) -> list[tuple[float, bool]]:
    """For each of ``PAIRS`` the gap, and whether the descent is at rest."""
    seed, m, index = item
    scores_MN = router_scores((seed, m, index), (m, NUM_EXPERTS), 0.0)
    known = known_at_scale(scores_MN, TOP_K)
    found: list[tuple[float, bool]] = []
    rounds = ROUNDS
    for token_rule, expert_rule in PAIRS:
        trace = lp_oracle.coordinate_descent(
            scores_MN, TOP_K, token_rule=token_rule, expert_rule=expert_rule, rounds=rounds
        )
        found.append((gaps_of(trace, known).best, trace.outcome == "jammed"))
        rounds = trace.rounds
    return found


def _series(which: int, pair: Pair, by_size: dict[int, list[list[tuple[float, bool]]]]) -> Series:
    sizes = [
        Size(m, [e[which][0] for e in found], sum(e[which][1] for e in found))
        for m, found in by_size.items()
    ]
    return Series(pair[0], pair[1], sizes, _fits(sizes) if pair == AS_WRITTEN else [])


def _fits(sizes: Sequence[Size]) -> list[PowerLaw]:
    xs = [size.m for size in sizes for _ in size.gaps]
    ys = [gap for size in sizes for gap in size.gaps]
    ranges = [(low * NUM_EXPERTS, high * NUM_EXPERTS) for low, high in FIT_RANGES]
    fits = [power_law(xs, ys, *ends) for ends in ranges if ends[1] <= max(xs)]
    return [fit for fit in fits if fit is not None]
