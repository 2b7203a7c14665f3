"""Where numbers decide: scales that the norm undoes, fine biases, long sums, many experts.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width of a
routed expert.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import within
from properties.judgement.layer import agree, logit_ball
from properties.judgement.layer_calls import LayerCall, scaled_experts, times
from properties.registry import specification
from properties.strategies import layer_seeded
from properties.strategies.layer import LayerInputs
from properties.strategies.layer_seeded import LongInputs, ScaleInputs, WideInputs
from properties.subject import Subject


@specification(
    "LAY-SCALE",
    source="Eq. 11",
    needs=("layer",),
    examples=16,
    inputs=layer_seeded.scales(),
)
def test_lay_scale(subject: Subject, inputs: ScaleInputs) -> None:
    """A common factor c of the routed experts meets the norm as an eps smaller by c^2, and no more.

    Three layers agree: c W_d for every expert's down projection; c routed_scale; and eps / c^2 with
    the sign of c on the norm's weight. Where the norm is the identity and the shared experts are
    silent, the first one's output is c times that of the layer with W_d. Each is finite where
    Eq. 11 is.

    Hypotheses: as in LAY-VALUE, c = ±2, ±8 and ±64, at amplitudes where eps decides and where it
    does not; for the negative ones routed_scale is left alone.

    Proof: u is linear in W_d, and c u / sqrt(c^2 mean(u^2) + eps) equals
    sign(c) u / sqrt(mean(u^2) + eps / c^2). Multiples of powers of two are exact. How far an
    identity norm is from one is bounded as in LAY-UPONCE.

    Legal freedoms: those of LAY-VALUE, for each of the calls; tokens with more than one legal
    routing are not compared.

    If it fails: outputs of experts are clipped, or quantised with a fixed step, the norm's eps is
    not the configured one, or routed_scale acts elsewhere (after the norm, on shared experts).
    """
    call = LayerCall.of(subject, replace(inputs.layer, identity_norm=False), abs(inputs.factor))
    factor, sign = inputs.factor, float(np.sign(inputs.factor))
    config, parameters = call.config, call.parameters
    scaled = replace(call, parameters=scaled_experts(parameters, factor))
    weight = sign * parameters.routed_expert_norm
    smaller = replace(
        call,
        parameters=replace(parameters, routed_expert_norm=weight),
        config=replace(config, norm_eps=config.norm_eps / factor**2),
    )
    first = scaled.judged(subject)
    agree(subject, first, smaller.judged(subject), "layer with c W_d against eps / c^2")
    if factor > 0:
        weighted = replace(call, config=replace(config, routed_scale=factor * config.routed_scale))
        agree(subject, first, weighted.judged(subject), "layer with c W_d against c routed_scale")

    silent = replace(parameters.shared_experts, down_proj=0.0 * parameters.shared_experts.down_proj)
    plain = replace(call, parameters=replace(parameters, shared_experts=silent))
    plain = plain.with_identity_norm(subject)
    multiple = replace(plain, parameters=scaled_experts(plain.parameters, factor))
    one, apart = times(factor, plain, subject)
    what = "routed branch with c W_d against c times it"
    agree(subject, multiple.judged(subject), one, what, apart)


@specification(
    "LAY-SMALLGAP",
    source="Eq. 13",
    needs=("layer",),
    examples=20,
    inputs=layer_seeded.fine_biases(),
)
def test_lay_smallgap(subject: Subject, inputs: LayerInputs) -> None:
    """Inside the layer, too, selection happens in the routing format: biases keep all their digits.

    The layer equals Eq. 11 for biases that differ by 2^-12 next to a common offset of 34.5, 0.75 or
    -3.25, with logits of about 2^-10, so that biases and scores decide together.

    Hypotheses: as in LAY-VALUE, N from 4 to 16, K from 1 to 3, amplitudes 0.1 to 10. Experts differ
    enough for the output to tell who was chosen.

    Legal freedoms: those of LAY-VALUE. A routing format that cannot tell two biases apart may take
    either.

    If it fails: the bias, the scores or their sum pass through bfloat16 on the way: a module cast
    as a whole, autocast around the router, a bias kept with the other parameters. In bfloat16
    numbers near 34.5 are 0.25 apart, so that all experts tie: balancing stops having an effect, and
    the lowest ids get every token.
    """
    call = LayerCall.of(subject, inputs)
    actual = call.output(subject)
    within(subject, actual, call.legal(subject).nearest(actual), "layer")


@specification(
    "LAY-WIDE", source="Eq. 11", needs=("layer",), examples=20, inputs=layer_seeded.wide()
)
def test_lay_wide(subject: Subject, inputs: WideInputs) -> None:
    """Eq. 11 holds for many experts per token and for widths beyond one vector register.

    Hypotheses: as in LAY-VALUE, 8 < K < N <= 33, widths from 1 to 48, all different or all equal.

    Legal freedoms: those of LAY-VALUE.

    If it fails while LAY-VALUE holds: a kernel that keeps eight experts per token in registers, a
    loop over full blocks of a width without its remainder, a sort that is stable only for few
    elements.
    """
    call = LayerCall.of(subject, inputs.layer)
    actual = call.output(subject)
    within(subject, actual, call.legal(subject).nearest(actual), "layer")


@specification(
    "LAY-MIXED",
    source="Eq. 11",
    needs=("layer",),
    examples=24,
    inputs=layer_seeded.long_sums(),
)
def test_lay_mixed(subject: Subject, inputs: LongInputs) -> None:
    """Long sums are accumulated in the declared format, whatever the operands are stored in.

    One of D, L, H and the shared experts' hidden width is 1024, or 2^p / 8 in an accumulate format
    of p < 13 bits, whose radius would be as large as the sum. Every term of every sum is positive
    and of about one size. The layer equals Eq. 11 within the radius of the declared formats.

    Why: a running sum in a format of p bits stops growing at 2^p equal terms: 256 in bfloat16,
    where half of such a sum is missing. With float32 accumulation the same layer in bfloat16 loses
    a few times 2^-9, once per stage. Terms of both signs would hide that: there the radius is about
    as large as the sum.

    Hypotheses: bfloat16 or any other storage; N of 2 or 3. Where H is long the norm is the
    identity, since it would undo an error which all of u shares.

    Legal freedoms: those of LAY-VALUE; blocks and trees of partial sums in the accumulate format.

    If it fails: a matrix product, the mean square of the norm or the combine accumulates in
    storage: a kernel without a wider accumulator, or split over blocks whose partial results are
    rounded to storage. It shows at real widths only, as a loss that will not go below some floor.
    """
    call = LayerCall.of(subject, inputs.layer(subject.arithmetic.accumulated.roundoff))
    actual = call.output(subject)
    within(subject, actual, call.legal(subject).nearest(actual), f"layer with {inputs.width} long")


@specification(
    "LAY-LOGITS",
    source="Eq. 11, 13",
    needs=("router_logits",),
    examples=36,
    inputs=layer_seeded.routers(),
)
def test_lay_logits(subject: Subject, inputs: LayerInputs) -> None:
    """``router_logits`` returns W_r x, for x behind any leading axes or without tokens.

    Hypotheses: x (…, D) of amplitude 1e-4 to 1e2 and any strides, N from 1 to 257, D up to 40 (and
    mostly L), logits up to some 1e4. In half of the cases one of the sizes is longer than a
    tile: up to 1,030 tokens, 1,030 experts or 1,100 dimensions, or all about 140.

    Legal freedoms: the order of the sum; logits in storage or in the routing format.

    If it fails: the logits are those of the latent, are scaled, clipped or carry the bias already,
    or are those of another expert (a transposed weight, where N = D); or a tile of tokens, experts
    or of the sum is left out, mostly the last one, which is not full.
    """
    call = LayerCall.of(subject, inputs)
    logits = subject.router_logits(call.x, call.parameters)
    within(subject, logits, logit_ball(subject, call.x, call.parameters), "router_logits")
