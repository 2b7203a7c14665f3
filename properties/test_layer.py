"""The whole layer, Eq. 11: y = sum_shared E^sh(x) + W_up RMSNorm(u), u = sum_j p_j E_j(W_down x).

Routing happens inside the call and is never seen. Every statement is therefore judged on each
routing that is legal for the declared formats (:mod:`properties.judgement.layer`), and comparisons
of two calls on the tokens for which only one routing is.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width of a
routed expert, S shared experts, G hidden width of a shared expert.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import within
from properties.errors import UnknownError
from properties.judgement.layer import (
    agree,
    crossed_outputs,
    finite_where_clear,
    logit_ball,
    with_shared_experts,
)
from properties.judgement.layer_calls import (
    LayerCall,
    absorbed,
    moved_to_up,
    norm_remainder,
    turned,
)
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import layer
from properties.strategies.arrays import seeds
from properties.strategies.layer import LayerInputs
from properties.subject import Subject


@specification("LAY-VALUE", source="Eq. 11", needs=("layer",), examples=60, inputs=layer.inputs())
def test_lay_value(subject: Subject, inputs: LayerInputs) -> None:
    """The layer equals y = sum_shared E^sh(x) + W_up RMSNorm(sum_j p_j E_j(W_down x)).

    The experts j are the top_k by sigmoid(W_r x) + b, and p_j are their sigmoids alone, normalised
    to sum 1 and multiplied by routed_scale. Everything before W_up happens in the latent width.

    Hypotheses: finite x (…, D) and parameters, any strides of x, amplitudes 1e-4 to 1e2, N from 1
    to 257, K from 1 to N, S from 0 to 3 with a hidden width of their own, widths all different or
    all equal, training and evaluation, any positive betas and eps. In a part of the cases eps is
    2^80 and the norm's weight 2^40, which makes the norm the identity: nothing before it can hide.
    Some tokens are 0 in a sixth of the cases, and all in a twentieth: padding. In an eighth all
    logits are off by -45, -30, -22 or 30. In float8 the caps' product is at most 100.

    Legal freedoms: any selection that rounding of the logits and of the scores can bring about;
    shared experts one by one or side by side; routed_scale anywhere before the norm; combine
    weights kept in storage; all freedoms of the activation, the experts and the norm.

    If it fails: one of the layer's parts is missing, doubled, out of order or fed something else.
    The other properties of this topic say which. If they hold, the routing inside the layer is not
    the one of Eq. 13: weights from s + b, a selection without b, no normalisation.
    """
    call = LayerCall.of(subject, inputs)
    actual = call.output(subject)
    within(subject, actual, call.legal(subject).nearest(actual), "layer")


@specification("LAY-TINY", source="Eq. 11", needs=("layer",), examples=26, inputs=layer.tiny())
def test_lay_tiny(subject: Subject, inputs: LayerInputs) -> None:
    """Eq. 11 holds for tokens so small that the norm does not normalise: amplitude 1e-2 to 1e-4.

    Near the origin an expert is quadratic, E(z) = O(z^2), so the mean square of the routed sum u
    is far below eps and RMSNorm(u) is about u / sqrt(eps) * weight: linear in u.

    Hypotheses: as in LAY-VALUE, eps of 1e-6 to 1e-2 and the norm left as it is.

    Why: for a positive factor c, RMSNorm(c u) differs from RMSNorm(u) only through eps. At unit
    amplitude a factor of 16 on u moves the output by less than 1e-4, and no test of the whole layer
    sees it; here it multiplies the routed branch by 16.

    If it fails while LAY-VALUE holds: u has the wrong scale (weights not normalised, routed_scale
    twice or not at all, a mean over the experts for a sum), or eps is not inside the root, or is
    added to the sum of squares instead of their mean.
    """
    call = LayerCall.of(subject, inputs)
    actual = call.output(subject)
    within(subject, actual, call.legal(subject).nearest(actual), "layer")


@specification("LAY-SHAPE", source="Eq. 11", needs=("layer",), examples=22, inputs=layer.shaped())
def test_lay_shape(subject: Subject, inputs: LayerInputs) -> None:
    """The layer works on tokens one by one: any leading shape gives what the flattened call gives.

    x may be (D,), (M, D) or (A, B, …, D), contiguous or not; y has the shape and the format of x.

    Hypotheses: as in LAY-VALUE, and at least one token (LAY-EMPTY has none). A call on two axes is
    compared with one on three. Each output is finite where Eq. 11 is.

    Legal freedoms: rounding may depend on the shape (other kernels, other blocks), so the two
    calls may differ by both radii. Tokens with more than one legal routing are not compared.

    If it fails: tokens are mixed up on the way to two axes and back (a transposed batch), or
    statistics are taken over an axis of tokens. A shape or a format that is not that of x ends the
    run as an adapter error.
    """
    call = LayerCall.of(subject, inputs)
    x = call.x
    flat = x.reshape(1, *x.shape) if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    flattened = replace(call, x=np.ascontiguousarray(flat))
    agree(subject, call.judged(subject), flattened.judged(subject), "layer against flattened")


@specification("LAY-EMPTY", source="Eq. 11", needs=("layer",), examples=15, inputs=layer.empty())
def test_lay_empty(subject: Subject, inputs: LayerInputs) -> None:
    """A batch without tokens gives an output without tokens, of the shape and the format of x.

    Hypotheses: x (0, D), (0, B, D) or (A, 0, B, D); everything else as in LAY-VALUE, training and
    evaluation.

    Why: expert-parallel ranks and pipeline stages get no tokens in ordinary runs, and a rank that
    raises there stops all the others.

    If it fails: a reshape whose -1 is ambiguous where there are no elements, a maximum over
    nothing, or a kernel launched on an empty grid.
    """
    call = LayerCall.of(subject, inputs)
    within(subject, call.output(subject), call.legal(subject).nearest(call.x), "layer")


@specification(
    "LAY-ROUTERWIDTH",
    source="Eq. 11",
    needs=("layer",),
    examples=18,
    inputs=layer.often_square(),
    seed=seeds(),
)
def test_lay_routerwidth(subject: Subject, inputs: LayerInputs, seed: int) -> None:
    """The router reads the full-width x: how the latent is laid out is nobody else's business.

    For a signed permutation Q of the latent dimensions, W_down' = Q W_down, with W_gate Q^T and
    W_up Q^T for the gate and up projection of every routed expert, leaves the layer as it is. Where
    ``router_logits`` is offered, it returns W_r x for both. Outputs are finite where Eq. 11 is.

    Hypotheses: as in LAY-VALUE; L = D in half of the cases, where a router can read the latent
    without a complaint from any shape.

    Proof: E_j'(Q z) = E_j(z), since W Q^T Q z = W z. A signed permutation is exact in every format.
    Logits of the latent would change from W_r W_down x to W_r Q W_down x, and with them the choice
    and the weights.

    If it fails: the router is fed the down-projected token. With l = d nothing else tells; with
    l < d such a model does not load.
    """
    call = LayerCall.of(subject, inputs)
    other = replace(call, parameters=turned(call.parameters, seed))
    if "router_logits" in subject.offered:
        for given in (call, other):
            logits = subject.router_logits(given.x, given.parameters)
            within(subject, logits, logit_ball(subject, given.x, given.parameters), "router_logits")
    agree(subject, call.judged(subject), other.judged(subject), "layer with a turned latent")


@specification(
    "LAY-NORMORDER", source="Eq. 11", needs=("layer",), examples=18, inputs=layer.uneven()
)
def test_lay_normorder(subject: Subject, inputs: LayerInputs) -> None:
    """The norm acts once, on the combined sum u: all of a token's routed output shares one factor.

    With silent shared experts y = W_up (u * weight) / rho with rho = sqrt(mean(u^2) + eps). Another
    eps makes another rho and nothing else, so the outputs y and y' of both are parallel:
    y_a y'_b = y_b y'_a for all coordinates a and b. The other eps here is 2^80 (with 2^40 times the
    weight), which makes the norm the identity. Both outputs are finite where Eq. 11 is.

    Hypotheses: K >= 2; shared down projections 0; experts whose outputs differ in size by up to
    2^12. A sum of separately normalised outputs then turns with eps: for a small one each term has
    length 1, for a large one its own length.

    Legal freedoms: those of LAY-VALUE. How large the factor is, is not asked, nor who was chosen: a
    missing norm or a wrong routing passes here.

    If it fails: the norm is applied to each expert's output, or to partial sums (per rank, per
    group of experts, after each slot), before they are added. Training absorbs it; a checkpoint
    trained the other way then answers nonsense.
    """
    call = LayerCall.of(subject, inputs)
    first, second = call.judged(subject), call.with_identity_norm(subject).judged(subject)
    clear = first[1].clear & second[1].clear
    if not clear.any():
        raise UnknownError("no token has one legal routing only")
    for judged in (first, second):
        finite_where_clear(judged, clear, "layer with one eps or another")
    crossed, radius = crossed_outputs(first, second)
    parallel = Ball(np.zeros(crossed.shape), radius, subject.arithmetic)
    within(subject, crossed[clear], parallel[clear], "y_a y'_b - y_b y'_a")


@specification(
    "LAY-UPONCE",
    source="Eq. 11",
    needs=("layer",),
    examples=15,
    inputs=layer.exact_up_projection(),
    seed=seeds(),
)
def test_lay_uponce(subject: Subject, inputs: LayerInputs, seed: int) -> None:
    """W_up acts once, on the normalised sum.

    Where the norm is what it is, factors c of the latent dimensions move freely between its weight
    and W_up: (weight / c, W_up diag(c)) for (weight, W_up) leaves the output as it is. Where the
    norm is the identity (eps 2^80, weight 2^40) one up projection after the combine equals one per
    expert: a layer with latent width D, W_up' = I and W_up W_d for each expert's down projection
    gives the same output. Each output is finite where Eq. 11 is.

    Hypotheses: L <= D; W_up has one entry ±1, ±2 or ±4 per row and c is a power of two, so that all
    of these products are exact; the second form where storage holds the products W_up W_d.

    Proof: diag(c) commutes with diag(weight), and W_up is linear. How far the norm still is from
    the identity is bounded through abs(u) <= routed_scale b1 b2 max_j sum_h abs(W_d); next to the
    radii it is nothing, except in float16, where eps is smaller.

    If it fails in the first form, W_up comes before the norm, so that the norm sees the model
    width; shapes tell only where l < d. In the second, it is applied per expert and again after
    the combine.
    """
    plain = LayerCall.of(subject, replace(inputs, identity_norm=False))
    moved = replace(plain, parameters=moved_to_up(plain.parameters, seed))
    agree(subject, plain.judged(subject), moved.judged(subject), "layer with factors moved to W_up")

    once = LayerCall.of(subject, replace(inputs, identity_norm=True))
    per_expert = replace(once, parameters=absorbed(once.parameters))
    products = per_expert.parameters.experts.down_proj
    if not np.array_equal(subject.round_to_storage(products), products):
        return
    apart = norm_remainder(once)
    what = "one up projection against one per expert"
    agree(subject, once.judged(subject), per_expert.judged(subject), what, apart)


@specification(
    "LAY-SHARED", source="Eq. 11", needs=("layer",), examples=20, inputs=layer.moderate()
)
def test_lay_shared(subject: Subject, inputs: LayerInputs) -> None:
    """Every shared expert sees the full-width x, whole, and its output is added unchanged.

    With W_up = 0 the layer is the sum of E^sh(x), with the routed experts' activation, and 0 where
    S is 0. And S shared experts of width G are one of width S G: hidden units may be dealt to
    shared experts at will.

    Hypotheses: as in LAY-VALUE, at amplitudes 0.1 to 100, where SiTU and SwiGLU differ.

    Proof: W_d situ_glu(W_g x, W_u x) is a sum over hidden units, and so is the sum of experts.

    Legal freedoms: those of LAY-VALUE; the order in which the parts are added.

    If it fails: shared experts are missing, counted twice, only the first or all but the last are
    added, they are fed the latent, weighted like routed ones, scaled by their number or by
    routed_scale, normed with the routed sum, or keep the SiLU of the model they were taken from.
    """
    call = LayerCall.of(subject, inputs)
    silent = np.zeros_like(call.parameters.routed_expert_up_proj)
    alone = replace(call, parameters=replace(call.parameters, routed_expert_up_proj=silent))
    actual, legal = alone.judged(subject)
    within(subject, actual, legal.nearest(actual), "layer with W_up = 0")

    count, width, _ = call.parameters.shared_experts.gate_proj.shape
    if count == 0:
        return
    dealt = with_shared_experts(call.parameters, 1 if count > 1 else width)
    regrouped = replace(call, parameters=dealt)
    what = "layer with regrouped shared experts"
    agree(subject, call.judged(subject), regrouped.judged(subject), what)
