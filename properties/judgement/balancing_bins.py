"""Judging the counts of App. D: how many required biases each bin may hold.

Legend: M valid tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

import numpy as np

from properties.errors import ViolationError
from properties.judgement.balancing import Bins, required_biases
from properties.judgement.balancing_runs import ascending
from properties.protocol import Array
from properties.subject import Subject

__all__ = ["require_bins"]


def require_bins(
    subject: Subject, counts_NB: Array, logits_MN: Array, bias_N: Array, top_k: int, who: str = ""
) -> None:
    """Require the counts, as the implementation keeps them, to be those of the valid tokens.

    Cumulative counts are held between those of the r that certainly and those that possibly lie
    below each inner edge; the last one is M. ``who`` precedes the message of the ViolationError.
    """
    counts_NB = ascending(subject, counts_NB)
    r_MN = required_biases(subject, logits_MN, bias_N, top_k)
    bins = Bins.of(bias_N, counts_NB.shape[1], subject.routing_arithmetic())
    edges = bins.low + bins.width * np.arange(1, counts_NB.shape[1])
    reach_MN = r_MN.radius + bins.slip
    for expert, cumulative in enumerate(np.cumsum(counts_NB, axis=1)):
        value, reach = r_MN.value[:, expert], reach_MN[:, expert]
        least = np.searchsorted(np.sort(value + reach), edges, side="left")
        most = np.searchsorted(np.sort(value - reach), edges, side="right")
        wrong = np.flatnonzero((cumulative[:-1] < least) | (cumulative[:-1] > most))
        if wrong.size:
            bin_ = int(wrong[0])
            raise ViolationError(
                f"{who}expert {expert} has {cumulative[bin_]} tokens in its first {bin_ + 1} bins, "
                f"but between {least[bin_]} and {most[bin_]} of its required biases lie below "
                f"{edges[bin_]!s}"
            )
        if cumulative[-1] != len(logits_MN):
            raise ViolationError(
                f"{who}expert {expert} has {cumulative[-1]} tokens in all its bins, not "
                f"{len(logits_MN)}"
            )
