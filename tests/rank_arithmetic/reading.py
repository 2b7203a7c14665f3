"""Which rank this repository's two implementations read from a histogram, for very many loads.

Each load q is put to the test by two experts with three bins: one has q tokens in the first bin,
the other q - 1, and both have the rest in the last. Whoever reads rank q finds the first expert's
statistic in the first bin and the other's in the last; rank q + 1 or q - 1 shows in one of them.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load, integral here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

import reference_numpy as reference
from impl_torch.balancing import histogram_quantile
from properties.strategies.rank_mistakes import END, load_step, total
from reference_numpy.balancing import histogram_statistic

Array = NDArray[np.int64]

NUM_BINS = 3
ROWS = 8192


def every_load(top_k: int, num_experts: int, every: int = 1) -> Iterator[Array]:
    """The integral q below 2^24, or every so many of them, in pieces of up to 2^20."""
    step = load_step(top_k, num_experts)
    stride, piece = step * every, 2**20
    for first in range(step, END, stride * piece):
        yield np.arange(first, min(first + stride * piece, END), stride, dtype=np.int64)


def wrong_in_torch(loads: Array, top_k: int, num_experts: int, groups: int = 1) -> Array:
    """The loads at which ``histogram_quantile`` does not read the q-th; each call has N rows.

    An expert's rank depends on its own counts, so that every expert of one call may have another q.
    With ``groups``, a call has so many times as many experts and as large a top_k: the same q, in
    larger integers.
    """
    low, high = torch.tensor(0.0), torch.tensor(float(NUM_BINS))
    rows = num_experts * groups
    found = []
    for first in range(0, len(loads), rows // 2):
        some = loads[first : first + rows // 2]
        padded = np.concatenate((some, np.repeat(some[-1:], rows // 2 - len(some))))
        counts_NB = torch.from_numpy(_counts(padded, top_k, num_experts))
        read_N = histogram_quantile(counts_NB, low, high, top_k * groups).numpy()
        found.append(_wrong(padded, read_N)[: len(some)])
    return loads[np.concatenate(found)]


def groups_of(num_experts: int) -> int:
    """How many groups make a call of about ``ROWS`` rows, for which vectors are worth it."""
    return max(ROWS // num_experts, 1)


def wrong_in_reference(loads: Array, top_k: int, num_experts: int) -> Array:
    """The loads at which ``histogram_statistic`` does not read the q-th; a call for each."""
    found = []
    for load in loads:
        counts_NB = _counts(np.repeat(load, num_experts // 2), top_k, num_experts)
        read_N = histogram_statistic(counts_NB, 0.0, float(NUM_BINS), top_k)
        found.append(bool(_wrong(np.repeat(load, num_experts // 2), read_N).any()))
    return loads[np.array(found)]


def wrong_target_rank(loads: Array, top_k: int, num_experts: int) -> Array:
    """The loads of which ``target_rank`` makes another rank."""
    tokens = total(loads, top_k, num_experts)
    ranks = [reference.target_rank(m, top_k, num_experts) for m in tokens.tolist()]
    return loads[np.array(ranks) != loads]


def _counts(loads: Array, top_k: int, num_experts: int) -> Array:
    """Counts (2 len(loads), B): of the experts with q tokens in the first bin, and with q - 1."""
    before = np.concatenate((loads, loads - 1))
    counts_NB = np.zeros((len(before), NUM_BINS), dtype=np.int64)
    counts_NB[:, 0] = before
    counts_NB[:, -1] = np.tile(total(loads, top_k, num_experts), 2) - before
    return counts_NB


def _wrong(loads: Array, read_N: NDArray[np.float64]) -> NDArray[np.bool_]:
    met, short = read_N[: len(loads)], read_N[len(loads) :]
    wrong: NDArray[np.bool_] = (met > 1.0) | (short < NUM_BINS - 1)
    return wrong
