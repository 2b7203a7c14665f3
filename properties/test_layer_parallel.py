"""The whole layer on several ranks: experts divided, tokens divided, and perhaps replicated.

Legend: M tokens, N routed experts, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from properties.checks import within
from properties.judgement.layer_calls import LayerCall, cotangent_of
from properties.judgement.layer_gradient import (
    legal_gradients,
    named_arrays,
    parameter_gradients,
    selections_of,
    silenced,
)
from properties.judgement.parallel import added_up, division, program_of
from properties.protocol import Array
from properties.ranks import Program, run
from properties.registry import specification
from properties.strategies import splits
from properties.strategies.splits import BadToken, ParallelLayer, Split
from properties.subject import Subject

# What answers and messages call a batch with a bad token.
BESIDE = " beside a bad token"


@specification(
    "LAY-PARALLEL",
    source="Eq. 11",
    needs=("ranks",),
    any_of=("layer", "layer_vjp"),
    examples=30,
    drawn=splits.parallel_layers(),
)
def test_lay_parallel(subject: Subject, drawn: ParallelLayer) -> None:
    """On several ranks the layer returns, for each rank's tokens, what one process returns.

    So do d_x, on each rank that has the token, and the gradients of parameters, added up over all
    ranks: each distinct token counts once, shared experts, norm and router included.

    In a third of the cases, if there is more than one token, the same calls follow with one bad
    token: NaN, +inf or -inf in all of its x and of its cotangent. Outputs and d_x of every other
    token, of its rank and of the others, are what they were.

    Hypotheses: those of LAY-VALUE and LAY-GRAD, each rank's tokens along one axis, in half of the
    cases behind one of length 1; 2 and 4 ranks arranged as in DSP-PARALLEL. A third of the cases is
    of amplitude 1e-2 to 1e-4, where eps carries the norm.

    Source and proof: Eq. 11 treats tokens one by one. The norm acts on u, the sum over all chosen
    experts: it is not linear, so that norms of the parts that ranks hold do not add up to it.

    Legal freedoms: those of LAY-VALUE and LAY-GRAD; which rank holds which part of a gradient of
    parameters, each part being stored. Parts of u are added in the format of accumulation. With a
    bad token those of LAY-NAN: its own rows and the gradients of parameters may be anything.

    If it fails while DSP-PARALLEL holds: the latent norm is applied to a rank's part of u, before
    the sum over ranks; a gradient of norm, router or shared experts is added up over ranks that
    have the same tokens; d_x of replicated tokens lacks the part of other ranks' experts; 0 times
    a sum over tokens, added so that experts without any keep a gradient, is NaN on all ranks as
    soon as one token of one rank has overflowed.
    """
    call = LayerCall.of(subject, drawn.inputs.layer)
    call = replace(call, x=call.x.reshape(-1, call.x.shape[-1]))
    cotangent = cotangent_of(subject, drawn.inputs.cotangent).reshape(call.x.shape)
    judged = _Judged(subject, call, cotangent, drawn)
    for world in subject.worlds:
        split = division(subject, drawn.seed, len(call.x), world)
        programs = [judged.program(split, rank) for rank in range(world)]
        judged.judge(run(subject, programs, "LAY-PARALLEL"), split)


class _Judged:
    """One call of the layer in one process, and what ranks may make of it."""

    def __init__(
        self, subject: Subject, call: LayerCall, cotangent: Array, drawn: ParallelLayer
    ) -> None:
        self._subject, self._call, self._cotangent = subject, call, cotangent
        self._bad, self._batched = drawn.bad, drawn.batched
        selections = selections_of(subject, call)
        self._clear = bool(selections.clear.all())
        self._output = call.legal(subject) if "layer" in subject.offered else None
        self._silenced = cotangent
        if "layer_vjp" in subject.offered:
            self._d_x, expected = legal_gradients(subject, call, cotangent, selections)
            if not self._clear:
                self._silenced = silenced(cotangent, selections)
                expected = parameter_gradients(subject, call, self._silenced, selections)
            self._gradients = expected

    def program(self, split: Split, rank: int) -> Program:
        """Both calls of a rank; the backward one once more where tokens have to be silent.

        They follow once more with a bad token.
        """
        program, rows = program_of(self._subject, split), split.own(rank)
        self._add_calls(program, self._call.x[rows], self._cotangent[rows], "")
        if "layer_vjp" in self._subject.offered and not self._clear:
            self._add_backward(program, self._call.x[rows], self._silenced[rows], "silenced")
        if self._bad is not None:
            x, cotangent = (
                _spoilt(self._subject, values, self._bad)
                for values in (self._call.x, self._cotangent)
            )
            self._add_calls(program, x[rows], cotangent[rows], BESIDE)
        return program

    def _add_calls(self, program: Program, x: Array, cotangent: Array, which: str) -> None:
        call = self._call
        if "layer" in self._subject.offered:
            program.call(
                "layer",
                answer=f"layer{which}",
                x=self._as_given(x),
                parameters=call.parameters,
                config=call.config,
                training=call.training,
            )
        if "layer_vjp" in self._subject.offered:
            self._add_backward(program, x, cotangent, f"layer_vjp{which}")

    def _add_backward(self, program: Program, x: Array, cotangent: Array, answer: str) -> None:
        program.call(
            "layer_vjp",
            answer=answer,
            x=self._as_given(x),
            parameters=self._call.parameters,
            cotangent=self._as_given(cotangent),
            config=self._call.config,
        )

    def _as_given(self, values: Array) -> Array:
        """A rank's rows (M, D), or a batch (1, M, D) of them."""
        return values[None] if self._batched else values

    def judge(self, answers: list[dict[str, Any]], split: Split) -> None:
        """Require every rank's rows, and the sum of all ranks' gradients."""
        self._tokens(answers, split, "")
        if self._bad is not None:
            self._tokens(answers, split, BESIDE, self._bad.row)
        if "layer_vjp" in self._subject.offered:
            last = "layer_vjp" if self._clear else "silenced"
            self._parameters([answer[last][1] for answer in answers])

    def _tokens(
        self, answers: list[dict[str, Any]], split: Split, which: str, without: int | None = None
    ) -> None:
        """Require outputs and d_x of one pair of calls; the token ``without`` may be anything."""
        if "layer" in self._subject.offered:
            found = [answer[f"layer{which}"] for answer in answers]
            self._rows(found, self._output, split, f"layer{which}", without)
        if "layer_vjp" in self._subject.offered:
            found = [answer[f"layer_vjp{which}"][0] for answer in answers]
            self._rows(found, self._d_x, split, f"d_x{which}", without)

    def _rows(
        self, found: list[Array], legal: Any, split: Split, what: str, without: int | None
    ) -> None:
        for rank, returned in enumerate(found):
            rows, actual = split.own(rank), returned.reshape(-1, returned.shape[-1])
            judged = np.ones(rows.shape, bool) if without is None else rows != without
            everyone = np.array(legal.single().value)
            everyone[rows[judged]] = actual[judged]
            who = f"{what} of rank {rank} of {split.world}"
            within(self._subject, actual[judged], legal.nearest(everyone)[rows[judged]], who)

    def _parameters(self, found: list[Any]) -> None:
        held = [dict(named_arrays(gradients)) for gradients in found]
        for name, pooled in named_arrays(self._gradients):
            total, ball = added_up(self._subject, [one[name] for one in held], pooled)
            within(self._subject, total, ball, f"d_{name} added up over {len(found)} ranks")


def _spoilt(subject: Subject, values: Array, bad: BadToken) -> Array:
    """The values (M, D), those of the bad token replaced; NaN where storage has no infinities."""
    value = np.nan if subject.arithmetic.stored.overflow_is_nan else bad.value
    return np.where(np.arange(len(values))[:, None] == bad.row, value, values)
