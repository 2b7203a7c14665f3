"""Is a group-limited routing legal? Groups are judged by their scores, like experts.

A group that certainly is, or certainly is not, among the best decides what an expert of it may do;
of groups that nearly tie, either may be open. What is asked is necessary for every set of open
groups, and sufficient where that set is certain.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import reference_numpy as reference
from properties.checks import require, within
from properties.errors import ViolationError
from properties.judgement.routing import (
    Scored,
    computed_exactly,
    cutoff_ball,
    require_ids,
    require_selection,
    require_weights,
    tokens,
)
from properties.protocol import Array
from properties.rounding import Ball
from properties.subject import Routed, Subject

__all__ = [
    "OpenGroups",
    "group_totals",
    "open_groups",
    "require_grouped",
    "require_grouped_selection",
]


class OpenGroups(NamedTuple):
    """Which groups (M, G) are certainly, and which possibly, among each token's best."""

    certain: Array
    possible: Array


def group_totals(biased_MN: Any, num_groups: int) -> Any:
    """The sum (M, G) of each group's two best biased scores, as a ball.

    No order statistic moves further than its terms do.
    """
    tokens, experts = biased_MN.shape
    shape = (tokens, num_groups, experts // num_groups)
    value, radius = biased_MN.value.reshape(shape), biased_MN.radius.reshape(shape)
    middle, low, high = (np.sort(x, axis=2) for x in (value, value - radius, value + radius))
    with np.errstate(invalid="ignore"):
        spread = np.maximum(high - middle, middle - low)
    spread = np.where((low == middle) & (high == middle), 0.0, spread)
    ordered: Any = Ball(middle, spread, biased_MN.arithmetic)
    return ordered[:, :, -1] + ordered[:, :, -2]


def open_groups(totals_MG: Any, top_groups: int) -> OpenGroups:
    """A group is certainly open if fewer than T others can reach it, and closed if T surpass it.

    Where a total is a difference of infinities, as with a bias that is added to infinite logits,
    nothing is certain, unless all groups are open.
    """
    low, high = totals_MG.value - totals_MG.radius, totals_MG.value + totals_MG.radius
    others = ~np.eye(low.shape[1], dtype=bool)
    reaching = ((high[:, None, :] >= low[:, :, None]) & others).sum(axis=2)
    surpassing = (low[:, None, :] > high[:, :, None]).sum(axis=2)
    certain, possible = reaching < top_groups, surpassing < top_groups
    if top_groups < low.shape[1]:
        with np.errstate(invalid="ignore"):
            unknown = np.isnan(low + high).any(axis=1)
        certain[unknown], possible[unknown] = False, True
    return OpenGroups(certain, possible)


def require_grouped_selection(
    subject: Subject, routed: Routed, biased_MN: Any, groups: OpenGroups, top_groups: int
) -> Any:
    """Require at most T groups per token, all of them possible, and a top-k among their experts.

    Returns the biased scores with -inf outside the groups that are certain or were used.
    """
    num_experts, num_groups = biased_MN.shape[1], groups.certain.shape[1]
    require_ids(routed, num_experts)
    used = np.zeros(groups.certain.shape, dtype=bool)
    np.put_along_axis(used, routed.expert_ids // (num_experts // num_groups), True, axis=1)
    closed = used & ~groups.possible
    if closed.any():
        token, group = np.argwhere(closed)[0]
        raise ViolationError(
            f"token {token} is sent to group {group}, which {top_groups} others surpass"
        )
    needed = used | groups.certain
    if (needed.sum(axis=1) > top_groups).any():
        token = int(np.argmax(needed.sum(axis=1)))
        raise ViolationError(
            f"token {token} is sent to the groups {np.flatnonzero(used[token]).tolist()}, but "
            f"its {top_groups} best include {np.flatnonzero(groups.certain[token]).tolist()}"
        )
    candidates = np.repeat(needed, num_experts // num_groups, axis=1)
    limited: Any = Ball(
        np.where(candidates, biased_MN.value, -np.inf),
        np.where(candidates, biased_MN.radius, 0.0),
        biased_MN.arithmetic,
    )
    require_selection(subject, routed, limited, "selection in the groups")
    return limited


def require_grouped(
    subject: Subject,
    routed: Routed,
    logits: Array,
    known: Scored,
    groups: tuple[int, int],
    what: str,
) -> None:
    """Require the selection, the weights and the cutoff that (G, T) groups and the scores allow.

    Cutoffs, and ties that are promised to fall to the lowest ids, are judged at tokens whose groups
    are certain. Where open groups may have less than K experts above -inf, as with a bias that is
    added to infinite logits, any others fill up, and the weights alone are judged.
    """
    num_groups, top_groups = groups
    top_k, experts = routed.expert_ids.shape[1], logits.shape[1]
    require_ids(routed, experts)
    require_weights(subject, routed, known.scores, f"weights {what}")
    opened = open_groups(group_totals(known.biased, num_groups), top_groups)
    rows = _supplied(known.biased.value, opened.possible, top_groups) >= top_k
    routed, logits = tokens(routed, rows), logits[rows]
    known = Scored(known.scores[rows], known.biased[rows])
    opened = OpenGroups(opened.certain[rows], opened.possible[rows])
    limited = require_grouped_selection(subject, routed, known.biased, opened, top_groups)
    sure = np.all(opened.certain == opened.possible, axis=1)
    if subject.conventions.ties == "lowest_index":
        rows = sure & computed_exactly(subject, logits, known.biased.value)
        lowest = reference.top_k_ids(limited.value[rows], top_k)
        same = np.sort(routed.expert_ids[rows], axis=1) == np.sort(lowest, axis=1)
        require(same, f"ties {what} do not fall to the lowest ids, as declared")
    if routed.cutoff is None or not len(logits):
        return
    if top_k == experts // num_groups * top_groups:
        require(~np.isfinite(routed.cutoff), "a finite cutoff, though no candidate is left out")
        return
    within(subject, routed.cutoff[sure], cutoff_ball(limited, top_k)[sure], f"cutoff {what}")


def _supplied(biased_MN: Array, possible_MG: Array, top_groups: int) -> Array:
    """How many experts above -inf T possible groups have at least, (M,)."""
    by_group = (len(biased_MN), possible_MG.shape[1], -1)
    if not len(biased_MN):
        return np.zeros(0, np.int64)
    counts = (biased_MN > -np.inf).reshape(by_group).sum(axis=2)
    fewest_first = np.sort(np.where(possible_MG, counts, biased_MN.shape[1]), axis=1)
    least: Array = fewest_first[:, :top_groups].sum(axis=1)
    return least
