"""Experts that are divided among ranks: tokens travel to them, and what they add comes back.

Legend: M tokens, N experts, K top_k, L latent width, H hidden width.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from properties.checks import within
from properties.judgement.experts import ExpertCall
from properties.judgement.parallel import added_up, division, program_of, require_rows
from properties.judgement.parallel_experts import Pooled, in_partial_sums, spoilt
from properties.protocol import ExpertParameters
from properties.ranks import Program, run
from properties.ranks.program import Answers
from properties.registry import specification
from properties.strategies import splits
from properties.strategies.splits import ParallelExperts, Split
from properties.subject import Subject

# What answers and messages call a batch with a bad token.
BESIDE = " beside a bad token"


@specification(
    "DSP-PARALLEL",
    source="Eq. 11, 12",
    needs=("ranks",),
    any_of=("experts", "experts_vjp"),
    examples=34,
    drawn=splits.parallel_experts(),
)
def test_dsp_parallel(subject: Subject, drawn: ParallelExperts) -> None:
    """On several ranks the experts return, for each rank's tokens, what one process returns.

    So do the gradients: d_x and d_weights are those of the rank's tokens, on each rank that has
    them, and gradients of parameters add up over all ranks to those of one process, in which every
    distinct token counts once.

    In a quarter of the cases the same calls follow with one bad token: NaN, +inf or -inf in all of
    its x and of its cotangent. Results, d_x and d_weights of every other token, of its rank and of
    the others, are what they were.

    Hypotheses: those of DSP-DENSE and DSP-GRAD; 2 and 4 ranks with tokens of their own, as many as
    they happen to have and perhaps none; N below, above and not a multiple of the ranks, and 400 or
    more in an eighth of the cases whose experts are small; all tokens at the experts of few ranks.
    Where ``parallel`` is offered, 2 or 4 consecutive ranks have the same tokens, and the experts
    are divided among 1, 2 or 4 ranks, in any combination.

    Source and proof: Eq. 11 treats tokens one by one and is a sum over experts, wherever these are;
    the objective is a sum over distinct tokens.

    Legal freedoms: those of DSP-DENSE and DSP-GRAD; who holds which experts; sums over the experts
    of a rank that are stored before they travel; which rank holds which part of a gradient of
    parameters, the others having zeros, each part being stored. With a bad token those of DSP-NAN:
    its own rows and the gradients of parameters may be anything.

    If it fails: offsets of experts assume N / W of them on each rank; tokens come back in the order
    of the experts and not in their own; a rank without tokens leaves a collective out, which ends
    as an adapter error, since the others wait; replicated tokens are sent by each of their ranks
    and counted as often in the gradients; only the gradients of one's own tokens are kept; 0 times
    the sum of x, added so that experts without tokens keep a gradient, is NaN on all ranks as soon
    as one token of one rank has overflowed.
    """
    whole = ExpertCall.of(subject, drawn.inputs)
    expected = in_partial_sums(whole)
    broken = None if drawn.bad is None else spoilt(whole, drawn.bad)
    for world in subject.worlds:
        split = division(subject, drawn.seed, whole.x.shape[0], world)
        programs = []
        for rank in range(world):
            program = program_of(subject, split)
            _add_calls(program, whole.rows(split.own(rank)), "")
            if broken is not None:
                _add_calls(program, broken.rows(split.own(rank)), BESIDE)
            programs.append(program)
        answers = run(subject, programs, "DSP-PARALLEL")
        _require_rows(subject, answers, expected, split, "", None)
        if drawn.bad is not None:
            _require_rows(subject, answers, expected, split, BESIDE, drawn.bad.row)
        if "experts_vjp" in subject.offered:
            gradients = [answer["experts_vjp"] for answer in answers]
            for field in fields(ExpertParameters):
                held = [getattr(gradient[2], field.name) for gradient in gradients]
                pooled = getattr(expected.gradients, field.name)
                total, ball = added_up(subject, held, pooled)
                within(subject, total, ball, f"d_{field.name} added up over {world} ranks")


def _require_rows(
    subject: Subject,
    answers: list[Answers],
    expected: Pooled,
    split: Split,
    which: str,
    without: int | None,
) -> None:
    """Require the rows of result and gradients that came back from one pair of calls."""
    if "experts" in subject.offered:
        found = [answer[f"experts{which}"] for answer in answers]
        require_rows(subject, found, expected.result, split, f"experts{which}", without)
    if "experts_vjp" in subject.offered:
        gradients = [answer[f"experts_vjp{which}"] for answer in answers]
        for part, name in enumerate(("x", "weights")):
            found = [gradient[part] for gradient in gradients]
            pooled = getattr(expected.gradients, name)
            require_rows(subject, found, pooled, split, f"d_{name}{which}", without)


def _add_calls(program: Program, call: ExpertCall, which: str) -> None:
    given: dict[str, Any] = {
        "x": call.x,
        "expert_ids": call.expert_ids,
        "weights": call.weights,
        "parameters": call.parameters,
        **call.betas,
    }
    if "experts" in call.subject.offered:
        program.call("experts", answer=f"experts{which}", **given)
    if "experts_vjp" in call.subject.offered:
        answer = f"experts_vjp{which}"
        program.call("experts_vjp", answer=answer, cotangent=call.cotangent, **given)
