"""What a layer costs and what it can choose from, counted exactly.

Legend: M tokens, N routed experts, K top_k, L the width that experts work on.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from properties.protocol import Array

__all__ = ["choices", "choices_in_groups", "elements_sent", "expert_parameters", "listed"]


def choices(experts: int, top_k: int) -> int:
    """The number of expert sets that a token can be sent to."""
    return math.comb(experts, top_k)


def choices_in_groups(experts: int, top_k: int, groups: int) -> int:
    """The number of sets with ``top_k`` members in each of so many groups of ``experts``."""
    power: int = choices(experts, top_k) ** groups
    return power


def listed(experts: int, top_k: int, groups: int) -> tuple[int, int]:
    """Both numbers by listing every set of groups * top_k among groups * experts."""
    total = evenly = 0
    for chosen in combinations(range(groups * experts), groups * top_k):
        members = np.bincount(np.array(chosen, np.intp) // experts, minlength=groups)
        total += 1
        evenly += bool((members == top_k).all())
    return total, evenly


def elements_sent(x_ML: Array, expert_ids_MK: Array) -> int:
    """How many numbers travel to the experts and back: a row of x per slot, each way."""
    slot_tokens = np.repeat(np.arange(len(x_ML)), expert_ids_MK.shape[1])
    sent = x_ML[slot_tokens]
    return 2 * sent.size


def expert_parameters(experts: int, width: int, hidden: int) -> int:
    """The parameters of N experts with three projections each."""
    return 3 * experts * width * hidden
