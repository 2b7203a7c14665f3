"""Balancing where there is nothing to balance: K = N leaves the bias alone, or is refused.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import numpy as np

from properties.errors import ViolationError
from properties.protocol import Array
from properties.subject import Subject

__all__ = ["refused", "require_idle_balancer", "require_idle_update"]


def refused(error: ViolationError) -> bool:
    """Whether the implementation declined a call in words, rather than failed somewhere in it."""
    cause = error.__cause__
    return isinstance(cause, ValueError | NotImplementedError) and bool(str(cause).strip())


def require_idle_update(subject: Subject, logits: Array, bias: Array) -> None:
    """Require ``quantile_update`` with K = N to return the bias it was given, or to refuse."""
    try:
        after = subject.quantile_update(logits, bias, top_k=len(bias))
    except ViolationError as error:
        if not refused(error):
            raise
        return
    _require_unchanged(bias, after, "quantile_update")


def require_idle_balancer(subject: Subject, logits: Array, bias: Array) -> None:
    """Require an observation and an update with K = N to leave the bias, or a refusal of either."""
    num_experts = len(bias)
    try:
        balancer = subject.balancer(num_experts=num_experts, top_k=num_experts, bias=bias)
        balancer.observe(logits)
        balancer.update()
    except ViolationError as error:
        if not refused(error):
            raise
        return
    _require_unchanged(bias, balancer.bias, "the balancer's update")


def _require_unchanged(before: Array, after: Array, what: str) -> None:
    if not np.array_equal(before, after):
        expert = int(np.argmax(before != after))
        raise ViolationError(
            f"{what} with top_k = {len(before)}, all experts, moves the bias of expert {expert} "
            f"from {before[expert]!s} to {after[expert]!s}; there is no cutoff to balance by"
        )
