"""Calls of RMSNorm that lie in the same memory, and what they return, kept as it came."""

from __future__ import annotations

from typing import Any

import reference_numpy as reference
from properties.checks import within
from properties.judgement.memory import Kept, Rewritable
from properties.judgement.norm import within_range
from properties.protocol import Array
from properties.strategies.norm import NormInputs
from properties.subject import Subject

__all__ = ["NormCalls", "expected_norm"]


def expected_norm(subject: Subject, x: Array, weight: Array, eps: float) -> Any:
    """The reference's norm as a ball."""
    return reference.rms_norm(subject.ball(x), subject.ball(weight), eps=eps)


class NormCalls:
    """Calls one after the other: each is judged, and what it returned is kept as it came.

    Rows and weights of one shape lie where those of the call before lay, behind the same read-only
    views, as parameters lie that an optimiser changes in place.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.kept: list[Kept] = []
        self._memory: dict[tuple[int, ...], tuple[Rewritable, Array, Array]] = {}

    def make(self, rows: NormInputs, weighted: NormInputs, *, poisoned: bool = False) -> None:
        """Normalise the rows and the eps of the one with the weight of the other.

        Memory is poisoned before, where ``poison`` is offered. Raises ViolationError if the result
        is wrong.
        """
        subject, number = self.subject, len(self.kept) + 1
        rows = within_range(subject, NormInputs(rows.x, weighted.weight, rows.eps))
        x, weight = (subject.round_to_storage(values) for values in (rows.x, rows.weight))
        views = self._written(x, weight)
        if poisoned:
            subject.poison()
        found = subject.rms_norm(*views, eps=rows.eps)
        self.kept.append(Kept.of_last_call(subject, f"what call {number} had returned"))
        expected = expected_norm(subject, x, weight, rows.eps)
        within(subject, found, expected, f"rms_norm, call {number}")

    def require_unchanged(self) -> None:
        """Require all that was returned to have the bits it had."""
        for returned in self.kept:
            returned.require_unchanged()

    def _written(self, x: Array, weight: Array) -> tuple[Array, Array]:
        """The views of that shape's memory, which now holds rows and weight."""
        if x.shape not in self._memory:
            memory, dtype = Rewritable(), self.subject.storage_dtype
            views = memory.view(x.shape, dtype), memory.view(weight.shape, dtype)
            self._memory[x.shape] = memory, *views
        memory, *_ = self._memory[x.shape]
        memory.write((x, weight))
        return self._memory[x.shape][1:]
