"""The whole layer, Eq. 11: y = sum_shared E^sh(x) + W_up RMSNorm(u), u = sum_j p_j E_j(W_down x).

Routing happens inside the call and is never seen. Every statement is therefore judged on each
routing that is legal for the declared formats (:mod:`properties.judgement.layer`), and comparisons
of two calls on the tokens for which only one routing is.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width of a
routed expert, S shared experts, G hidden width of a shared expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.checks import undecidable, within
from properties.judgement.layer import (
    LegalLayer,
    agree,
    legal_layer,
    logit_ball,
    on_arrays,
    with_shared_experts,
)
from properties.protocol import Array, LayerConfig, LayerParameters, Routing
from properties.registry import specification
from properties.rounding import Arithmetic, Ball
from properties.strategies import layer
from properties.strategies.arrays import seeds
from properties.strategies.layer import LayerInputs
from properties.subject import Subject
from reference_numpy.layer import routed_sum

FLOAT64 = Arithmetic("float64", "float64", "float64")


@specification("LAY-VALUE", source="Eq. 11", needs=("layer",), examples=80, inputs=layer.inputs())
def test_lay_value(subject: Subject, inputs: LayerInputs) -> None:
    """The layer equals y = sum_shared E^sh(x) + W_up RMSNorm(sum_j p_j E_j(W_down x)).

    The experts j are the top_k by sigmoid(W_r x) + b, and p_j are their sigmoids alone, normalised
    to sum 1 and multiplied by routed_scale. Everything before W_up happens in the latent width.

    Hypotheses: finite x (…, D) and parameters, any strides of x, amplitudes 1e-4 to 1e2, N from 1
    to 257, K from 1 to N, S from 1 to 3 with a hidden width of their own, widths all different or
    all equal, training and evaluation, any positive betas and eps. In a part of the cases eps is
    2^40 and the norm's weight 2^20, which makes the norm the identity: nothing before it can hide.

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


@specification("LAY-TINY", source="Eq. 11", needs=("layer",), examples=40, inputs=layer.tiny())
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


