"""Histories of a balancer: how it starts, and the micro-batches it sees.

Legend: M tokens, N routed experts, K top_k, B histogram bins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.balancing_loads import equal_loads
from properties.strategies.optimality import READABLE_SEEDS, uniform_seeds

__all__ = [
    "ALL_BUT",
    "BIASES",
    "LEVELS",
    "PATTERNS",
    "Counted",
    "History",
    "MicroBatch",
    "Setup",
    "counted",
    "counts_around",
    "extremes",
    "histories",
    "rows",
    "setups",
    "tokens",
]

# What a digit of a small number stands for: readable logits, ties and saturated scores among them.
LEVELS = (0.0, 2.0, -2.0, 0.5, -1.25, 30.0)
BIASES = (0.0, 0.5, -0.5, -3.2578125, 2.0, 10.0)  # one of them not in bfloat16

SMALL_SIZES = ((2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (8, 3))
SMALL_BINS = (4, 2, 3, 16, 64, 1000)

SIZES = (*SMALL_SIZES, (16, 1), (16, 4), (13, 12), (33, 5), (64, 6), (60, 8))
BINS = (64, 2, 3, 16, 1000, 4096)
SATURATED = (1e3, -1e3, 30.0, -30.0, 18.0, 0.0)
SCALES = (1.0, 3.0, 0.1, 30.0)
SPREADS = (0.0, 0.1, 3.0, 10.0, 100.0)
DEPTHS, DEEPER = (0.0, 0.0, 0.0, 0.5, 1.0), 1.5  # 1 puts all biased scores below 0
BALANCED = 1 / 6
ELEMENTS = 4_000
PATTERNS = 6**8
ALL_BUT = 3


@dataclass(frozen=True)
class Setup:
    """How a balancer is made; None leaves ``num_bins`` or ``bias`` (N,) to the implementation."""

    num_experts: int
    top_k: int
    num_bins: int | None = 4
    bias: Array | None = None
    enabled: bool = True


@dataclass(frozen=True)
class MicroBatch:
    """Logits (M, N), and a mask (M,) of valid tokens or None."""

    logits: Array
    mask: Array | None = None

    @property
    def valid(self) -> Array:
        """The logits of the valid tokens."""
        return self.logits if self.mask is None else self.logits[self.mask]


@dataclass(frozen=True)
class History:
    """A balancer's start and the micro-batches that it then sees."""

    setup: Setup
    batches: tuple[MicroBatch, ...]


# Element by element, for sequences of calls --------------------------------------------------


def tokens(least: int = 0, most: int = 4) -> st.SearchStrategy[list[tuple[int, bool]]]:
    """Tokens as numbers, whose digits say what each expert's logit is, and whether they count."""
    token = st.tuples(st.integers(0, PATTERNS - 1), st.booleans())
    return st.lists(token, min_size=least, max_size=most)


