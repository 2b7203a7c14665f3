"""Calls that all ranks make together, and what gradients that are spread over them may add up to.

Legend: M tokens, W ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.checks import within
from properties.protocol import Array
from properties.ranks import Program
from properties.rounding import Ball
from properties.rounding.arithmetic import REFERENCE_ROUNDOFF
from properties.strategies.splits import Split, split_of
from properties.subject import Subject

__all__ = ["added_up", "division", "program_of", "require_rows"]


def division(subject: Subject, seed: int, tokens: int, world: int) -> Split:
    """Who has which tokens; replicated ones only where the implementation can be told."""
    return split_of(seed, tokens, world, arranged="parallel" in subject.offered)


def program_of(subject: Subject, split: Split) -> Program:
    """A program that begins with the arrangement of the world, where there is one to be made."""
    program = Program()
    if "parallel" in subject.offered:
        program.call(
            "parallel",
            tensor_parallel=split.tensor_parallel,
            expert_parallel=split.expert_parallel,
        )
    return program


def require_rows(
    subject: Subject,
    found: list[Array],
    pooled: Any,
    split: Split,
    what: str,
    without: int | None = None,
) -> None:
    """Require what each rank returned for its tokens to be the rows of the pooled ball.

    The token ``without`` may be anything. Raises ViolationError naming the rank.
    """
    for rank, actual in enumerate(found):
        own = split.own(rank)
        judged = np.ones(own.shape, bool) if without is None else own != without
        who = f"{what} of rank {rank} of {split.world}"
        within(subject, actual[judged], pooled[own[judged]], who)


def added_up(subject: Subject, found: list[Array], pooled: Any) -> tuple[Array, Any]:
    """The sum of what the ranks hold of a gradient, and what it may be.

    The pooled ball holds the gradient in one process, for any order of adding up. Ranks that hold
    parts of that sum round each of them to storage, which is granted once more for each part; the
    suite adds them in float64.
    """
    total: Array = np.sum(found, axis=0)
    size = np.sum(np.abs(found), axis=0)
    store = subject.arithmetic.rules["store"]
    parts = np.sum(np.asarray(found) != 0.0, axis=0)
    share = store.share * (1.0 + store.share) + len(found) * REFERENCE_ROUNDOFF
    radius = pooled.radius + share * size + parts * store.underflow
    return total, Ball(pooled.value, radius, pooled.arithmetic)
