"""Balancers on several ranks: their programs, and what the answers have to agree with.

Legend: M tokens, N routed experts, B histogram bins, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from properties.checks import note_figure, require
from properties.errors import NotOfferedError, ViolationError
from properties.judgement.balancing import Allowed, Bins, exactly, require_some_constant
from properties.judgement.balancing_bins import require_bins
from properties.judgement.balancing_runs import (
    choices_for,
    fresh_balancer,
    histogram_rule,
    rounded,
    valid_rows,
)
from properties.judgement.balancing_state import require_observed
from properties.judgement.parallel import division, program_of
from properties.judgement.routing import tokens as routed_tokens
from properties.protocol import Array
from properties.ranks import Collective, Program
from properties.ranks.program import TRAFFIC
from properties.strategies.balancing import BatchInputs
from properties.strategies.splits import RoundsInputs, Split, TrafficInputs
from properties.subject import Routed, Subject

__all__ = ["Rounds", "require_one_reduction", "traffic_programs"]


@dataclass(frozen=True)
class Seen:
    """What the ranks answered in one round: counts (N, B) or None, bias (N,), reduced counts."""

    histograms: list[Array | None]
    biases: list[Array]
    reduced: list[Array | None]


class Rounds:
    """Batches that a balancer on several ranks observes, each followed by an update."""

    def __init__(self, subject: Subject, inputs: RoundsInputs, world: int) -> None:
        self._subject = subject
        self._batches = [rounded(subject, batch) for batch in inputs.batches]
        self._num_bins = inputs.num_bins
        self._splits = self._divided(inputs.seed, world)

    def _divided(self, seed: int, world: int) -> list[Split]:
        """A division for each round; the arrangement of the world is that of the first."""
        tokens = [len(batch.logits) for batch in self._batches]
        first = division(self._subject, seed, tokens[0], world)
        groups, splits = world // first.tensor_parallel, [first]
        for later, count in enumerate(tokens[1:], 1):
            rows = division(self._subject, seed + later, count, world).rows
            # Another number of groups has rows for some that are not there, or none for others.
            shared = tuple(
                tuple(part for own in rows[group::groups] for part in own)
                for group in range(groups)
            )
            empty = (np.arange(0),)
            splits.append(replace(first, rows=tuple(own or empty for own in shared)))
        return splits

    def programs(self) -> list[Program]:
        """What each rank does: observe, show the counts, update, show the bias; and again."""
        first = self._batches[0]
        programs = []
        for rank in range(self._splits[0].world):
            program = program_of(self._subject, self._splits[0])
            program.make(
                "balancer",
                "balancer",
                num_experts=len(first.bias),
                top_k=first.top_k,
                num_bins=self._num_bins,
                bias=first.bias,
            )
            for number, (batch, split) in enumerate(zip(self._batches, self._splits, strict=True)):
                for place, rows in enumerate(split.parts(rank)):
                    part, answer = _rows(batch, rows), f"routing {number} {place}"
                    program.call_on(
                        "balancer", "observe", answer, logits=part.logits, mask=part.mask
                    )
                program.read("balancer", "histogram", f"histogram {number}")
                program.call_on("balancer", "update")
                program.read("balancer", "bias", f"bias {number}")
                if "balancer.reduced_histogram" in self._subject.offered:
                    program.read("balancer", "reduced_histogram", f"reduced {number}")
            programs.append(program)
        return programs

    def judge(self, answers: list[dict[str, Any]]) -> None:
        """Hold the answers to one process, round by round."""
        alone = fresh_balancer(self._subject, self._batches[0], self._num_bins)
        follows, bias = True, self._batches[0].bias
        for number, split in enumerate(self._splits):
            batch = replace(self._batches[number], bias=bias)
            seen = Seen(
                [answer[f"histogram {number}"] for answer in answers],
                [answer[f"bias {number}"] for answer in answers],
                [answer.get(f"reduced {number}") for answer in answers],
            )
            for group in split.rows:
                for rows in group:
                    part = _rows(batch, rows)
                    alone.observe(part.logits, mask=part.mask)
            self._routings(batch, split, number, answers)
            counts = self._counts(batch, split, seen)
            self._biases(batch, seen)
            follows = follows and _equal(counts, alone.histogram)
            alone.update()
            if follows:
                same = np.array_equal(seen.biases[0], alone.bias)
                require(
                    same or not self._subject.conventions.deterministic,
                    f"from the same counts {split.world} ranks make the bias {seen.biases[0]}, "
                    f"and one process {alone.bias}",
                )
            note_figure(self._subject, "counts equal those of one process in every bin", follows)
            bias = seen.biases[0]

    def _routings(
        self, batch: BatchInputs, split: Split, number: int, answers: list[dict[str, Any]]
    ) -> None:
        """What every rank's valid tokens were routed to, judged as one batch."""
        routings, logits = [], []
        for rank, answer in enumerate(answers):
            for place, rows in enumerate(split.parts(rank)):
                part = _rows(batch, rows)
                valid = np.arange(len(rows)) if part.mask is None else np.flatnonzero(part.mask)
                routings.append(routed_tokens(answer[f"routing {number} {place}"], valid))
                logits.append(valid_rows(part))
        pooled_MN = np.concatenate(logits)
        require_observed(self._subject, _joined(routings), pooled_MN, batch.bias, batch.top_k)

    def _counts(self, batch: BatchInputs, split: Split, seen: Seen) -> Array | None:
        """The sum of the groups' counts, after judging them and the reduced ones."""
        if any(counts is None for counts in seen.histograms):
            return None
        counts: list[Any] = seen.histograms
        for rank, own in enumerate(counts):
            logits = valid_rows(_rows(batch, split.own(rank)))
            who = f"rank {rank} of {split.world}: "
            require_bins(self._subject, own, logits, batch.bias, batch.top_k, who)
        total: Array = np.sum([counts[rank] for rank in split.firsts], axis=0)
        alike = all(
            np.array_equal(own, counts[rank - rank % split.tensor_parallel])
            for rank, own in enumerate(counts)
        )
        for rank, reduced in enumerate(seen.reduced):
            if reduced is not None and alike and not np.array_equal(reduced, total):
                raise ViolationError(
                    f"rank {rank} of {split.world}: the reduced counts are not the sum of the "
                    f"counts of all distinct tokens: {_apart(reduced, total)}"
                )
        return total

    def _biases(self, batch: BatchInputs, seen: Seen) -> None:
        for rank, bias in enumerate(seen.biases):
            if not np.array_equal(bias, seen.biases[0]):
                raise ViolationError(
                    f"after the update rank 0 has the bias {seen.biases[0]} and rank {rank} {bias}"
                )
        what = "the bias after the ranks' update"
        require_some_constant(self._subject, seen.biases[0], self._estimates(batch, seen), what)

    def _estimates(self, batch: BatchInputs, seen: Seen) -> list[Allowed]:
        """As in QB-HIST-ERROR, from all distinct tokens."""
        if not len(valid_rows(batch)):
            return [exactly(batch.bias)]
        counts = seen.histograms[0]
        num_bins = self._num_bins if counts is None else counts.shape[1]
        bins = Bins.of(batch.bias, num_bins, self._subject.routing_arithmetic())
        exact = choices_for(self._subject, batch, histogram_rule(self._subject))
        return [choice.widened(bins.width, bins.slip) for choice in exact]


