"""Scores as 64-bit integers, so that multipliers and margins are computed without rounding.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from lp_oracle.problem import Array

# Of the 53 bits in which float64 holds integers exactly, the scores take this many. The others are
# left to the multipliers, which can be sums of many scores.
SCORE_BITS = 48

# float64 holds no smaller power of two; with finer levels multipliers could not be told apart.
LEAST_EXPONENT = -1074

# Scores further from all cutoffs than so many times the range of the cutoffs do not decide.
_CUTOFF_RANGES = 64.0

_BLOCK_ENTRIES = 2**19
_SAMPLED_TOKENS = 512


@dataclass(frozen=True, eq=False)
class ScoreGrid:
    """The scores rounded to the nearest level * 2^exponent / denominator; ``levels`` (M, N) int64.

    ``is_exact`` says whether nothing was rounded. Equal scores always have equal levels.
    """

    levels: Array
    exponent: int
    denominator: int
    is_exact: bool

    def values(self, levels: Array) -> Array:
        """Levels as float64 scores, exactly where the denominator is 1 and nothing underflows."""
        scores: Array = np.ldexp(levels.astype(np.float64) / self.denominator, self.exponent)
        return scores


def token_blocks(m: int, n: int) -> Iterator[slice]:
    """Slices of tokens that cover all of them, each of a bounded number of scores."""
    step = max(1, _BLOCK_ENTRIES // n)
    for start in range(0, m, step):
        yield slice(start, min(m, start + step))


class Range(NamedTuple):
    """Scores that decide; others are masks, or far from any cutoff."""

    low: float
    high: float


def deciding_range(scores_MN: Array, top_k: int) -> Range | None:
    """Where scores of the size of the cutoffs lie, or None if all of them do.

    Judged by the k-th and (k+1)-th largest of evenly spaced tokens. Scores outside can be clipped
    without harm if what comes of it is checked: a token that avoids a clipped mask avoids it as it
    was given all the more.
    """
    m, n = scores_MN.shape
    if top_k == n or scores_MN.dtype.kind != "f":
        return None
    sample = scores_MN[:: max(1, m // _SAMPLED_TOKENS)].astype(np.float64)
    sample.partition((n - top_k - 1, n - top_k), axis=1)
    cutoffs = sample[:, n - top_k - 1 : n - top_k + 1]
    low, high = float(cutoffs.min()), float(cutoffs.max())
    room = _CUTOFF_RANGES * (high - low)
    if room == 0.0 or (low - room <= scores_MN.min() and scores_MN.max() <= high + room):
        return None
    return Range(low - room, high + room)


def fits_float64(scores_MN: Array) -> bool:
    """Whether float64 holds these numbers; not so for large integers, rationals, long doubles."""
    if scores_MN.dtype.kind in "iub":
        return max(abs(int(scores_MN.max())), abs(int(scores_MN.min()))) <= 2**53
    return scores_MN.dtype.kind == "f" and scores_MN.dtype.itemsize <= 8


def score_grid(
    scores_MN: Array, bits: int = SCORE_BITS, deciding: Range | None = None
) -> ScoreGrid:
    """Put finite scores on a grid with levels of at most ``bits`` bits.

    Floats go to multiples of a power of two, clipped to the ``deciding`` range if there is one;
    integers and ``Fraction`` objects to multiples of a power of two over their common denominator,
    if it leaves room, else they are rounded to floats first.
    """
    if deciding is not None:
        return _float_grid(scores_MN, bits, deciding)
    if scores_MN.dtype == np.dtype(object):
        return _rational_grid(scores_MN, bits)
    if scores_MN.dtype.kind in "iub":
        size = max(abs(int(scores_MN.max())), abs(int(scores_MN.min())))
        if size < 2**bits:
            shift = bits - size.bit_length()
            return ScoreGrid(scores_MN.astype(np.int64) << shift, -shift, 1, True)
    return _float_grid(scores_MN, bits)


def _rational_grid(rationals_MN: Array, bits: int) -> ScoreGrid:
    values = [Fraction(value) for value in rationals_MN.ravel().tolist()]
    common = math.lcm(*{value.denominator for value in values})
    levels = [int(value * common) for value in values]
    shift = bits - max(abs(level) for level in levels).bit_length()
    if shift < 0:
        return replace(_float_grid(rationals_MN.astype(np.float64), bits), is_exact=False)
    levels_MN = np.array(levels, dtype=np.int64).reshape(rationals_MN.shape) << shift
    return ScoreGrid(levels_MN, -shift, common, True)


def _float_grid(scores_MN: Array, bits: int, deciding: Range | None = None) -> ScoreGrid:
    low, high = deciding or Range(float(scores_MN.min()), float(scores_MN.max()))
    size = max(abs(low), abs(high))
    exponent = max(math.frexp(size)[1] - bits, LEAST_EXPONENT)
    levels_MN = np.empty(scores_MN.shape, dtype=np.int64)
    is_exact = fits_float64(scores_MN)
    for block in token_blocks(*scores_MN.shape):
        values = scores_MN[block].astype(np.float64)
        levels = np.rint(np.ldexp(values.clip(low, high), -exponent))
        is_exact = is_exact and bool((np.ldexp(levels, exponent) == values).all())
        levels_MN[block] = levels
    return ScoreGrid(levels_MN, exponent, 1, is_exact)
