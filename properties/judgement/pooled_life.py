"""Balancers on several ranks beside their training: evaluation, the switch, casts and the state.

Legend: M tokens, N routed experts, B histogram bins, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from properties.checks import require
from properties.errors import ViolationError
from properties.judgement.balancing import Bins, require_some_constant
from properties.judgement.balancing_bins import require_bins
from properties.judgement.balancing_runs import (
    ascending,
    fresh_balancer,
    histogram_rule,
    rounded,
)
from properties.judgement.balancing_state_counts import read_from_counts
from properties.judgement.parallel import division, program_of
from properties.protocol import Array
from properties.ranks import Kept, Program
from properties.strategies.balancing_state import counts_around
from properties.strategies.splits import LifeInputs, Split
from properties.subject import Subject

__all__ = ["Lives"]

# The balancers of a program: one whose life is followed, one that is never enabled, the next
# layer's, and one that the first is restored into.
BALANCER, IDLE, OTHER, RESTORED = "balancer", "idle", "other", "restored"
STATE = "state"

# What does not touch counts that are pending.
EVALUATION = "an evaluation with counts pending"
CAST = "a cast with counts pending"
SWITCH = "switching off and on with counts pending"


@dataclass(frozen=True)
class _Shown:
    """Bias (N,), counts (N, B) or None and reduced counts of every rank at one moment."""

    biases: list[Array]
    counts: list[Array | None]
    reduced: list[Array | None]


class Lives:
    """Four balancers on each rank: see ``programs``."""

    def __init__(self, subject: Subject, inputs: LifeInputs, world: int) -> None:
        self._subject, self._inputs = subject, inputs
        self._batch = rounded(subject, inputs.batch)
        self._split: Split = division(subject, inputs.seed, len(self._batch.logits), world)
        alone = fresh_balancer(subject, self._batch, inputs.num_bins)
        shown = alone.histogram
        self._bins = None if shown is None else int(shown.shape[1])
        self._offers = alone.offers
        self._loaded = alone.offers("load_state_dict") and self._bins is not None
        saved = self._loaded and alone.offers("state_dict")
        self._saved = saved and alone.state_dict()["histogram"] is not None
        self._zeros = np.zeros(len(self._batch.bias))

    def programs(self) -> list[Program]:
        """The same calls on every rank, each with its own tokens and counts.

        One balancer is evaluated, updated with nothing and while it is off; counts are loaded, or
        observed, which then stay through an evaluation, a cast and the switch, and are saved. It,
        the next layer's and the one that it was restored into are updated in turn.
        """
        return [self._program(rank) for rank in range(self._split.world)]

    def _program(self, rank: int) -> Program:
        program = program_of(self._subject, self._split)
        own = self._batch.logits[self._split.own(rank)]
        self._make(program, IDLE, enabled=False)
        self._make(program, BALANCER, bias=self._batch.bias)
        self._make(program, OTHER)
        self._without_counts(program, own)
        if self._loaded:
            program.call_on(BALANCER, "load_state_dict", state=self._state(rank))
            self._show(program, BALANCER, "loading")
        else:
            program.call_on(BALANCER, "observe", logits=own)
            self._show(program, BALANCER, "observing")
        self._with_counts(program, own)
        again = "observe_recomputed" if self._offers("observe_recomputed") else "observe"
        program.call_on(OTHER, again, logits=own)
        self._show(program, OTHER, "observing")
        if self._saved:
            self._make(program, RESTORED)
            program.call_on(RESTORED, "observe", logits=own)
            program.keep_from(BALANCER, "state_dict", STATE)
            program.call_on(RESTORED, "load_state_dict", state=Kept(STATE))
            self._show(program, RESTORED, "loading")
        self._updates(program)
        return program

    def _without_counts(self, program: Program, own: Array) -> None:
        """Calls that count nothing, each followed by an update."""
        program.call_on(IDLE, "observe", logits=own)
        program.call_on(IDLE, "update")
        self._show(program, IDLE, "an update while disabled from the start")
        program.call_on(BALANCER, "observe", logits=own, training=False)
        self._show(program, BALANCER, "evaluation")
        program.call_on(BALANCER, "update")
        self._show(program, BALANCER, "an update with nothing counted")
        if self._offers("set_enabled"):
            self._switch_off_and_on(program, own)
            self._show(program, BALANCER, "an update while disabled")

    def _switch_off_and_on(self, program: Program, own: Array) -> None:
        program.call_on(BALANCER, "set_enabled", flag=False)
        program.call_on(BALANCER, "observe", logits=own)
        program.call_on(BALANCER, "update")
        program.call_on(BALANCER, "set_enabled", flag=True)

    def _with_counts(self, program: Program, own: Array) -> None:
        """Calls that leave counts that are pending alone."""
        for when in self._between():
            if when == EVALUATION:
                program.call_on(BALANCER, "observe", logits=own, training=False)
            elif when == CAST:
                for dtype in ("bfloat16", self._subject.precision.routing_format):
                    program.call_on(BALANCER, "to", dtype=dtype)
            else:
                self._switch_off_and_on(program, own)
            self._show(program, BALANCER, when)

    def _between(self) -> list[str]:
        needs = {EVALUATION: "observe", CAST: "to", SWITCH: "set_enabled"}
        return [when for when, name in needs.items() if name == "observe" or self._offers(name)]

    def _updates(self, program: Program) -> None:
        program.call_on(BALANCER, "update")
        self._show(program, BALANCER, "update")
        program.call_on(OTHER, "update")
        self._show(program, OTHER, "update")
        if self._saved:
            program.call_on(RESTORED, "update")
            self._show(program, RESTORED, "update")
        program.call_on(BALANCER, "update")
        self._show(program, BALANCER, "a second update")

    def _make(self, program: Program, name: str, **options: Any) -> None:
        program.make(
            BALANCER,
            name,
            num_experts=len(self._batch.bias),
            top_k=self._batch.top_k,
            num_bins=self._inputs.num_bins,
            **options,
        )

    def _show(self, program: Program, name: str, when: str) -> None:
        program.read(name, "bias", f"{name}: bias after {when}")
        program.read(name, "histogram", f"{name}: histogram after {when}")
        if self._offers("reduced_histogram"):
            program.read(name, "reduced_histogram", f"{name}: reduced after {when}")

    def _own(self, rank: int) -> Array:
        """The counts (N, B) over r that a rank loads; those with the same tokens load the same."""
        assert self._bins is not None
        group = rank // self._split.tensor_parallel
        total, number = self._inputs.totals[group], self._inputs.numbers[group]
        return counts_around(total, number, len(self._batch.bias), self._bins)

    def _state(self, rank: int) -> dict[str, Any]:
        counts = ascending(self._subject, self._own(rank))
        bias = self._subject.as_bias(self._loaded_bias())
        return {"bias": bias, "histogram": np.ascontiguousarray(counts)}

    def _loaded_bias(self) -> Array:
        loaded: Array = self._subject.round_to_routing(self._batch.bias[::-1] - 0.5)
        return loaded

    # Judgement -----------------------------------------------------------------------------------

    def judge(self, answers: list[dict[str, Any]]) -> None:
        """Hold every moment to what one process does."""
        nothing = [None if self._bins is None else 0] * self._split.world
        disabled = "an update while disabled from the start"
        self._require(answers, IDLE, disabled, self._zeros, nothing)
        idle = ["evaluation", "an update with nothing counted"]
        if self._offers("set_enabled"):
            idle.append("an update while disabled")
        for when in idle:
            self._require(answers, BALANCER, when, self._batch.bias, nothing)
        bias, own = self._pending(answers)
        for when in self._between():
            self._require(answers, BALANCER, when, bias, own)
        observed = self._observed(answers, OTHER, self._zeros)
        self._require(answers, OTHER, "observing", self._zeros, observed)
        updated = self._updated(answers, BALANCER, bias, own)
        self._require(answers, BALANCER, "update", updated, nothing)
        after = self._updated(answers, OTHER, self._zeros, observed)
        self._require(answers, OTHER, "update", after, nothing)
        if self._saved:
            self._require(answers, RESTORED, "loading", bias, own)
            restored = self._updated(answers, RESTORED, bias, own)
            self._require(answers, RESTORED, "update", restored, nothing)
        self._require(answers, BALANCER, "a second update", updated, nothing)

    def _pending(self, answers: list[dict[str, Any]]) -> tuple[Array, list[Any]]:
        """Bias and counts over r that were loaded, or observed, judged."""
        if not self._loaded:
            bias: Array = self._batch.bias
            own = self._observed(answers, BALANCER, bias)
            self._require(answers, BALANCER, "observing", bias, own)
            return bias, own
        loaded = [self._own(rank) for rank in range(self._split.world)]
        self._require(answers, BALANCER, "loading", self._loaded_bias(), loaded)
        return self._loaded_bias(), loaded

    def _observed(self, answers: list[dict[str, Any]], name: str, bias: Array) -> list[Any]:
        """What each rank has counted of its own tokens, over r and judged, or None."""
        counted: list[Any] = []
        for rank, held in enumerate(self._shown(answers, name, "observing").counts):
            if held is not None:
                logits = self._batch.logits[self._split.own(rank)]
                who = f"{name} on rank {rank} of {self._split.world}: "
                require_bins(self._subject, held, logits, bias, self._batch.top_k, who)
            counted.append(None if held is None else ascending(self._subject, held))
        return counted

    def _shown(self, answers: list[dict[str, Any]], name: str, when: str) -> _Shown:
        return _Shown(
            [answer[f"{name}: bias after {when}"] for answer in answers],
            [answer[f"{name}: histogram after {when}"] for answer in answers],
            [answer.get(f"{name}: reduced after {when}") for answer in answers],
        )

    def _require(
        self, answers: list[dict[str, Any]], name: str, when: str, bias: Array, counts: list[Any]
    ) -> None:
        """Require the bias everywhere, bit for bit, and on each rank those counts over r."""
        shown = self._shown(answers, name, when)
        for rank, expected in enumerate(counts):
            who, held = f"{name} on rank {rank} of {self._split.world}", shown.counts[rank]
            require(
                np.array_equal(shown.biases[rank], bias),
                f"after {when} {who} has the bias {shown.biases[rank]}, expected {bias}",
            )
            if held is None or expected is None:
                continue
            apart = np.argwhere(ascending(self._subject, held) != expected)
            if len(apart):
                expert, bin_ = (int(place) for place in apart[0])
                wanted = np.broadcast_to(expected, held.shape)[expert, bin_]
                found = ascending(self._subject, held)[expert, bin_]
                raise ViolationError(
                    f"after {when} {who} has {found} tokens in bin {bin_} of expert {expert}, "
                    f"expected {wanted}"
                )

    def _updated(
        self, answers: list[dict[str, Any]], name: str, bias: Array, own: list[Any]
    ) -> Array:
        """The bias after the update of counts over r, judged on rank 0 if they are known."""
        subject, shown = self._subject, self._shown(answers, name, "update")
        first = shown.biases[0]
        if not self._known(own):
            return first
        total: Array = np.sum([own[rank] for rank in self._split.firsts], axis=0)
        for rank, reduced in enumerate(shown.reduced):
            if reduced is not None and not np.array_equal(ascending(subject, reduced), total):
                raise ViolationError(
                    f"{name} on rank {rank} of {self._split.world}: the reduced counts are not the "
                    f"sum of all ranks': {reduced.sum()} for {total.sum()} in all bins together"
                )
        if not total.any():
            return bias
        bins = Bins.of(bias, total.shape[1], subject.routing_arithmetic())
        choices = read_from_counts(total, self._batch.top_k, bins, histogram_rule(subject))
        what = f"the bias after the update of {name} by {self._split.world} ranks"
        require_some_constant(subject, first, choices, what)
        if self._loaded and subject.conventions.deterministic:
            alone = self._alone(bias, total)
            require(
                np.array_equal(first, alone),
                f"{what} is {first}; one process makes {alone} of the same counts",
            )
        return first

    def _known(self, own: list[Any]) -> bool:
        """Whether counts are shown, the same ones where tokens are the same."""
        replicas = self._split.tensor_parallel
        return all(
            counts is not None and np.array_equal(counts, own[rank - rank % replicas])
            for rank, counts in enumerate(own)
        )

    def _alone(self, bias: Array, total: Array) -> Array:
        """What one process makes of that bias and those counts over r."""
        subject = self._subject
        alone = fresh_balancer(subject, self._batch, self._inputs.num_bins)
        counts = np.ascontiguousarray(ascending(subject, total))
        alone.load_state_dict({"bias": subject.as_bias(bias), "histogram": counts})
        alone.update()
        return alone.bias