def _rows(batch: BatchInputs, rows: Array) -> BatchInputs:
    mask = None if batch.mask is None else batch.mask[rows]
    return replace(batch, logits=batch.logits[rows], mask=mask)


def _joined(routings: list[Routed]) -> Routed:
    """The tokens of all these routings."""
    cutoffs: list[Any] = [routed.cutoff for routed in routings]
    return routings[0]._replace(
        expert_ids=np.concatenate([routed.expert_ids for routed in routings]),
        weights=np.concatenate([routed.weights for routed in routings]),
        cutoff=None if any(one is None for one in cutoffs) else np.concatenate(cutoffs),
    )


def _equal(counts: Array | None, others: Array | None) -> bool:
    """Whether both are the same, or neither is shown."""
    if counts is None or others is None:
        return counts is others
    return np.array_equal(counts, others)


def _apart(reduced: Array, total: Array) -> str:
    if reduced.shape != total.shape:
        return f"their shape is {reduced.shape}, not {total.shape}"
    expert, bin_ = (int(place) for place in np.argwhere(reduced != total)[0])
    return (
        f"{reduced[expert, bin_]} for {total[expert, bin_]} in bin {bin_} of expert {expert}, "
        f"{reduced[expert].sum()} for {total[expert].sum()} in all of them"
    )


