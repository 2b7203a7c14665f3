"""Adding up the counts of many layers over many processes, in one all-reduce of integers.

Legend: N routed experts, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["distinct_token_group", "group_size", "own_subgroup", "pooled"]


def group_size(group: dist.ProcessGroup | None = None) -> int:
    """The number of ranks in a group, None being the default group: 1 where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)


def pooled(counts: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """The sums over a group's ranks of integer tensors, by one all-reduce of them all.

    Every rank must pass the same shapes in the same order. Bytes on the wire: 8 per count,
    whatever they were counted from. Needs memory for one more copy of the counts.

    Args:
        counts: int64, any shapes, on one or more devices.
        group: the ranks; None is the default group. A process of its own reduces nothing.
    """
    if not counts or group_size(group) == 1:
        return list(counts)
    flat = torch.cat([each.flatten().to(counts[0].device) for each in counts])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [each.numel() for each in counts])
    return [part.view(each.shape).to(each.device) for part, each in zip(parts, counts, strict=True)]


def distinct_token_group(tensor_parallel: int = 1) -> dist.ProcessGroup | None:
    """The ranks whose tokens are to be added up, where ``tensor_parallel`` ranks each see the same.

    Ranks r with the same r // tensor_parallel hold copies of the same tokens. The group returned
    has one rank of each such set, so that nothing counts twice, and every rank is in such a group.
    All ranks must call this, since each group is made by all.

    Returns:
        None, the default group, if no two ranks share tokens.

    Raises:
        ValueError: tensor_parallel does not divide the number of ranks.
    """
    world = group_size()
    if tensor_parallel < 1 or world % tensor_parallel:
        raise ValueError(f"tensor_parallel = {tensor_parallel} does not divide {world} ranks")
    if tensor_parallel == 1:
        return None
    copies = [list(range(copy, world, tensor_parallel)) for copy in range(tensor_parallel)]
    return own_subgroup(copies)


def own_subgroup(subgroups: list[list[int]]) -> dist.ProcessGroup | None:
    """Make process groups of these disjoint sets of ranks, all of them; the one of this rank."""
    mine: dist.ProcessGroup | None
    mine, _ = dist.new_subgroups_by_enumeration(subgroups)  # type: ignore[no-untyped-call]
    return mine