@specification("LAY-SHAPE", source="Eq. 11", needs=("layer",), examples=50, inputs=layer.shaped())
def test_lay_shape(subject: Subject, inputs: LayerInputs) -> None:
    """The layer works on tokens one by one: any leading shape gives what the flattened call gives.

    x may be (D,), (M, D) or (A, B, …, D), contiguous or not; y has the shape and the format of x.

    Hypotheses: as in LAY-VALUE, and at least one token (LAY-EMPTY has none). A call on two axes is
    compared with one on three.

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
    examples=40,
    inputs=layer.often_square(),
    seed=seeds(),
)
def test_lay_routerwidth(subject: Subject, inputs: LayerInputs, seed: int) -> None:
    """The router reads the full-width x: how the latent is laid out is nobody else's business.

    For a signed permutation Q of the latent dimensions, W_down' = Q W_down, with W_gate Q^T and
    W_up Q^T for the gate and up projection of every routed expert, leaves the layer as it is. Where
    ``router_logits`` is offered, it returns W_r x for both.

    Hypotheses: as in LAY-VALUE; L = D in half of the cases, where a router can read the latent
    without a complaint from any shape.

    Proof: E_j'(Q z) = E_j(z), since W Q^T Q z = W z. A signed permutation is exact in every format.
    Logits of the latent would change from W_r W_down x to W_r Q W_down x, and with them the choice
    and the weights.

    If it fails: the router is fed the down-projected token. With l = d nothing else tells; with
    l < d such a model does not load.
    """
    call = LayerCall.of(subject, inputs)
    turned = replace(call, parameters=_turned(call.parameters, seed))
    if "router_logits" in subject.offered:
        for given in (call, turned):
            logits = subject.router_logits(given.x, given.parameters)
            within(subject, logits, logit_ball(subject, given.x, given.parameters), "router_logits")
    agree(subject, call.judged(subject), turned.judged(subject), "layer with a turned latent")


@specification(
    "LAY-NORMORDER", source="Eq. 11", needs=("layer",), examples=40, inputs=layer.uneven()
)
def test_lay_normorder(subject: Subject, inputs: LayerInputs) -> None:
    """The norm acts once, on the combined sum u: all of a token's routed output shares one factor.

    With silent shared experts y = W_up (u / rho * weight), so y is a multiple of
    v = W_up (u * weight): y_a v_b = y_b v_a for all coordinates a and b, whatever rho is.

    Hypotheses: K >= 2; shared down projections 0; experts whose outputs differ in size by up to
    2^12. A sum of separately normalised outputs then points elsewhere: each term has length 1.

    Legal freedoms: those of LAY-VALUE. How large the factor is, is not asked: a missing norm, or
    another eps, passes here.

    If it fails: the norm is applied to each expert's output, or to partial sums (per rank, per
    group of experts, after each slot), before they are added. Training absorbs it; a checkpoint
    trained the other way then answers nonsense.
    """
    call = LayerCall.of(subject, inputs)
    y, legal = call.judged(subject)
    width = y.shape[-1]
    clear = legal.clear
    if not clear.any():
        raise undecidable("no token has one legal routing only")
    radius = legal.single().radius[clear]
    v = call.before_factor(legal)[clear]
    y_ball: Any = Ball.exact(y.reshape(-1, width)[clear], FLOAT64)
    pivot = np.argmax(np.abs(v.value), axis=1)[:, None]
    v_pivot: Any = np.take_along_axis(v, pivot, axis=1)
    crossed = y_ball * v_pivot - np.take_along_axis(y_ball, pivot, axis=1) * v
    size, size_pivot = np.abs(v.value) + v.radius, np.abs(v_pivot.value) + v_pivot.radius
    with np.errstate(invalid="ignore"):
        allowed = radius * size_pivot + np.take_along_axis(radius, pivot, axis=1) * size
    allowed = np.where(np.isnan(allowed), np.inf, allowed) + crossed.radius
    expected = Ball(np.zeros(crossed.shape), allowed, FLOAT64)
    within(subject, crossed.value, expected, "y_a v_b - y_b v_a")


@specification(
    "LAY-UPONCE",
    source="Eq. 11",
    needs=("layer",),
    examples=30,
    inputs=layer.exact_up_projection(),
    seed=seeds(),
)
def test_lay_uponce(subject: Subject, inputs: LayerInputs, seed: int) -> None:
    """W_up acts once, on the normalised sum.

    Where the norm is the identity (eps 2^40, weight 2^20) one up projection after the combine
    equals one per expert: a layer with latent width D, W_up' = I and W_up W_d for each expert's
    down projection gives the same output. Where the norm is what it is, factors c of the latent
    dimensions move freely between its weight and W_up: (weight / c, W_up diag(c)) for
    (weight, W_up) leaves the output as it is.

    Hypotheses: L <= D; W_up has one entry ±1, ±2 or ±4 per row and c is a power of two, so that all
    of these products are exact.

    Proof: W_up is linear, and diag(c) commutes with diag(weight). What the norm is still away from
    the identity, a share of mean(u^2) / 2^41, is taken from the reference.

    If the first fails: the up projection is applied per expert and again after the combine. If the
    second fails: it comes before the norm, so that the norm sees the model width; shapes tell only
    where l < d.
    """
    plain = LayerCall.of(subject, replace(inputs, identity_norm=False))
    moved = replace(plain, parameters=_moved_to_up(plain.parameters, seed))
    agree(subject, plain.judged(subject), moved.judged(subject), "layer with factors moved to W_up")

    once = LayerCall.of(subject, replace(inputs, identity_norm=True))
    per_expert = replace(once, parameters=_absorbed(once.parameters))
    first, second = once.judged(subject), per_expert.judged(subject)
    with np.errstate(invalid="ignore"):
        apart = first[1].single().value - second[1].single().value
    agree(subject, first, second, "one up projection against one per expert", apart)


@specification(
    "LAY-SHARED", source="Eq. 11", needs=("layer",), examples=40, inputs=layer.moderate()
)
def test_lay_shared(subject: Subject, inputs: LayerInputs) -> None:
    """Every shared expert sees the full-width x, whole, and its output is added unchanged.

    With W_up = 0 the layer is the sum of E^sh(x), with the routed experts' activation. And S shared
    experts of width G are one of width S G: hidden units may be dealt to shared experts at will.

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
    dealt = with_shared_experts(call.parameters, 1 if count > 1 else width)
    regrouped = replace(call, parameters=dealt)
    what = "layer with regrouped shared experts"
    agree(subject, call.judged(subject), regrouped.judged(subject), what)


