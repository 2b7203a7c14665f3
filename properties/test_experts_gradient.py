"""The backward pass of the experts: gradients of x, of the weights and of every projection.

For the objective sum(c * u) with a cotangent c (M, L), and slot a of token i naming expert j:

    d_p_ia = <c_i, E_j(x_i)>,   d_x_i = sum_a p_ia J_j(x_i)^T c_i,
    d_W_j  = sum over the tokens i that chose j of p_ia (dE_j(x_i)/dW)^T c_i

Legend: M tokens, N experts, K top_k, L latent width, H hidden width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import require, within
from properties.judgement.experts import ExpertCall, Gradients, all_within, in_parts
from properties.registry import specification
from properties.strategies import experts_seeded as experts
from properties.strategies import experts_sized as sized
from properties.strategies.experts import ExpertInputs
from properties.strategies.experts_seeded import Marked
from properties.subject import Subject


@specification(
    "DSP-GRAD",
    source="Eq. 11, 12",
    needs=("experts_vjp",),
    examples=36,
    inputs=experts.backward_calls(),
)
def test_dsp_grad(subject: Subject, inputs: ExpertInputs) -> None:
    """All five gradients equal those of Eq. 11 and 12: x, weights, gate_proj, up_proj, down_proj.

    With c the cotangent, g = W_g x, v = W_u x and a = SiTU-GLU(g, v) of one slot: d_p = <c, W_d a>,
    d_W_d = (p c) a^T, (d_g, d_v) = SiTU-GLU's own gradients at W_d^T (p c), d_W_g = d_g x^T,
    d_W_u = d_v x^T and d_x = W_g^T d_g + W_u^T d_v; added up over the slots of a token for d_x, and
    over the tokens of an expert for its parameters.

    Hypotheses: those of DSP-DENSE; x at times 0 for some tokens, or for all; a cotangent of any
    amplitude, at times 0 for some tokens.

    Legal freedoms: any order of every sum; each product of matrices, each of the two gradients of
    the activation, the weighted cotangent and every term of a sum over slots stored once; values
    of the forward pass kept or computed again; a weight that meets the cotangent before or after
    W_d^T; d_p as <c, W_d a> or as <W_d^T c, a>, in the format of routing or of storage. The slope
    of a softcap may be 1 - tanh^2, with its cancellation. A token's K terms of d_x are added in any
    order and each partial sum may be stored: that is what autograd makes of an indexed x. Sums over
    the tokens of an expert are accumulated in the declared format.

    If it fails: d_weights alone, the router learns nothing from the loss (weights are detached, or
    their gradients stay in the sorted order); d_x alone, slots overwrite each other, or the
    backward pass undoes the permutation the wrong way, which the forward pass cannot show; one
    projection alone, a transpose, or gate and up exchanged; all of them by a factor, the weight is
    missing, is applied twice, or gradients are averaged over tokens.
    """
    call = ExpertCall.of(subject, inputs)
    all_within(subject, call.gradients(), call.expected_gradients(), "")


@specification(
    "DSP-GRAD-SIZES",
    source="Eq. 11, 12",
    needs=("experts_vjp",),
    examples=1,
    long=True,
    inputs=sized.at_size(3),
)
def test_dsp_grad_sizes(subject: Subject, inputs: tuple[ExpertInputs, ...]) -> None:
    """DSP-GRAD beyond the size of a tile: up to 32,800 tokens, widths to 1100, up to 24 slots.

    Hypotheses: M, N, K and the widths as in DSP-SIZES, with three calls about the size of a tile;
    amplitudes 1 and 0.1, and all factors positive at the widths of 1088 and 1100; everything else
    as in DSP-GRAD.

    Legal freedoms: those of DSP-GRAD.

    If it fails while DSP-GRAD holds: the rows after the last full tile have no gradient, or those
    of the last full one; tiles off the diagonal are stored in each other's place; a partial sum
    over chunks of tokens replaces the one before; d_weights are added up over the width in storage;
    slots or busy experts beyond a fixed number are dropped; or gradients of gate and up change
    places on the path for aligned widths.
    """
    for one in inputs:
        call = ExpertCall.of(subject, one)
        all_within(subject, call.gradients(), call.expected_gradients(), f" at size {one!r}")


@specification(
    "DSP-GRAD-ZERO",
    source="Eq. 11",
    needs=("experts_vjp",),
    examples=9,
    inputs=experts.any_call(fewest_tokens=0),
)
def test_dsp_grad_zero(subject: Subject, inputs: ExpertInputs) -> None:
    """Where nothing reaches the loss, gradients are exactly 0, and never NaN.

    Experts without tokens have parameters' gradients of 0. So have all experts in a batch of no
    tokens, whose d_x and d_weights are empty. A cotangent of 0 makes all five gradients 0; weights
    of 0 make d_x and all parameters' gradients 0, and leave d_weights as they are in DSP-GRAD.

    Hypotheses: those of DSP-GRAD, M = 0 included.

    Proof: each gradient is a sum of products with p and c (DSP-GRAD), d_weights with c alone, all
    other factors finite; products with 0 and sums of zeros are exact, so are empty sums.

    Legal freedoms: the sign of a zero.

    If it fails: a buffer was allocated and never written, or the gradient of an empty batch is a
    mean over nothing. An optimiser with momentum or weight decay turns such values into moves of
    experts that saw no token, and one NaN ends the run.
    """
    call = ExpertCall.of(subject, inputs)
    everything = Gradients._fields
    subject.poison()
    _are_zero(call.gradients(), everything[2:], call.idle, "an expert without tokens")
    nothing = call.rows(np.arange(0))
    subject.poison()
    _are_zero(nothing.gradients(), everything, ..., "a batch without tokens")
    silent = replace(call, cotangent=np.zeros(call.x.shape))
    subject.poison()
    _are_zero(silent.gradients(), everything, ..., "a cotangent of 0")
    weightless = replace(call, weights=np.zeros(call.weights.shape))
    found = weightless.gradients()
    others = tuple(name for name in everything if name != "weights")
    _are_zero(found, others, ..., "weights of 0")
    expected = call.expected_gradients().weights
    within(subject, found.weights, expected, "d_weights at weights of 0")


@specification(
    "DSP-GRAD-SUM",
    source="Eq. 11",
    needs=("experts_vjp",),
    examples=12,
    drawn=experts.marked_rows(),
)
def test_dsp_grad_sum(subject: Subject, drawn: Marked) -> None:
    """Gradients of two micro-batches add up: those of the whole batch are their sum.

    The tokens are divided in two. Parameters' gradients of both parts add up to those of the whole,
    and d_x and d_weights of the parts are the rows of those of the whole.

    Hypotheses: those of DSP-GRAD, M at least 2, any division, in any proportion.

    Proof: the objective is a sum over tokens, and the gradient is linear.

    Legal freedoms: those of DSP-GRAD; each of the three calls keeps its own radius, and the sum is
    taken by the suite.

    If it fails while DSP-GRAD holds in small batches: gradients are divided by the number of
    tokens, or of an expert's tokens, and accumulation over micro-batches of unequal size weighs
    tokens unequally; or the last rows of a group are left out.
    """
    inputs, marked = drawn
    whole = ExpertCall.of(subject, inputs)
    halves = [np.flatnonzero(marked), np.flatnonzero(~marked)]
    calls = [whole.rows(rows) for rows in halves]
    expected = in_parts(
        [call.gradients() for call in calls],
        [whole.expected_gradients(), *(call.expected_gradients() for call in calls)],
        halves,
    )
    all_within(subject, whole.gradients(), expected, " of two micro-batches")


def _are_zero(found: Gradients, names: tuple[str, ...], where: object, what: str) -> None:
    for name in names:
        require(getattr(found, name)[where] == 0.0, f"d_{name} of {what} is not exactly 0")
