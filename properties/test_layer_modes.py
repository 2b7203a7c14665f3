"""What the layer must not depend on: its mode, its history, and tokens that are lost.

Legend: M tokens, N routed experts, D model width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import within
from properties.judgement.layer import agree, logit_ball
from properties.judgement.layer_calls import LayerCall, cotangent_of
from properties.judgement.layer_gradient import legal_gradients, selections_of
from properties.registry import specification
from properties.strategies import layer_seeded
from properties.strategies.layer import LayerInputs
from properties.strategies.layer_seeded import NanInputs
from properties.subject import Subject


@specification(
    "LAY-TRAINEVAL",
    source="Eq. 11, 14",
    needs=("layer",),
    examples=20,
    inputs=layer_seeded.modes(),
)
def test_lay_traineval(subject: Subject, inputs: LayerInputs) -> None:
    """Training and evaluation give the same output for the same input and the same bias.

    Three calls are compared: in evaluation, in training, and in evaluation once more. The new bias
    of Eq. 14 acts on the next batch only, and it is frozen at inference; nothing else tells the
    modes apart. The layer is a function of its arguments: a call in training leaves no trace.
    Each output is finite where Eq. 11 is.

    Hypotheses: as in LAY-VALUE, with several tokens, N >= 3 and biases that matter.

    Legal freedoms: other kernels in training (activations are kept), hence rounding twice: outputs
    may differ by both radii. Tokens with more than one legal routing are not compared.

    If it fails: noise on logits or a dropped token in training, a capacity limit, an update inside
    the forward pass, evaluation with another bias (an average, or none), a cache that survives the
    call. Evaluation scores then are those of a model that was never trained.
    """
    training = replace(LayerCall.of(subject, inputs), training=True)
    evaluation = replace(training, training=False)
    legal = training.legal(subject)
    before = evaluation.output(subject)
    during, after = training.output(subject), evaluation.output(subject)
    agree(subject, (during, legal), (before, legal), "training against evaluation")
    agree(subject, (after, legal), (before, legal), "evaluation after training against before")


@specification(
    "LAY-NAN",
    source="Eq. 11",
    needs=("layer",),
    examples=18,
    inputs=layer_seeded.with_lost_tokens(),
)
def test_lay_nan(subject: Subject, inputs: NanInputs) -> None:
    """A token of NaN or infinities spoils no other one: the rest is what it is without it.

    Outputs of the other tokens, their gradients where ``layer_vjp`` is offered, and their logits
    where ``router_logits`` is, equal the reference's of a batch without the lost ones, within
    radius.

    Hypotheses: two and more tokens, at least one lost and one not; finite parameters; training and
    evaluation.

    Legal freedoms: anything at all for the lost tokens themselves (a NaN, zeros, whatever experts),
    and for gradients of parameters, which add up all tokens.

    If it fails: tokens are combined by products with one-hot matrices, where 0 times NaN is NaN; a
    statistic runs over the batch (one scale for all tokens, one maximum); ids of a NaN row are out
    of range and shift the others. One bad sample or an overflow in float16 then takes the whole
    batch with it, and padding need not be zero.
    """
    call = LayerCall.of(subject, inputs.layer)
    value = np.nan if subject.arithmetic.stored.overflow_is_nan else inputs.value
    spoiled = replace(call, x=np.where(inputs.lost[:, None], value, call.x))
    others = ~inputs.lost
    kept = replace(call, x=call.x[others])
    actual = spoiled.output(subject)[others]
    within(subject, actual, kept.legal(subject).nearest(actual), "layer beside lost tokens")
    if "router_logits" in subject.offered:
        logits = subject.router_logits(spoiled.x, spoiled.parameters)[others]
        expected = logit_ball(subject, kept.x, kept.parameters)
        within(subject, logits, expected, "router_logits beside lost tokens")
    if "layer_vjp" in subject.offered:
        cotangent = cotangent_of(subject, inputs.cotangent)
        d_x = spoiled.gradients(subject, cotangent)[0][others]
        selections = selections_of(subject, kept)
        legal, _ = legal_gradients(subject, kept, cotangent[others], selections)
        within(subject, d_x, legal.nearest(d_x), "d_x beside lost tokens")