# Traffic -----------------------------------------------------------------------------------------


def traffic_programs(
    subject: Subject, inputs: TrafficInputs, tokens: int, world: int
) -> list[Program]:
    """Each rank observes its part of that many tokens and updates, watched all the while."""
    rng = np.random.default_rng(inputs.seed)
    drawn = rng.standard_normal((tokens, inputs.num_experts))
    logits = subject.round_to_routing(subject.round_to_storage(drawn))
    programs = []
    for own in np.array_split(logits, world):
        program = Program()
        if "parallel" in subject.offered:
            program.call("parallel")
        program.make(
            "balancer",
            "balancer",
            num_experts=inputs.num_experts,
            top_k=inputs.top_k,
            num_bins=inputs.num_bins,
        )
        program.call_on(TRAFFIC, "start")
        program.call_on("balancer", "observe", logits=own)
        program.call_on("balancer", "update")
        program.call_on(TRAFFIC, "stop", answer="collectives")
        program.read("balancer", "histogram", "histogram")
        program.read("balancer", "bias", "bias")
        programs.append(program)
    return programs


def require_one_reduction(
    subject: Subject, inputs: TrafficInputs, answers: list[dict[str, Any]], tokens: int
) -> None:
    """Require every rank to have handed the histogram to one integer all-reduce, and no more.

    Raises NotOfferedError where no rank was seen to communicate.
    """
    if not any(answer["collectives"] for answer in answers):
        raise NotOfferedError("no collective of torch.distributed was seen")
    for rank, answer in enumerate(answers):
        shown = answer["histogram"]
        bins = inputs.num_bins if shown is None else int(shown.shape[1])
        size = inputs.num_experts * bins
        seen: list[Collective] = answer["collectives"] or []
        told = ", ".join(map(str, seen)) or "nothing"
        require(
            _is_one_reduction(seen, inputs.num_experts, bins, len(answers)),
            f"for {tokens} tokens rank {rank} of {len(answers)} handed over {told}, expected one "
            f"all-reduce of {size} integers",
        )
        note_figure(subject, "bytes per update", sum(one.bytes for one in seen))
        note_figure(subject, "bytes over n B", sum(one.bytes for one in seen) / size)


def _is_one_reduction(seen: list[Collective], experts: int, bins: int, world: int) -> bool:
    """One all-reduce of n B integers, and up to n more, or its two halves.

    These are a reduce-scatter, by experts or by elements, and an all-gather; or a reduce and a
    broadcast.
    """
    if not seen or not seen[0].dtype.startswith(("int", "uint")):
        return False
    size, most = experts * bins, experts * (bins + 1)
    first, *rest = seen
    if not rest:
        return first.kind.startswith("allreduce") and size <= first.elements <= most
    if len(rest) > 1:
        return False
    (second,) = rest
    if "reducescatter" in first.kind and "allgather" in second.kind:
        padded = -(-experts // world) * world * (bins + 1)
        return size <= first.elements <= padded and second.elements * world <= first.elements
    if first.kind == "reduce" and second.kind == "broadcast":
        return size <= first.elements <= most and second.elements <= first.elements
    return False
