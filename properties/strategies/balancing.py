"""Inputs of Quantile Balancing: batches of logits with a selection bias.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import readable_arrays
from properties.strategies.balancing_loads import equal_loads
from properties.strategies.optimality import uniform_seeds
from properties.strategies.shapes import SEEDS

# (N, K) with K < N, by size: small ones, K over a power of two and others, published models, more.
SIZES = (
    *((2, 1), (3, 1), (3, 2), (4, 1), (5, 2), (7, 3), (8, 2), (13, 12), (16, 4), (33, 5)),
    *((60, 8), (64, 1), (64, 6), (160, 100), (255, 8), (256, 8), (257, 8), (384, 8)),
    *((512, 10), (512, 22), (896, 16), (1024, 16), (1100, 22)),
)
READABLE_SEEDS = SEEDS // 32
WITHOUT_CUTOFF_SEEDS = SEEDS // 32
BINS = (1000, 64, 16, 3, 2)
ELEMENTS = 12_000
NO_TOKENS = 1 / 32
BALANCED = 1 / 16
FEW_EXPERTS = 8
MANY_TOKENS = (513, 1025, 2049, 4097)  # just past what kernels like to cut batches into
VERY_FEW_EXPERTS, MOST_TOKENS = 3, (513, 1025, 4097, 32_769)

SCALES = (1.0, 3.0, 0.1, 30.0, 1e-4, 1e3)
TIES = ("none", "near", "lattice", "tokens")
BIASES = ("zero", "small", "wide", "offset", "lattice")
HOT = ("none", "slope", "few")
MASKS = ("none", "none", "none", "some", "some", "some", "nothing valid")
SHIFTS = (0.5, -0.25, 1.0, -3.0, 34.5, -100.0, 1e-3, 1000.0)

_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class BatchInputs:
    """Logits (M, N), a selection bias (N,), top_k, and a mask (M,) of valid tokens or None."""

    logits: Array
    bias: Array
    top_k: int
    mask: Array | None = None


@dataclass(frozen=True)
class ShiftInputs:
    """A batch and a constant to add to its bias."""

    batch: BatchInputs
    shift: float


@dataclass(frozen=True)
class HistogramInputs:
    """A batch with k < n, the row numbers at which it is cut into micro-batches, and B."""

    batch: BatchInputs
    cuts: tuple[int, ...]
    num_bins: int


def batches() -> st.SearchStrategy[BatchInputs]:
    """Batches with K < N; M = 0 and batches without valid tokens are some.

    One uniform seed decides everything, so that every class keeps its share. The smallest seeds
    stand for batches to be read, drawn element by element; Hypothesis varies each of these several
    times, so that their share is larger than theirs of the seeds. The smaller the seed, the fewer
    experts: failures shrink.
    """
    return uniform_seeds().flatmap(_batch)


def all_batches() -> st.SearchStrategy[BatchInputs]:
    """The same, and some with K = N, a single expert included."""

    def batch(seed: int) -> st.SearchStrategy[BatchInputs]:
        between = READABLE_SEEDS <= seed < READABLE_SEEDS + WITHOUT_CUTOFF_SEEDS
        return _without_cutoff() if between else _batch(seed)

    return uniform_seeds().flatmap(batch)


def shifts() -> st.SearchStrategy[ShiftInputs]:
    """Batches with a cutoff and shifts from the size of the spread to far beyond the scores."""

    def shifted(seed: int) -> st.SearchStrategy[ShiftInputs]:
        rng = np.random.default_rng([seed, 1])
        return _batch(seed).map(lambda batch: ShiftInputs(batch, _one_of(SHIFTS, rng)))

    return uniform_seeds().flatmap(shifted)


def histograms(bins: tuple[int, ...] = BINS) -> st.SearchStrategy[HistogramInputs]:
    """Batches in one to three micro-batches, empty ones included, and a number of bins."""

    def counted(seed: int) -> st.SearchStrategy[HistogramInputs]:
        rng = np.random.default_rng([seed, 1])
        num_bins, cuts, places = _one_of(bins, rng), int(rng.integers(3)), rng.random(2)

        def cut(batch: BatchInputs) -> HistogramInputs:
            rows = np.floor(places[:cuts] * (batch.logits.shape[0] + 1)).astype(int)
            return HistogramInputs(batch, tuple(int(row) for row in np.sort(rows)), num_bins)

        return _batch(seed).map(cut)

    return uniform_seeds().flatmap(counted)


def _batch(seed: int) -> st.SearchStrategy[BatchInputs]:
    return _readable() if seed < READABLE_SEEDS else st.just(_seeded(seed))


@st.composite
def _readable(draw: st.DrawFn) -> BatchInputs:
    num_experts = draw(st.integers(2, 4))
    top_k = draw(st.integers(1, num_experts - 1))
    tokens = draw(st.integers(0, 5))
    logits = draw(readable_arrays((tokens, num_experts), largest=4))
    bias = draw(readable_arrays((num_experts,), largest=1))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=tokens, max_size=tokens))
    return BatchInputs(logits, bias, top_k, None if mask is None else np.array(mask, dtype=bool))


@st.composite
def _without_cutoff(draw: st.DrawFn) -> BatchInputs:
    num_experts = draw(st.sampled_from([1, 2, 6]))
    logits = draw(readable_arrays((draw(st.integers(0, 3)), num_experts), largest=4))
    return BatchInputs(logits, draw(readable_arrays((num_experts,), largest=1)), num_experts)


def _seeded(seed: int) -> BatchInputs:
    rng = np.random.default_rng(seed)
    num_experts, top_k = SIZES[seed * len(SIZES) // SEEDS]
    apart = np.random.default_rng([seed, 2])
    if apart.random() < BALANCED:
        most = min(300, ELEMENTS // num_experts)
        bias = 0.1 * apart.random(num_experts)
        return BatchInputs(equal_loads(apart, num_experts, top_k, most), bias, top_k)
    tokens = _tokens(rng, num_experts, top_k)
    logits = rng.standard_normal((tokens, num_experts)) * _one_of(SCALES, rng)
    logits = logits + _heat(_one_of(HOT, rng), num_experts, rng)
    logits = _tied(_one_of(TIES, rng), logits, rng)
    mask = _mask(_one_of(MASKS, rng), tokens, rng)
    if mask is not None:  # padding that would change every quantile if it were counted
        logits[~mask] = np.linspace(9.0, -9.0, num_experts)
    return BatchInputs(logits, _bias(_one_of(BIASES, rng), num_experts, rng), top_k, mask)


def _tokens(rng: np.random.Generator, num_experts: int, top_k: int) -> int:
    """M with integral q, any M, M = N, where a transpose goes unnoticed, many, and rarely none."""
    limit = max(min(300, ELEMENTS // num_experts), 4)
    step = num_experts // math.gcd(num_experts, top_k)
    kinds = ["whole", "any"]
    if num_experts <= limit:
        kinds.append("square")
    if num_experts <= FEW_EXPERTS:
        kinds.append("many")
    kind = _one_of(kinds, rng)
    if rng.random() < NO_TOKENS:
        return 0
    if kind == "whole":
        return step * int(rng.integers(1, max(limit // step, 1) + 1))
    if kind == "square":
        return num_experts
    if kind == "many" and num_experts <= VERY_FEW_EXPERTS:
        return _one_of(MOST_TOKENS, rng)
    return _one_of(MANY_TOKENS, rng) if kind == "many" else int(rng.integers(1, limit + 1))


def _one_of(choices: Sequence[_Choice], rng: np.random.Generator) -> _Choice:
    return choices[int(rng.integers(len(choices)))]


def _heat(kind: str, num_experts: int, rng: np.random.Generator) -> Array:
    """What makes some experts wanted by most tokens."""
    if kind == "slope":
        return np.linspace(1.5, -1.5, num_experts)
    heat = np.zeros(num_experts)
    if kind == "few":
        heat[rng.permutation(num_experts)[: max(num_experts // 8, 1)]] = 4.0
    return heat


def _tied(kind: str, logits: Array, rng: np.random.Generator) -> Array:
    """Equal scores, scores within a few ulp of each other, or tokens that repeat each other."""
    tied: Array = logits
    if kind in ("lattice", "near"):
        tied = np.round(logits)
    if kind == "near":
        tied = tied + rng.choice([-1e-6, 0.0, 1e-6], logits.shape)
    if kind == "tokens":
        tied = logits[rng.integers(0, max(logits.shape[0] // 3, 1), logits.shape[0])]
    return tied


def _bias(kind: str, num_experts: int, rng: np.random.Generator) -> Array:
    drawn = rng.standard_normal(num_experts)
    if kind == "lattice":
        return np.round(2.0 * drawn) / 4.0
    if kind == "offset":
        return 34.5 + 1e-4 * drawn
    return np.multiply({"zero": 0.0, "small": 0.1, "wide": 3.0}[kind], drawn)


def _mask(kind: str, tokens: int, rng: np.random.Generator) -> Array | None:
    if kind == "none":
        return None
    if kind == "some":
        return rng.random(tokens) < 0.7
    return np.zeros(tokens, dtype=bool)
