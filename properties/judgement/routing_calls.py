"""Calls of a router that lie in the same memory, and what they return, kept as it came.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from properties.judgement.memory import Kept, Rewritable
from properties.judgement.routing import (
    on_grid,
    require_selection,
    require_weights,
    scored,
)
from properties.judgement.routing_gradient import few_digits, require_gradient
from properties.judgement.routing_groups import require_grouped
from properties.protocol import Array
from properties.strategies.routing_calls import CallInputs
from properties.subject import Routed, Subject

__all__ = ["Memory", "RouterCall", "Sequence", "same_bits"]


@dataclass(frozen=True)
class RouterCall:
    """The arguments of all methods, in values that the declared formats hold, as float64."""

    subject: Subject
    logits: Array
    bias: Array
    cotangent: Array
    top_k: int
    groups: tuple[int, int]

    @classmethod
    def of(cls, subject: Subject, inputs: CallInputs) -> RouterCall:
        """The drawn inputs in the subject's formats."""
        logits, bias = on_grid(subject, inputs.routing)
        cotangent = few_digits(subject, inputs.cotangent)
        groups = inputs.num_groups, inputs.top_groups
        return cls(subject, logits, bias, cotangent, inputs.routing.top_k, groups)

    def backwards(self) -> RouterCall:
        """The same tokens, last one first."""
        return RouterCall(
            self.subject,
            self.logits[::-1],
            self.bias,
            self.cotangent[::-1],
            self.top_k,
            self.groups,
        )


class Memory:
    """Arguments that lie where those of the call before lay, in the formats of routing."""

    def __init__(self, call: RouterCall) -> None:
        """Memory for calls of the shapes of ``call``."""
        self.subject, self.top_k, self.groups = call.subject, call.top_k, call.groups
        self._memory, dtype = Rewritable(), call.subject.routing_dtype
        shapes = (call.logits.shape, call.bias.shape, call.cotangent.shape)
        self._views = [self._memory.view(shape, dtype) for shape in shapes]

    def hold(self, call: RouterCall) -> None:
        """Write the arguments of a call over those of the one before."""
        self._memory.write((call.logits, call.bias, call.cotangent))

    def methods(self) -> dict[str, Callable[[], Any]]:
        """What is offered, each method on the arguments that are held."""
        subject, (logits, bias, cotangent) = self.subject, self._views
        num_groups, top_groups = self.groups
        every: dict[str, Callable[[], Any]] = {
            "route": lambda: subject.route(logits, bias, top_k=self.top_k),
            "route_grouped": lambda: subject.route_grouped(
                logits, bias, top_k=self.top_k, num_groups=num_groups, top_groups=top_groups
            ),
            "route_vjp": lambda: subject.route_vjp(logits, bias, cotangent, top_k=self.top_k),
        }
        return {name: method for name, method in every.items() if name in subject.offered}


class Sequence:
    """Calls one after the other: each is judged, and what it returned is kept as it came."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self._routed: dict[int, Routed] = {}

    def make(self, call: RouterCall, memory: Memory, *, backward: bool, poisoned: str = "") -> None:
        """Call the forward methods, or the backward one, on arguments that lie in the memory.

        Memory is poisoned before the method of that name, where ``poison`` is offered.
        Raises ViolationError if a result is wrong.
        """
        memory.hold(call)
        for name, method in memory.methods().items():
            if (name == "route_vjp") != backward:
                continue
            if name == poisoned:
                call.subject.poison()
            found = method()
            self.kept.append(Kept.of_last_call(call.subject, f"what {name} had returned"))
            self._require_right(call, name, found)

    def _require_right(self, call: RouterCall, method: str, found: Any) -> None:
        """A gradient has to be that of the ids that ``route``, if offered, gave for the call."""
        subject, logits = call.subject, call.logits
        if method == "route_vjp":
            routed = self._routed.get(id(call))
            if routed is not None:
                require_gradient(subject, logits, routed, call.cotangent, found[0], "d_logits")
            return
        known = scored(subject, logits, call.bias, stored=found.weights_format)
        if method == "route_grouped":
            require_grouped(subject, found, logits, known, call.groups, "in groups")
            return
        require_selection(subject, found, known.biased)
        require_weights(subject, found, known.scores, "weights")
        self._routed[id(call)] = found


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results of one method are the same in every bit, slot by slot."""
    pairs = zip(first, second, strict=True)
    return all(_bits(one) == _bits(other) for one, other in pairs)


def _bits(part: Any) -> Any:
    return part.tobytes() if isinstance(part, np.ndarray) else part
