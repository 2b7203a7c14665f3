"""A balancer on several ranks beside its training: evaluation, the switch and the state.

Legend: M tokens, N routed experts, B histogram bins, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from properties.checks import require
from properties.errors import ViolationError
from properties.judgement.balancing import Bins, require_some_constant
from properties.judgement.balancing_runs import (
    ascending,
    fresh_balancer,
    histogram_rule,
    rounded,
)
from properties.judgement.balancing_state_counts import read_from_counts
from properties.judgement.parallel import division, program_of
from properties.protocol import Array
from properties.ranks import Program
from properties.strategies.balancing_state import counts_around
from properties.strategies.splits import LifeInputs, Split
from properties.subject import Subject

__all__ = ["Lives"]

BALANCER = "balancer"


@dataclass(frozen=True)
class _Shown:
    """Bias (N,), counts (N, B) or None and reduced counts of every rank at one moment."""

    biases: list[Array]
    counts: list[Array | None]
    reduced: list[Array | None]


class Lives:
    """One balancer on each rank: evaluated, updated with nothing, switched off, and loaded."""

    def __init__(self, subject: Subject, inputs: LifeInputs, world: int) -> None:
        self._subject, self._inputs = subject, inputs
        self._batch = rounded(subject, inputs.batch)
        self._split: Split = division(subject, inputs.seed, len(self._batch.logits), world)
        alone = fresh_balancer(subject, self._batch, inputs.num_bins)
        shown = alone.histogram
        self._bins = None if shown is None else int(shown.shape[1])
        self._switched = alone.offers("set_enabled")
        self._loaded = alone.offers("load_state_dict") and self._bins is not None
        self._reduces = alone.offers("reduced_histogram")

    def programs(self) -> list[Program]:
        """The same calls on every rank, each with its own tokens and counts."""
        return [self._program(rank) for rank in range(self._split.world)]

    def _program(self, rank: int) -> Program:
        program = program_of(self._subject, self._split)
        program.make(
            BALANCER,
            BALANCER,
            num_experts=len(self._batch.bias),
            top_k=self._batch.top_k,
            num_bins=self._inputs.num_bins,
            bias=self._batch.bias,
        )
        own = self._batch.logits[self._split.own(rank)]
        program.call_on(BALANCER, "observe", logits=own, training=False)
        self._show(program, "evaluation")
        program.call_on(BALANCER, "update")
        self._show(program, "an update with nothing counted")
        if self._switched:
            program.call_on(BALANCER, "set_enabled", flag=False)
            program.call_on(BALANCER, "observe", logits=own)
            program.call_on(BALANCER, "update")
            self._show(program, "an update while disabled")
            program.call_on(BALANCER, "set_enabled", flag=True)
        if self._loaded:
            program.call_on(BALANCER, "load_state_dict", state=self._state(rank))
            self._show(program, "loading")
            program.call_on(BALANCER, "observe", logits=own, training=False)
            program.call_on(BALANCER, "update")
            self._show(program, "update")
            program.call_on(BALANCER, "update")
            self._show(program, "a second update")
        return program

    def _show(self, program: Program, when: str) -> None:
        program.read(BALANCER, "bias", f"bias after {when}")
        program.read(BALANCER, "histogram", f"histogram after {when}")
        if self._reduces:
            program.read(BALANCER, "reduced_histogram", f"reduced after {when}")

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
        idle = ["evaluation", "an update with nothing counted"]
        if self._switched:
            idle.append("an update while disabled")
        nothing = [None if self._bins is None else 0] * self._split.world
        for when in idle:
            self._require(self._shown(answers, when), self._batch.bias, nothing, when)
        if not self._loaded:
            return
        own = [self._own(rank) for rank in range(self._split.world)]
        self._require(self._shown(answers, "loading"), self._loaded_bias(), own, "loading")
        updated = self._shown(answers, "update")
        self._require(updated, self._updated(updated), nothing, "update")
        again = self._shown(answers, "a second update")
        self._require(again, updated.biases[0], nothing, "a second update")

    def _shown(self, answers: list[dict[str, Any]], when: str) -> _Shown:
        return _Shown(
            [answer[f"bias after {when}"] for answer in answers],
            [answer[f"histogram after {when}"] for answer in answers],
            [answer.get(f"reduced after {when}") for answer in answers],
        )

    def _require(self, shown: _Shown, bias: Array, counts: list[Any], when: str) -> None:
        """Require the bias everywhere, bit for bit, and on each rank those counts over r."""
        for rank, expected in enumerate(counts):
            who, held = f"rank {rank} of {self._split.world}", shown.counts[rank]
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

    def _updated(self, shown: _Shown) -> Array:
        """The bias after the update of what was loaded, judged on rank 0."""
        subject, batch = self._subject, self._batch
        total: Array = np.sum([self._own(rank) for rank in self._split.firsts], axis=0)
        for rank, reduced in enumerate(shown.reduced):
            if reduced is not None and not np.array_equal(ascending(subject, reduced), total):
                raise ViolationError(
                    f"rank {rank} of {self._split.world}: the reduced counts of loaded ones are "
                    f"not their sum: {reduced.sum()} for {total.sum()} in all bins together"
                )
        if not total.any():
            return self._loaded_bias()
        bins = Bins.of(self._loaded_bias(), total.shape[1], subject.routing_arithmetic())
        choices = read_from_counts(total, batch.top_k, bins, histogram_rule(subject))
        what = f"the bias after {self._split.world} ranks' update of loaded counts"
        require_some_constant(subject, shown.biases[0], choices, what)
        if subject.conventions.deterministic:
            alone = fresh_balancer(subject, batch, self._inputs.num_bins)
            counts = np.ascontiguousarray(ascending(subject, total))
            alone.load_state_dict(
                {"bias": subject.as_bias(self._loaded_bias()), "histogram": counts}
            )
            alone.update()
            require(
                np.array_equal(shown.biases[0], alone.bias),
                f"{what} is {shown.biases[0]}; one process makes {alone.bias} of the same counts",
            )
        return shown.biases[0]