def rows(numbers: list[int], num_experts: int, levels: tuple[float, ...] = LEVELS) -> Array:
    """Such numbers as rows (M, N): digit j to the base 6, from the right, is expert j's level."""
    places = len(levels) ** np.arange(num_experts, dtype=np.int64)
    digits_MN = np.array(numbers, np.int64).reshape(-1, 1) // places % len(levels)
    chosen: Array = np.array(levels)[digits_MN]
    return chosen


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Small balancers, K = N among them."""
    num_experts, top_k = draw(st.sampled_from(SMALL_SIZES))
    if draw(st.integers(0, 19)) == 19:
        top_k = num_experts
    number = draw(st.none() | st.integers(0, PATTERNS - 1))
    bias = None if number is None else rows([number], num_experts, BIASES)[0]
    num_bins = draw(st.sampled_from((*SMALL_BINS, None)))
    return Setup(num_experts, top_k, num_bins, bias)


def counts_around(total: int, number: int, num_experts: int, num_bins: int) -> Array:
    """Counts (N, B) of so many tokens, all but ``ALL_BUT`` of each expert's in one of its bins.

    ``number`` says which bins, digit by digit.
    """
    counts_NB = np.zeros((num_experts, num_bins), np.int64)
    for expert in range(num_experts):
        number, first = divmod(number, num_bins)
        counts_NB[expert, first] += total - min(total, ALL_BUT)
        counts_NB[expert, (first + expert + 1) % num_bins] += min(total, ALL_BUT)
    return counts_NB


# Whole histories ------------------------------------------------------------------------------


def histories(
    least: int = 2, most: int = 4, *, masked: bool = True, spreads: tuple[float, ...] = SPREADS
) -> st.SearchStrategy[History]:
    """``least`` to ``most`` micro-batches; the smallest seeds are small and readable.

    Half of them have masks, unless ``masked`` is false; some micro-batches have no tokens. In a
    part of the histories all loads are equal from the start, in a part all biases are below 0.
    """

    def seeded(seed: int) -> History:
        rng = np.random.default_rng(seed)
        readable = seed < READABLE_SEEDS
        num_experts, top_k = _one(rng, SMALL_SIZES[:4] if readable else SIZES)
        num_bins = _one(rng, SMALL_BINS if readable else BINS)
        bias = _bias(rng, num_experts, _one(rng, spreads), readable=readable)
        times = int(rng.integers(least, most + 1))
        limit = 4 if readable else max(ELEMENTS // num_experts // times, 4)
        batches = [_batch(rng, limit, num_experts, readable=readable) for _ in range(times)]
        if masked and rng.random() < 0.5:
            batches = [replace(batch, mask=_mask(rng, len(batch.logits))) for batch in batches]
        apart = np.random.default_rng([seed, 1])
        bias = bias - _one(apart, DEPTHS) * (float(np.ptp(bias)) + DEEPER)
        if not readable and apart.random() < BALANCED:
            bias = bias * (0.1 / max(float(np.ptp(bias)), 0.1))
            loads = (equal_loads(apart, num_experts, top_k, min(limit, 60)) for _ in batches)
            batches = [MicroBatch(logits) for logits in loads]
        return History(Setup(num_experts, top_k, num_bins, bias), tuple(batches))

    return uniform_seeds().map(seeded)


def extremes() -> st.SearchStrategy[History]:
    """Saturated scores, biases from equal to far apart, and some of them equal."""

    def seeded(seed: int) -> History:
        rng = np.random.default_rng(seed)
        num_experts, top_k = _one(rng, SMALL_SIZES if seed < READABLE_SEEDS else SIZES)
        spread = _one(rng, (0.0, 1.0, 10.0, 100.0))
        bias = _bias(rng, num_experts, spread, readable=bool(rng.random() < 0.7))
        batches = [
            MicroBatch(rng.choice(SATURATED, (int(rng.integers(1, 13)), num_experts)))
            for _ in range(3)
        ]
        return History(Setup(num_experts, top_k, _one(rng, BINS), bias), tuple(batches))

    return uniform_seeds().map(seeded)


@dataclass(frozen=True)
class Counted:
    """Counts of ``total`` tokens, in bins that ``number`` says, and tokens (see ``rows``)."""

    setup: Setup
    total: int
    number: int
    tokens: tuple[int, ...]


def counted(totals: tuple[int, ...]) -> st.SearchStrategy[Counted]:
    """Totals where formats of few bits stop counting, each as often."""

    def seeded(seed: int) -> Counted:
        rng = np.random.default_rng(seed)
        num_experts, top_k = _one(rng, SMALL_SIZES[:4])
        setup = Setup(num_experts, top_k, _one(rng, SMALL_BINS[:5]), np.zeros(num_experts))
        seen = rng.integers(0, PATTERNS, 3)
        return Counted(
            setup,
            totals[seed % len(totals)],
            int(rng.integers(PATTERNS)),
            tuple(int(number) for number in seen),
        )

    return uniform_seeds().map(seeded)


def _one(rng: np.random.Generator, choices: tuple[Any, ...]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _bias(rng: np.random.Generator, num_experts: int, spread: float, *, readable: bool) -> Array:
    """A bias whose largest and smallest entry are ``spread`` apart."""
    drawn = rng.random(num_experts)
    if readable:
        drawn = np.round(4.0 * drawn) / 4.0
    drawn = drawn - drawn.min()
    bias: Array = spread * drawn / max(float(drawn.max()), 1e-3)
    return bias


def _batch(rng: np.random.Generator, limit: int, num_experts: int, *, readable: bool) -> MicroBatch:
    num_tokens = 0 if rng.random() < 0.1 else int(rng.integers(1, min(limit, 60) + 1))
    shape = (num_tokens, num_experts)
    if readable or rng.random() < 0.2:
        return MicroBatch(rng.choice(LEVELS, shape))
    logits = _one(rng, SCALES) * rng.standard_normal(shape)
    return MicroBatch(logits + rng.random() * np.linspace(2.0, -2.0, num_experts))


def _mask(rng: np.random.Generator, num_tokens: int) -> Array:
    """Some tokens valid, at times none."""
    mask: Array = rng.random(num_tokens) < _one(rng, (0.7, 0.7, 0.3, 0.0))
    return mask
