"""Gradients of the whole layer, Eq. 11: through experts, norm, combine weights and router.

Routing happens inside the call and is never seen: :mod:`properties.judgement.layer_gradient` says
how gradients are judged all the same.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require, within
from properties.errors import NotOfferedError
from properties.judgement.layer_calls import LayerCall, cotangent_of
from properties.judgement.layer_gradient import (
    legal_gradients,
    named_arrays,
    parameter_gradients,
    possibly_chosen,
    selections_of,
    silenced,
)
from properties.registry import specification
from properties.strategies import layer_seeded
from properties.strategies.layer_seeded import GradientInputs
from properties.subject import Subject


@specification(
    "LAY-GRAD",
    source="Eq. 11",
    needs=("layer_vjp",),
    examples=50,
    inputs=layer_seeded.gradients(),
)
def test_lay_grad(subject: Subject, inputs: GradientInputs) -> None:
    """``layer_vjp`` returns the gradients of sum(C * layer(x)): of x and of every parameter.

    With z = W_down x, v = RMSNorm(u), rho = sqrt(mean(u^2) + eps), w the scaled combine weights and
    primes for gradients, at the selection that the forward pass made:

        v' = C W_up,   W_up' = C^T v,   norm' = sum of v' u / rho,
        u' = (a - (u / rho) mean(a u / rho)) / rho  with  a = v' norm,
        (z', w', experts') those of the weighted sum at u',   p' = routed_scale w',
        logits' = p_j sigmoid(-logit_j) (p'_j - sum_r p'_r p_r) on the chosen j, 0 elsewhere,
        W_r' = logits'^T x,   W_down' = z'^T x,
        x' = logits' W_r + z' W_down + the sum of the shared experts' gradients at C

    The selection bias gets no gradient: zero exactly, or None. No gradient has other terms: the
    choice is locally constant.

    Hypotheses: those of LAY-VALUE with x behind any number of leading axes, batches without tokens,
    cotangents of any size and strides, 0 for some tokens. A third of the cases is of amplitude 1e-2
    to 1e-4, where eps carries rho and an eps left out of the backward pass multiplies u'; another
    part has an identity norm.
    Down projections are 0 for all experts in a tenth of the cases and for some in another, as where
    training starts; in a seventh, entries of the norm's weight are 0 or 2^-20 of what they are.

    Legal freedoms: those of LAY-VALUE; the terms of x' are added in any order and each partial sum
    is stored, and so are the K terms of z'; cast of any gradient to storage between two steps.
    Where a token has several legal selections, its x' may be that of any one, and a second call has
    a cotangent of 0 for it: gradients of parameters, which are sums over tokens, then follow the
    clear ones.

    If it fails, training goes wrong where no forward test looks: a norm differentiated as if rho
    were constant, a router that does not learn since its weights were detached, shared experts
    whose gradient is lost in a custom backward pass, a routed_scale applied forward only, a bias
    that an optimiser moves against the balancing. In float16 a norm written with ``rsqrt`` fails,
    too: autograd cubes rsqrt(mean(u^2) + eps), which overflows where that mean is below 6.2e-4.
    """
    call = LayerCall.of(subject, inputs.layer)
    cotangent = cotangent_of(subject, inputs.cotangent)
    selections = selections_of(subject, call)
    d_x, gradients = call.gradients(subject, cotangent)
    legal, expected = legal_gradients(subject, call, cotangent, selections)
    within(subject, d_x, legal.nearest(d_x), "d_x")

    if not selections.clear.all():
        cotangent = silenced(cotangent, selections)
        _, gradients = call.gradients(subject, cotangent)
        expected = parameter_gradients(subject, call, cotangent, selections)
    for (name, actual), (_, ball) in zip(
        named_arrays(gradients), named_arrays(expected), strict=True
    ):
        within(subject, actual, ball, f"d_{name}")


@specification(
    "LAY-SPARSE",
    source="Eq. 11, 13",
    needs=("layer_vjp",),
    examples=24,
    inputs=layer_seeded.sparse(),
)
def test_lay_sparse(subject: Subject, inputs: GradientInputs) -> None:
    """Only chosen experts get gradient: every other one gets zero, in every bit of its parameters.

    That holds for the three projections of an expert and for its row of the router's weight. It is
    chosen if any legal selection of a token with a cotangent names it.

    Hypotheses: K < N, any cotangent with rows of 0 among it; biases so far apart that most tokens
    have one legal selection.

    Proof: the output of a token does not depend on the parameters of an expert it was not sent to,
    nor on that expert's logit, as long as the selection stays. A product with 0 and a sum of such
    products are exact in every format.

    Legal freedoms: zeros of either sign.

    If it fails: an optimiser with momentum or weight decay by gradient norm moves experts that saw
    no token; gradients are scattered to a neighbour, or the weights are renormalised over all N
    experts, so that the router pushes down those it left out. Rounding-sized values here are
    uninitialised memory or a softmax over everybody.
    """
    call = LayerCall.of(subject, inputs.layer)
    cotangent = cotangent_of(subject, inputs.cotangent)
    selections = selections_of(subject, call)
    _, gradients = call.gradients(subject, cotangent)
    idle = ~possibly_chosen(selections, cotangent, len(call.parameters.gate_weight))
    for name, gradient in named_arrays(gradients):
        if name == "gate_weight" or name.startswith("experts."):
            touched = gradient.reshape(len(idle), -1).any(axis=1) & idle
            require(
                ~touched,
                f"expert {np.argmax(touched)} serves no token, but d_{name} is not 0 for it",
            )


@specification("LAY-ALIVE", source="Eq. 11, 13", needs=("layer_vjp",))
def test_lay_alive(subject: Subject) -> None:
    """At a pinned generic input with 2 <= K < N every parameter but the selection bias learns.

    The gradient of each parameter array has elements other than 0, and so has d_x for each token.

    Hypotheses: five tokens, eight experts of which each token chooses three, all widths different;
    and K >= 2, since for K = 1 the normalised weight is s / (s + epsilon), hence 1, and the router
    gets nothing. In float32, bfloat16 and float16, the latter two in memory or in every operation,
    each token has one legal selection, and the reference's gradient is off 0 by more than a radius
    somewhere in each array, and in d_x for each token: there the implementation's may not be 0.
    Formats that are too coarse for that, as float8, are not judged.

    Legal freedoms: any value but 0 passes here. LAY-GRAD judges values.

    If it fails: a detached tensor, a ``no_grad`` that reaches too far, a parameter that was copied
    before use. The loss still falls, since everything else learns.
    """
    inputs = layer_seeded.generic()
    call = LayerCall.of(subject, inputs.layer)
    cotangent = cotangent_of(subject, inputs.cotangent)
    selections = selections_of(subject, call)
    if not selections.clear.all():
        raise NotOfferedError("the declared formats are too coarse to tell who is chosen")
    legal, d_parameters = legal_gradients(subject, call, cotangent, selections)
    expected_x, expected = legal.single(), dict(named_arrays(d_parameters))
    if not (np.abs(expected_x.value) > expected_x.radius).any(axis=1).all():
        raise NotOfferedError("the declared formats are too coarse: d_x could be 0 for some token")
    del expected["e_score_correction_bias"]
    d_x, gradients = call.gradients(subject, cotangent)
    require(d_x.any(axis=1), "d_x is 0 for some token")
    for name, actual in named_arrays(gradients):
        if name in expected:
            told = np.abs(expected[name].value) > expected[name].radius
            if not told.any():
                raise NotOfferedError(f"the declared formats are too coarse: d_{name} could be 0")
            require(actual[told] != 0.0, f"d_{name} is 0 where it cannot be")
