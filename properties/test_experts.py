"""Experts and dispatch: the weighted sum of the chosen experts (Eq. 11, 12).

Tokens are sorted by expert, sent, computed on in groups, sent back and added up: none of which may
be visible in the result. Legend: M tokens, N experts, K top_k, L latent width, H hidden width.
"""

from __future__ import annotations

from dataclasses import replace

from properties.checks import require, within
from properties.judgement.experts import ExpertCall, near
from properties.protocol import Array
from properties.registry import specification
from properties.strategies import experts
from properties.strategies.experts import ExpertInputs
from properties.subject import Subject


@specification(
    "DSP-DENSE", source="Eq. 11, 12", needs=("experts",), examples=80, inputs=experts.inputs()
)
def test_dsp_dense(subject: Subject, inputs: ExpertInputs) -> None:
    """Grouped dispatch equals dense evaluation of sum over slots a of p_ia E_j(x_i), j = id_ia.

    Dense means every expert on every token, and each token then picks its K rows.

    Hypotheses: finite inputs, x at most the square root of the largest number of any format; K
    distinct ids per token in any order, N from 1 to 257, K up to 16, M from 1 to 33 (DSP-EMPTY has
    M = 0); weights >= 0, normalised or not, zeros included; caps from 1/2 to 1e4, not all exact in
    bfloat16; any strides, projections stored by rows or by columns. Where storage, arithmetic or
    sums end near 2^16 or before, amplitudes, projections and caps are so small that nothing on the
    way leaves that range.

    Legal freedoms: any order of every sum; each projection, activation, expert output and weighted
    term stored once; fused products; a weight that meets the activation's output before it is
    stored, since the down projection is linear. Sums are accumulated in the declared format: with
    bfloat16 storage and float32 accumulation, a running sum kept in bfloat16 is outside.

    If it fails: a row that belongs to another token, the permutation is not undone or undone
    twice; a row short of a term, a slot or the last expert is not counted, or overwritten; right
    terms with wrong weights, weights were not sorted along; only at square widths, a transposed
    projection; only beyond 256 experts, ids in a byte; only with K = 16 in low precision, the
    combine rounds after every term.
    """
    call = ExpertCall.of(subject, inputs)
    within(subject, call.result(), call.expected(), "experts")


@specification(
    "DSP-PERMUTE", source="Eq. 11", needs=("experts",), examples=40, drawn=experts.permuted()
)
def test_dsp_permute(subject: Subject, drawn: tuple[ExpertInputs, Array]) -> None:
    """Permuting tokens, with their ids and weights, permutes the rows of the result.

    Within the sum of both radii: in another place of its group, a token may meet another kernel.

    Hypotheses: those of DSP-DENSE; any permutation.

    Proof: Eq. 11 treats tokens one by one, so both results lie within the radius of the same row.

    Legal freedoms: those of DSP-DENSE. Bit equality is not asked, but finite numbers are.

    If it fails: a token's result depends on who else is in the batch. Tokens beyond an expert's
    capacity are dropped, rows after the last full tile are not computed, or the way back from
    the sorted order is wrong.
    """
    inputs, order = drawn
    call = ExpertCall.of(subject, inputs)
    moved = call.rows(order)
    ball = call.expected()[order]
    expected = near(call.result()[order], ball, ball)
    within(subject, moved.result(), expected, "experts of permuted tokens")


@specification(
    "DSP-ONEHOT",
    source="Eq. 12",
    needs=("experts",),
    examples=24,
    drawn=experts.one_expert_at_a_time(),
)
def test_dsp_onehot(subject: Subject, drawn: tuple[ExpertInputs, tuple[int, ...]]) -> None:
    """If every token gives its whole weight to one expert, the result is that expert's output.

    Each of the N experts is tried in turn, with weight 1; other slots, where there are any, weigh
    0. N is 1, 2, 3, 5, 7 or 13; of 257 experts, the first, those around the limits of a byte and a
    few others are tried.

    Hypotheses: those of DSP-DENSE.

    Proof: Eq. 11 with p = 1 for one slot and 0 for the others; adding exact zeros is exact.

    Legal freedoms: those of DSP-DENSE; slots of weight 0 may be skipped.

    If it fails: for one expert only, usually the first or the last, offsets of the groups are off
    by one; from expert 256 on, ids are bytes; with K > 1 only, a slot of weight 0 is counted.
    """
    inputs, tried = drawn
    call = ExpertCall.of(subject, inputs)
    for expert in tried:
        turned = replace(call, expert_ids=(call.expert_ids + expert) % call.experts)
        within(subject, turned.result(), call.output_of(expert), f"output of expert {expert}")


@specification(
    "DSP-SAME", source="Eq. 11", needs=("experts",), examples=36, inputs=experts.identical()
)
def test_dsp_same(subject: Subject, inputs: ExpertInputs) -> None:
    """Identical experts whose weights add up to 1 equal one of them; twice the weights, twice that.

    Within the sum of both radii of each comparison.

    Hypotheses: those of DSP-DENSE; the N experts have equal parameters, and the weights are
    multiples of 1/8 whose sum is exactly 1.

    Proof: sum_a p_a E(x) = (sum_a p_a) E(x), which is linear in p.

    Legal freedoms: those of DSP-DENSE.

    If it fails: the terms of a token overwrite each other instead of adding up; or weights are
    normalised a second time, which only the doubled ones show.
    """
    call = ExpertCall.of(subject, inputs)
    out, ball = call.result(), call.expected()
    alone = call.alone()
    single = near(alone.result(), alone.expected(), ball)
    within(subject, out, single, "K identical experts")
    doubled = replace(call, weights=2.0 * call.weights)
    twice = near(2.0 * out, ball, ball, doubled.expected())
    within(subject, doubled.result(), twice, "experts with doubled weights")


@specification(
    "DSP-EMPTY",
    source="Eq. 11",
    needs=("experts",),
    examples=22,
    inputs=experts.with_idle_experts(),
)
def test_dsp_empty(subject: Subject, inputs: ExpertInputs) -> None:
    """Idle experts and batches of 0 or 1 tokens change nothing: values, shapes and gradients hold.

    The values hold in a first call and in a second one, whose fresh memory was filled with NaN
    (where the implementation offers ``poison``). Parameters of an expert that no token chose get a
    gradient of exactly 0 (where ``experts_vjp`` is offered), over memory poisoned alike.

    Hypotheses: those of DSP-DENSE, M = 0 and M = 1 included.

    Proof: an expert that is in no token's set does not occur in Eq. 11.

    Legal freedoms: those of DSP-DENSE. What an idle expert computes, if anything, is nobody's
    business.

    If it fails: rows of an output or gradient buffer were never written, which fresh memory, all
    zeros, hides; or a kernel cannot be launched on nothing. In training, an optimiser then moves
    experts that were not used, or writes NaN into them.
    """
    call = ExpertCall.of(subject, inputs)
    expected = call.expected()
    within(subject, call.result(), expected, "experts")
    subject.poison()
    within(subject, call.result(), expected, "experts over poisoned memory")
    if "experts_vjp" in subject.offered:
        subject.poison()
        gradients = call.gradients()
        for name in ("gate_proj", "up_proj", "down_proj"):
            zero = getattr(gradients, name)[call.idle] == 0.0
            require(zero, f"d_{name} is not 0 for an expert without tokens")
