"""The calls of a balancer's life, in any order: a state machine over ``Followed``.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from properties.checks import note_figure
from properties.errors import NotOfferedError, UnknownError, ViolationError
from properties.judgement.balancing_state import Followed, Saved, representable
from properties.judgement.routing_updates import refused
from properties.protocol import Array
from properties.stateful import SubjectMachine
from properties.strategies.balancing_state import (
    ALL_BUT,
    BIASES,
    PATTERNS,
    MicroBatch,
    Setup,
    counts_around,
    rows,
    setups,
    tokens,
)
from properties.subject import Subject

__all__ = ["BalancerMachine"]

# Totals whose larger part is just past what 8, 11 and 24 bits of a float, and 8, 15 and 16 bits of
# an integer can count (see counts_around).
TOTALS = tuple(ALL_BUT + 2**bits + 1 for bits in (1, 24, 8, 24, 11, 16, 24, 15))
MANY = 300

Rule = TypeVar("Rule", bound=Callable[..., None])


def call(function: Rule) -> Rule:
    """The body of a rule: nothing more is called once the case is settled."""

    @wraps(function)
    def run(machine: BalancerMachine, **drawn: Any) -> None:
        if machine.settled is not None or machine.refused:
            return
        try:
            function(machine, **drawn)
        except (UnknownError, NotOfferedError) as reason:
            machine.settle(reason)
        except ViolationError as error:
            if not (machine.idle and refused(error)):
                raise
            machine.refused = True  # K = N, for which there is no cutoff, may be refused

    return run  # type: ignore[return-value]


def offered(*names: str) -> Callable[[Rule], Rule]:
    """A rule for balancers that have these optional methods."""
    return precondition(lambda machine: all(machine.offers(name) for name in names))


class BalancerMachine(SubjectMachine):
    """Sequences of calls, each judged against the reference balancer as it is made."""

    followed: Followed

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.saved: Saved | None = None
        self.refused = False
        self.idle = False
        left_out = [name for name in OPTIONAL if not self.offers(name)]
        note_figure(subject, "calls left out", ", ".join(left_out) or "none")

    def offers(self, name: str) -> bool:
        """Whether the balancer has an optional method, or takes masks."""
        if name == "mask":
            return self.subject.conventions.padding == "masked"
        return f"balancer.{name}" in self.subject.offered

    # Making ------------------------------------------------------------------------------------

    @initialize(switched_off=st.integers(0, 9), setup=setups())
    @call
    def make(self, setup: Setup, switched_off: int) -> None:
        if switched_off == 9 and self.offers("set_enabled"):
            setup = replace(setup, enabled=False)
        self.idle = setup.top_k == setup.num_experts
        self.followed = Followed(self.subject, setup)

    # Observing ---------------------------------------------------------------------------------

    @rule(drawn=tokens(), many=st.integers(0, 7))
    @call
    def observe(self, drawn: list[tuple[int, bool]], many: int) -> None:
        self.followed.observe(self.batch((drawn * MANY)[:MANY] if many == 7 else drawn))

    @rule(drawn=tokens())
    @call
    def observe_in_evaluation(self, drawn: list[tuple[int, bool]]) -> None:
        self.followed.observe(self.batch(drawn), training=False)

    @offered("mask")
    @rule(drawn=tokens(), padding_only=st.integers(0, 3), evaluation=st.integers(0, 3))
    @call
    def observe_masked(
        self, drawn: list[tuple[int, bool]], padding_only: int, evaluation: int
    ) -> None:
        valid = np.array([valid and padding_only < 3 for _, valid in drawn], bool)
        self.followed.observe(self.batch(drawn, valid), training=evaluation < 3)

    @offered("observe_recomputed")
    @rule(drawn=tokens())
    @call
    def observe_recomputed(self, drawn: list[tuple[int, bool]]) -> None:
        self.followed.observe_recomputed(self.batch(drawn))

    # Updating ----------------------------------------------------------------------------------

    @rule()
    @call
    def update(self) -> None:
        self.followed.update()

    @rule(drawn=tokens(least=1))
    @call
    def observe_and_update(self, drawn: list[tuple[int, bool]]) -> None:
        self.followed.observe(self.batch(drawn))
        self.followed.update()

    @offered("set_enabled")
    @rule(flag=st.booleans())
    @call
    def set_enabled(self, flag: bool) -> None:
        self.followed.set_enabled(flag)

    # The state dict, and casts -----------------------------------------------------------------

    @offered("state_dict")
    @rule()
    @call
    def save(self) -> None:
        self.saved = self.followed.save()

    @offered("state_dict", "load_state_dict")
    @precondition(lambda machine: machine.saved is not None)
    @rule(fresh=st.booleans())
    @call
    def load(self, fresh: bool) -> None:
        assert self.saved is not None
        if fresh:
            setup, enabled = self.followed.setup, self.followed.model.enabled
            setup = replace(setup, bias=None, enabled=enabled)
            self.followed = Followed(self.subject, setup)
        self.followed.load(self.saved)

    @offered("load_state_dict")
    @rule(
        total=st.sampled_from(TOTALS),
        bins=st.integers(0, PATTERNS - 1),
        bias=st.integers(0, PATTERNS - 1),
    )
    @call
    def load_counts(self, total: int, bins: int, bias: int) -> None:
        if self.idle or not self.followed.visible:
            return
        num_experts, num_bins = self.followed.counts.shape
        counts_NB = counts_around(total, bins, num_experts, num_bins)
        bias_N = self.subject.round_to_routing(rows([bias], num_experts, BIASES)[0])
        self.followed.load(self.followed.stored(bias_N, counts_NB))

    @offered("to")
    @rule(down=st.integers(0, 2))
    @call
    def cast(self, down: int) -> None:
        formats = (self.subject.precision.routing_format, "bfloat16", "float16")
        self.followed.cast(formats[down])

    # ---------------------------------------------------------------------------------------------

    def batch(self, drawn: list[tuple[int, bool]], mask: Array | None = None) -> MicroBatch:
        """Drawn tokens as a micro-batch of this balancer's width, in the subject's formats."""
        num_experts = self.followed.setup.num_experts
        logits_MN = rows([number for number, _ in drawn], num_experts)
        return representable(self.subject, MicroBatch(logits_MN, mask))


OPTIONAL = (
    "mask",
    "state_dict",
    "load_state_dict",
    "to",
    "set_enabled",
    "bias_storage_id",
    "observe_recomputed",
)
