"""The experts called in every way that callers do: from any memory, again, in turn, and at size.

Legend: M tokens, N experts, K top_k, L latent width, H hidden width.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require, within
from properties.errors import NotOfferedError
from properties.judgement.experts import ExpertCall, all_within
from properties.judgement.experts_calls import WAYS, Rewritten, expanded, laid_out_in
from properties.judgement.memory import Kept
from properties.registry import specification
from properties.strategies import experts_seeded as experts
from properties.strategies import experts_sized as sized
from properties.strategies.experts import ExpertInputs
from properties.subject import Subject


@specification(
    "DSP-SIZES",
    source="Eq. 11, 12",
    needs=("experts",),
    examples=2,
    inputs=sized.at_size(8),
)
def test_dsp_sizes(subject: Subject, inputs: tuple[ExpertInputs, ...]) -> None:
    """DSP-DENSE beyond the size of a tile: up to 32,800 tokens, widths to 1100, up to 24 slots.

    Hypotheses: in each case, eight calls with M around 64, 128 and 256, widths around 32, 64 and
    128, by one more or less and at other numbers that no power of two divides; N from 1 to 33, K up
    to 17; five with widths of 64, 128, 192 and 640; eleven longer ones: M up to 32,800, N up to 896
    and of 256, K = 24, H = 270, 128 and 2,100 tokens at one expert, 144 experts all busy, the last
    expert always, M, L and H all beyond 128; amplitudes 1 and 0.1; and two, L = 1088 and H = 1100,
    all of whose factors are positive. Everything else as in DSP-DENSE.

    Legal freedoms: those of DSP-DENSE.

    If it fails while DSP-DENSE holds: kernels work on tiles of rows and columns, and loops on
    chunks of tokens. The rows after the last full one are missing or computed twice, or the last
    one where all are full; a chunk starts anew where it should go on; an inner dimension is cut
    down to a multiple of 8, 16 or 128; the path for aligned widths is another function; a table of
    slots has eight places, one of experts 128 or 768; ids end at 254 or 511, slots at 65,535; an
    inner dimension is split in two; or an expert's capacity is reached.
    """
    for one in inputs:
        call = ExpertCall.of(subject, one)
        within(subject, call.result(), call.expected(), f"experts at size {one!r}")


@specification(
    "DSP-LAYOUT",
    source="Eq. 11, 12",
    needs=("experts",),
    examples=14,
    inputs=experts.laid_out_calls(),
)
def test_dsp_layout(subject: Subject, inputs: ExpertInputs) -> None:
    """Values count, not how they lie in memory: every argument may have any strides.

    Five calls of the same values, so that x, ids, weights and, in the backward pass, the cotangent
    each come contiguous, reversed, as columns of a wider array, as every other element of one, and
    transposed. Projections come contiguous, stored by columns, as the halves of one stack (N, 2H,
    L), as its alternating rows, and sliced. Memory between the elements holds NaN, or, where the
    suite itself converts formats, zeros. A sixth call has one token in place of all and one number
    for the whole cotangent, both behind strides of 0.

    Hypotheses: those of DSP-DENSE, N at most 13; widths different and equal.

    Proof: the arguments of Eq. 11 are numbers.

    Legal freedoms: those of DSP-DENSE: another layout may mean another kernel, or a copy first.

    If it fails: a kernel reads row after row whatever the strides are. Autograd often passes
    expanded or transposed cotangents, fused projections come as halves, and a checkpoint may be
    stored by columns; where both widths are equal, wrong strides do not even crash.
    """
    call = ExpertCall.of(subject, inputs)
    expected = call.expected()
    both_ways = "experts_vjp" in subject.offered
    gradients = call.expected_gradients() if both_ways else None
    for way in range(WAYS):
        turned = laid_out_in(call, way)
        within(subject, turned.result(), expected, f"experts, layout {way}")
        if gradients is not None:
            all_within(subject, turned.gradients(), gradients, f", layout {way}")
    call = expanded(call)
    within(subject, call.result(), call.expected(), "experts of one expanded token")
    if gradients is not None:
        found, balls = call.gradients(), call.expected_gradients()
        all_within(subject, found, balls, " of an expanded token and cotangent")


@specification(
    "DSP-REPEAT",
    source="reproducible training and inference",
    needs=("experts",),
    examples=10,
    inputs=sized.as_long_as_a_tile(fewest_slots=3),
)
def test_dsp_repeat(subject: Subject, inputs: ExpertInputs) -> None:
    """The same call gives the same bits again, forward and backward, with other calls in between.

    Not offered where the implementation declares ``deterministic=False``.

    Hypotheses: those of DSP-SIZES, K at least 3: large enough for several threads and for sums that
    depend on their order. One machine, one process, the same memory layout of the arguments.

    Why: a run that cannot be repeated cannot be debugged, and recomputed activations that differ
    from the first ones give gradients of another function.

    Legal freedoms: any bits, as long as they are the same ones; the sign of a zero counts.

    If it fails: sums are added up in the order in which threads arrive (atomic additions into a
    token's row), an algorithm is chosen by timing, or an uninitialised value takes part. A result
    that is NaN or infinite repeats itself, too: where Eq. 11 is finite, it fails.
    """
    if not subject.conventions.deterministic:
        raise NotOfferedError("declares deterministic=False")
    call = ExpertCall.of(subject, inputs)
    first = call.result()
    if not np.isfinite(first).all():
        within(subject, first, call.expected(), "experts")
    backward = "experts_vjp" in subject.offered
    gradients = call.gradients() if backward else None
    call.rows(slice(None, None, 2)).result()
    same = first.tobytes() == call.result().tobytes()
    require(same, "experts gives other bits when it is called again")
    if gradients is not None:
        for name, old, new in zip(gradients._fields, gradients, call.gradients(), strict=True):
            same = old.tobytes() == new.tobytes()
            require(same, f"experts_vjp gives other bits of d_{name} when it is called again")


@specification(
    "DSP-CALLS", source="Eq. 11", needs=("experts",), examples=10, drawn=experts.in_a_row()
)
def test_dsp_calls(
    subject: Subject, drawn: tuple[ExpertInputs, ExpertInputs, ExpertInputs]
) -> None:
    """Calls know nothing of each other: each is right, and its result stays as it was returned.

    Three calls in a row, forward and backward: the second has the sizes of the first and other
    values throughout, and is made twice; the third has other sizes. The first and the second are
    given the same memory behind the same views, whose values are changed in between, as an
    optimiser changes parameters in place. Every array that was returned still has its bits at the
    end.

    Hypotheses: those of DSP-DENSE and DSP-GRAD.

    Proof: Eq. 11 is a function of its arguments.

    Legal freedoms: those of DSP-DENSE and DSP-GRAD; plans, buffers and packed weights may be kept,
    as long as no caller notices.

    If it fails: a plan of the dispatch is cached by shape while the ids have changed, packed
    weights by address while an optimiser has stepped, a buffer keeps rows from a larger call, or
    the result is the implementation's own buffer, which the next call (the next layer, the next
    micro-batch) overwrites.
    """
    calls = [ExpertCall.of(subject, inputs) for inputs in drawn]
    backward = "experts_vjp" in subject.offered
    expected = [call.expected() for call in calls]
    expected_gradients = [call.expected_gradients() for call in calls] if backward else []
    memory = Rewritten(calls[0])
    kept = []
    for number, place in enumerate((0, 1, 1, 2), 1):
        call = memory.holding(calls[place]) if place < 2 else calls[place]
        within(subject, call.result(), expected[place], f"experts, call {number}")
        kept.append(Kept.of_last_call(subject, f"the result of call {number}"))
        if backward:
            gradients = call.gradients()
            kept.append(Kept.of_last_call(subject, f"the gradients of call {number}"))
            all_within(subject, gradients, expected_gradients[place], f", call {number}")
    for returned in kept:
        returned.require_unchanged()
