"""Inputs of Quantile Balancing: batches of logits with a selection bias.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import normal, readable_arrays, seeds

# (N, K) with K < N: small ones, K over a power of two and others, the sizes of published models.
SIZES = (
    *((2, 1), (3, 1), (3, 2), (4, 1), (5, 2), (7, 3), (8, 2), (16, 4), (13, 12), (33, 5)),
    *((60, 8), (64, 6), (255, 8), (256, 8), (257, 8), (512, 10), (896, 16), (160, 100)),
)
BINS = (1000, 64, 16, 3, 2)
ELEMENTS = 12_000
FEW_EXPERTS = 8
MANY_TOKENS = (513, 1025, 2049, 4097)  # just past what kernels like to cut batches into

SCALES = (1.0, 3.0, 0.1, 30.0, 1e-4, 1e3)
TIES = ("none", "near", "lattice", "tokens")
BIASES = ("zero", "small", "wide", "offset", "lattice")
HOT = ("none", "slope", "few")
MASKS = ("none", "none", "none", "some", "some", "some", "nothing valid")


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
    """Readable or seeded batches with K < N; M = 0 and batches without valid tokens are some."""
    return st.one_of(_readable(), _seeded(), _seeded(), _seeded())


def all_batches() -> st.SearchStrategy[BatchInputs]:
    """The same, and some with K = N, a single expert included."""
    return st.one_of(_readable(), *(_seeded() for _ in range(5)), _without_cutoff())


def shifts() -> st.SearchStrategy[ShiftInputs]:
    """Batches with a cutoff and shifts from the size of the spread to far beyond the scores."""
    sizes = st.sampled_from([0.5, -0.25, 1.0, -3.0, 34.5, -100.0, 1e-3, 1000.0])
    return st.builds(ShiftInputs, batches(), sizes)


def histograms(bins: tuple[int, ...] = BINS) -> st.SearchStrategy[HistogramInputs]:
    """Batches in one to three micro-batches, empty ones included, and a number of bins."""
    return _histograms(bins)


@st.composite
def _histograms(draw: st.DrawFn, bins: tuple[int, ...]) -> HistogramInputs:
    batch = draw(batches())
    cuts = draw(st.lists(st.integers(0, batch.logits.shape[0]), max_size=2))
    return HistogramInputs(batch, tuple(sorted(cuts)), draw(st.sampled_from(bins)))


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


@st.composite
def _seeded(draw: st.DrawFn) -> BatchInputs:
    num_experts, top_k = draw(st.sampled_from(SIZES))
    tokens = draw(_token_counts(num_experts, top_k))
    seed = draw(seeds())
    rng = np.random.default_rng(seed)
    logits = normal(seed, (tokens, num_experts), draw(st.sampled_from(SCALES)))
    logits = logits + _heat(draw(st.sampled_from(HOT)), num_experts, rng)
    logits = _tied(draw(st.sampled_from(TIES)), logits, rng)
    mask = _mask(draw(st.sampled_from(MASKS)), tokens, rng)
    if mask is not None:  # padding that would change every quantile if it were counted
        logits[~mask] = np.linspace(9.0, -9.0, num_experts)
    return BatchInputs(logits, _bias(draw(st.sampled_from(BIASES)), num_experts, rng), top_k, mask)


def _token_counts(num_experts: int, top_k: int) -> st.SearchStrategy[int]:
    """Any M up to a limit, M with integral q, M = N, where a transpose goes unnoticed, and many."""
    limit = max(min(300, ELEMENTS // num_experts), 4)
    step = num_experts // math.gcd(num_experts, top_k)
    whole = st.integers(1, max(limit // step, 1)).map(lambda times: times * step)
    kinds: list[Any] = [whole, st.integers(1, limit)]
    if num_experts <= limit:
        kinds.append(st.just(num_experts))
    if num_experts <= FEW_EXPERTS:
        kinds.append(st.sampled_from(MANY_TOKENS))
    return st.one_of(kinds)


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
