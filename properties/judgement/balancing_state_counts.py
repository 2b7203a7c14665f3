"""Counts of App. D: may they be those of these tokens, and what may an update read from them?

Legend: M valid tokens, N routed experts, B histogram bins; r the required biases.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.errors import ViolationError
from properties.judgement.balancing import Allowed, Bins, readings
from properties.protocol import Array

__all__ = ["near_an_edge", "read_from_counts", "require_counted", "require_same_counts"]


def require_counted(counts_NB: Array, r_MN: Any, bins: Bins, what: str) -> None:
    """Require counts that rounded required biases may have, each value counted once.

    Cumulative counts are held between the values certainly and those possibly below an edge.
    """
    totals_N, tokens = counts_NB.sum(axis=1), r_MN.shape[0]
    if (totals_N != tokens).any():
        raise ViolationError(f"{what} added {totals_N} counts per expert, not {tokens}")
    if (counts_NB < 0).any():
        raise ViolationError(f"{what} took counts away: {counts_NB.min()} in a bin")
    if tokens == 0:
        return
    cumulative_NB = np.cumsum(counts_NB, axis=1)[:, :-1]
    for expert, least, most in _between(r_MN, bins, counts_NB.shape[1]):
        wrong = np.flatnonzero((cumulative_NB[expert] < least) | (cumulative_NB[expert] > most))
        if wrong.size:
            bin_ = int(wrong[0])
            raise ViolationError(
                f"{what} counted {cumulative_NB[expert, bin_]} tokens into the first {bin_ + 1} of "
                f"{counts_NB.shape[1]} bins of expert {expert}; {_told(least[bin_], most[bin_])} "
                f"of their required biases lie below {bins.low + (bin_ + 1) * bins.width!s}"
            )


def _told(least: Any, most: Any) -> str:
    return f"{least}" if least == most else f"between {least} and {most}"


def _between(r_MN: Any, bins: Bins, num_bins: int) -> list[tuple[int, Array, Array]]:
    """Per expert: how many values certainly, and possibly, lie below each inner edge (B - 1,)."""
    edges = bins.low + bins.width * np.arange(1, num_bins)
    reach_MN = r_MN.radius + bins.slip
    high_MN, low_MN = np.sort(r_MN.value + reach_MN, axis=0), np.sort(r_MN.value - reach_MN, axis=0)
    return [
        (
            expert,
            np.searchsorted(high_MN[:, expert], edges, side="left"),
            np.searchsorted(low_MN[:, expert], edges, side="right"),
        )
        for expert in range(r_MN.shape[1])
    ]


def near_an_edge(r_MN: Any, bins: Bins, num_bins: int) -> Array:
    """How many of each expert's values (N,) rounding may carry over an edge between two bins."""
    between = _between(r_MN, bins, num_bins)
    # A value within reach of an edge is possibly, but not certainly, below it.
    return np.array([int((most - least).sum()) for _, least, most in between])


def require_same_counts(first_NB: Array, second_NB: Array, near_N: Array, what: str) -> None:
    """Require equal counts, but that so many values of each expert may be in neighbouring bins."""
    moved_N = np.abs(np.cumsum(first_NB - second_NB, axis=1)).sum(axis=1)
    if (moved_N > near_N).any():
        expert = int(np.argmax(moved_N - near_N))
        raise ViolationError(
            f"{what}: {moved_N[expert]} values of expert {expert} change their bin, "
            f"and {near_N[expert]} lie within rounding of an edge"
        )


def read_from_counts(counts_NB: Array, top_k: int, bins: Bins, rule: str) -> list[Allowed]:
    """The bins that a rule may find each expert's statistic in, one entry per legal reading."""
    num_experts = counts_NB.shape[0]
    tokens = int(counts_NB[0].sum())
    cumulative_NB = np.cumsum(counts_NB, axis=1)
    slip = np.full(num_experts, bins.slip)
    choices = []
    for reading in readings(rule, tokens, top_k, num_experts):
        first_N, last_N = (
            (cumulative_NB < min(rank, tokens)).sum(axis=1) for rank in (reading.low, reading.high)
        )
        low_N, high_N = bins.low + first_N * bins.width, bins.low + (last_N + 1) * bins.width
        choices.append(Allowed(low_N, high_N, slip, slip))
    return choices
