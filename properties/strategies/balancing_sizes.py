"""Batches at the sizes where kernels that balance change: widths of warps, rows, bins of a scan.

Legend: M tokens, N routed experts, K top_k, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.optimality import uniform_seeds

__all__ = [
    "LONG",
    "POWERS",
    "SCANNED",
    "WIDTHS",
    "SizedBatch",
    "SizedBatches",
    "at_size",
    "batches",
]

# Every number of experts between two powers of two, and of each part one: an odd number of half
# warps, of warps and of pairs of them, one off those, and the others.
WIDTHS: tuple[tuple[int, ...], ...] = (
    (96, 160, 224),
    (48, 80, 112, 144, 176, 208, 240),
    (192, 256, 72, 100, 120, 136, 200),
    (63, 65, 95, 97, 127, 129, 191, 193, 223, 225, 254),
    tuple(range(34, 64)),
    tuple(range(65, 128, 2)),
    tuple(range(66, 128, 2)),
    tuple(range(129, 192)),
    tuple(range(193, 255)),
)
TOP_KS = (4, 4, 4, 1, 2, 3, 5, 6, 8, 9, 10, 12, 16, 22)
TOKENS = (5, 9, 17, 20, 33)
MORE_TOKENS = (64, 130, 200)

# Numbers of experts that kernels have a template for, and fill warps and blocks without a mask.
POWERS = (32, 64, 128, 256, 512)

# (M, N, K, B): more tokens than a tile has rows, where many experts leave room for few. Two bins
# hold more of them than eight bits count. The last are more rows than sixteen bits number.
MANY_ROWS = 2**16
LONG = ((1030, 256, 4, 2), (262, 896, 16, 3), (MANY_ROWS + 464, 3, 1, 2))

# Numbers of bins, as first and last of a stretch of which one is taken: a thread a bin or several,
# blocks of up to 1,024 threads, which a scan over bins fills, or not, or has to pass twice.
SCANNED = (
    *((32, 32), (33, 127), (128, 128), (129, 254), (255, 255), (256, 256), (257, 257), (258, 511)),
    *((512, 512), (513, 513), (514, 1023), (1024, 1024), (1025, 1025), (1026, 2047), (2048, 2048)),
    *((2049, 2049), (2050, 4095)),
)
LATE = ((258, 511), (514, 1023), (1026, 2047), (2050, 4095))
SCANNED_EXPERTS, SCANNED_TOKENS = 5, 24

BIASES = ("zero", "small", "wide", "below", "offset")
HEAT = ("none", "slope", "side by side", "in one lane")
LANES = 32
BINS, FINE_BINS = (64, 16, 3, 1000), 1000

_Choice = TypeVar("_Choice")


class SizedBatch(NamedTuple):
    """Logits (M, N), a bias (N,), K < N, a mask (M,) of valid tokens or None, and B."""

    logits: Array
    bias: Array
    top_k: int
    num_bins: int
    mask: Array | None = None


class SizedBatches(NamedTuple):
    """Batches to be judged one after the other; too many to be printed."""

    batches: tuple[SizedBatch, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        del cycle
        printer.text(f"SizedBatches({[batch.logits.shape for batch in self.batches]})")


def at_size(times: int) -> st.SearchStrategy[SizedBatches]:
    """``times`` batches of each part of WIDTHS, one of each of LONG, POWERS, SCANNED and LATE."""

    def seeded(seed: int) -> SizedBatches:
        rng = np.random.default_rng(seed)
        wide = [_wide(rng, widths) for _ in range(times) for widths in WIDTHS]
        long = [_batch(rng, *sizes) for sizes in LONG]
        apart = np.random.default_rng([seed, 1])
        powers = [_filling(apart, width) for width in POWERS]
        scanned = [_scanned(apart, *stretch) for stretch in SCANNED]
        late = [_late(apart, *stretch) for stretch in LATE]
        return SizedBatches((*wide, *long, *powers, *scanned, *late))

    return uniform_seeds().map(seeded)


def batches() -> st.SearchStrategy[SizedBatch]:
    """One batch of any part of WIDTHS, with enough tokens for several threads; half have ties."""

    def seeded(seed: int) -> SizedBatch:
        rng = np.random.default_rng(seed)
        batch = _wide(rng, _one_of(rng, WIDTHS), MORE_TOKENS)
        if rng.random() < 0.5:
            return batch
        return batch._replace(logits=np.round(batch.logits), bias=np.round(2.0 * batch.bias) / 4.0)

    return uniform_seeds().map(seeded)


def _wide(
    rng: np.random.Generator, widths: tuple[int, ...], tokens: tuple[int, ...] = TOKENS
) -> SizedBatch:
    """One of those numbers of tokens, and of experts."""
    num_experts, top_k = _one_of(rng, widths), _one_of(rng, TOP_KS)
    batch = _batch(rng, _one_of(rng, tokens), num_experts, top_k, _one_of(rng, BINS))
    if rng.random() < 0.7:
        return batch
    mask = rng.random(len(batch.logits)) < 0.7
    batch.logits[~mask] = np.linspace(9.0, -9.0, num_experts)  # no padding that goes unnoticed
    return batch._replace(mask=mask)


def _filling(rng: np.random.Generator, width: int) -> SizedBatch:
    """That many experts, with bins fine enough to tell what each of them is given."""
    return _batch(rng, _one_of(rng, (20, 33)), width, _one_of(rng, TOP_KS), FINE_BINS)


def _scanned(rng: np.random.Generator, fewest: int, most: int) -> SizedBatch:
    """Tokens that want from none to all of the experts: required biases of the whole range."""
    shape, top_k = (SCANNED_TOKENS, SCANNED_EXPERTS), int(rng.integers(1, SCANNED_EXPERTS))
    wanted_MN = rng.random(shape) < rng.random((SCANNED_TOKENS, 1))
    logits = np.where(wanted_MN, 4.0, -4.0) + rng.standard_normal(shape)
    bias = _one_of(rng, (0.0, 0.3, 3.0)) * rng.standard_normal(SCANNED_EXPERTS)
    return SizedBatch(logits, bias, top_k, int(rng.integers(fewest, most + 1)))


def _late(rng: np.random.Generator, fewest: int, most: int) -> SizedBatch:
    """The last expert's statistic lies in the last third of the bins, after counts in the first.

    Two tokens want that expert alone, the others all but that, by amounts of their own.
    """
    logits = np.where(np.arange(SCANNED_TOKENS)[:, None] < 2, -4.0, 4.0)
    logits = logits + 0.5 * rng.standard_normal((SCANNED_TOKENS, SCANNED_EXPERTS))
    logits[:2, -1] = 4.0
    logits[2:, -1] = rng.uniform(-4.0, 0.2, SCANNED_TOKENS - 2)
    return SizedBatch(logits, np.zeros(SCANNED_EXPERTS), 1, int(rng.integers(fewest, most + 1)))


def _batch(
    rng: np.random.Generator, tokens: int, num_experts: int, top_k: int, num_bins: int
) -> SizedBatch:
    scale = _one_of(rng, (1.0, 3.0, 0.1))
    logits = scale * rng.standard_normal((tokens, num_experts))
    logits = logits + scale * _heat(rng, num_experts, top_k)
    return SizedBatch(logits, _bias(rng, num_experts), top_k, num_bins)


def _heat(rng: np.random.Generator, num_experts: int, top_k: int) -> Array:
    """What makes most tokens want the same experts: K that are neighbours, or of one lane."""
    kind, heat = _one_of(rng, HEAT), np.zeros(num_experts)
    if kind == "slope":
        return np.linspace(1.5, -1.5, num_experts)
    if kind == "side by side":
        heat[int(rng.integers(num_experts - top_k + 1)) :][:top_k] = 4.0
    if kind == "in one lane":
        heat[int(rng.integers(LANES)) :: LANES][:top_k] = 4.0
    return heat


def _bias(rng: np.random.Generator, num_experts: int) -> Array:
    """Some so far below 0 that a biased score is, too."""
    kind, drawn = _one_of(rng, BIASES), rng.standard_normal(num_experts)
    if kind == "below":
        return 0.1 * drawn - 3.0
    if kind == "offset":
        return 34.5 + 1e-4 * drawn
    return np.multiply({"zero": 0.0, "small": 0.1, "wide": 3.0}[kind], drawn)


def _one_of(rng: np.random.Generator, choices: Sequence[_Choice]) -> _Choice:
    return choices[int(rng.integers(len(choices)))]