# Calls -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerCall:
    """Arguments of a call, in values that the subject's formats hold."""

    x: Array
    parameters: LayerParameters
    config: LayerConfig
    training: bool

    @classmethod
    def of(cls, subject: Subject, inputs: LayerInputs) -> LayerCall:
        """The drawn inputs, rounded to the subject's formats."""
        parameters, config = inputs.parameters, inputs.config
        if inputs.identity_norm:
            exponent = _identity_exponent(subject)
            norm = np.full_like(parameters.routed_expert_norm, 2.0**exponent)
            parameters = replace(parameters, routed_expert_norm=norm)
            config = replace(config, norm_eps=4.0**exponent)
        bias = subject.round_to_routing(parameters.e_score_correction_bias)
        rounded = on_arrays(subject.round_to_storage, parameters)
        rounded = replace(rounded, e_score_correction_bias=bias)
        return cls(subject.round_to_storage(inputs.x), rounded, config, inputs.training)

    def output(self, subject: Subject) -> Array:
        """What the implementation returns."""
        return subject.layer(self.x, self.parameters, config=self.config, training=self.training)

    def legal(self, subject: Subject) -> LegalLayer:
        """What it may return."""
        return legal_layer(subject, self.x, self.parameters, self.config)

    def judged(self, subject: Subject) -> tuple[Array, LegalLayer]:
        """Both."""
        return self.output(subject), self.legal(subject)

    def before_factor(self, legal: LegalLayer) -> Any:
        """W_up (u * weight) (M, D), a float64 ball, for each token's first legal selection."""
        balls = on_arrays(lambda array: Ball.exact(array, FLOAT64), self.parameters)
        x_MD: Any = Ball.exact(self.x.reshape(-1, self.x.shape[-1]), FLOAT64)
        s_MN = reference.scores(reference.router_logits(x_MD, balls.gate_weight))
        ids_MK = legal.selections.expert_ids[legal.selections.first]
        routing = Routing(ids_MK, reference.combine_weights(s_MN, ids_MK))
        u_ML = routed_sum(x_MD, balls, routing, config=self.config)
        up_proj_LD = np.swapaxes(balls.routed_expert_up_proj, -1, -2)
        return np.matmul(u_ML * balls.routed_expert_norm, up_proj_LD)


def _identity_exponent(subject: Subject) -> int:
    """The e for which weight 2^e and eps 4^e fit the formats; 20 but for the narrowest."""
    arithmetic = subject.arithmetic
    computed = min(arithmetic.computed.largest, arithmetic.accumulated.largest)
    fits = min(np.log2(arithmetic.stored.largest), np.log2(computed) / 2)
    return min(layer.IDENTITY, int(fits) - 1)


def _turned(parameters: LayerParameters, seed: int) -> LayerParameters:
    """The layer behind a signed permutation of its latent dimensions."""
    rng = np.random.default_rng(seed)
    latent = len(parameters.routed_expert_down_proj)
    order, sign = rng.permutation(latent), rng.choice([-1.0, 1.0], latent)
    experts = parameters.experts
    return replace(
        parameters,
        routed_expert_down_proj=sign[:, None] * parameters.routed_expert_down_proj[order],
        experts=replace(
            experts,
            gate_proj=experts.gate_proj[..., order] * sign,
            up_proj=experts.up_proj[..., order] * sign,
        ),
    )


def _moved_to_up(parameters: LayerParameters, seed: int) -> LayerParameters:
    """The layer with powers of two taken from the norm's weight into the up projection."""
    norm_L = parameters.routed_expert_norm
    factor_L = 2.0 ** np.random.default_rng(seed).integers(0, 4, norm_L.shape)
    return replace(
        parameters,
        routed_expert_norm=norm_L / factor_L,
        routed_expert_up_proj=parameters.routed_expert_up_proj * factor_L,
    )


def _absorbed(parameters: LayerParameters) -> LayerParameters:
    """A layer of latent width D whose experts contain the up projection.

    Latent dimensions beyond L are fed and read zeros. The norm must be the identity.
    """
    up_DL, experts = parameters.routed_expert_up_proj, parameters.experts
    model, latent = up_DL.shape
    more = (0, model - latent)
    norm_D = np.full(model, parameters.routed_expert_norm[0])
    return replace(
        parameters,
        routed_expert_down_proj=np.pad(parameters.routed_expert_down_proj, (more, (0, 0))),
        experts=replace(
            experts,
            gate_proj=np.pad(experts.gate_proj, ((0, 0), (0, 0), more)),
            up_proj=np.pad(experts.up_proj, ((0, 0), (0, 0), more)),
            down_proj=np.matmul(up_DL, experts.down_proj),
        ),
        routed_expert_norm=norm_D,
        routed_expert_up_proj=np.eye(model),
    )
