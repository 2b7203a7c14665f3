"""The gradient of the combine weights: to the chosen scores, through the sum, never to the bias.

With p_j = s_j / (S + epsilon), S the sum of the chosen scores, and a cotangent c of the weights,

    d_logit_j = p_j (1 - s_j) (c_j - sum_a c_a p_a)      for chosen j, and 0 for every other,

and with K = 1 and ``top1_renormalised`` off, c_j s_j (1 - s_j).

Legend: M tokens, N routed experts, K top_k; s = sigmoid(logits), b the selection bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.checks import require, within
from properties.judgement.routing import on_grid, require_ids, same_experts, scored, tokens, weighed
from properties.judgement.routing_gradient import (
    few_digits,
    gradient_ball,
    held,
    require_gradient,
)
from properties.protocol import Array
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import routing_extremes, routing_gradient
from properties.strategies.arrays import seeds
from properties.strategies.routing_extremes import PoisonedInputs
from properties.strategies.routing_gradient import GradientInputs, PairInputs
from properties.subject import Routed, Subject


@specification(
    "RTR-GRAD",
    source="Eq. 13",
    needs=("route", "route_vjp"),
    examples=140,
    inputs=routing_gradient.inputs(),
)
def test_rtr_grad(subject: Subject, inputs: GradientInputs) -> None:
    """Gradients reach the chosen logits, as the quotient rule has it; none the bias or another.

    d_logit_j = p_j (1 - s_j) (c_j - sum_a c_a p_a) for chosen j, within radius; exactly 0 for
    every expert that was not chosen, and exactly 0 for b.

    Hypotheses: finite logits of any size, b finite or -inf, M from 0 to 2051, and to 519 with 256
    to 896 experts, N as for RTR-RELABEL, cotangents of any pattern, from 1e-9 to 1e8 in size; a
    quarter of the cases have a stated margin at the cutoff, ties included. Proof: quotient rule;
    the set is locally constant, so neither b nor a score outside has a derivative. Where sets
    change the weights jump, and the gradient is that of the set that was chosen.

    Legal freedoms: s' taken as s (1 - s) with the rounded s, whose difference cancels for large
    logits, or accurately; any order of the sums; d_logits rounded to storage once; where a tie has
    two right answers, either, but the one that ``route`` gives for the same arguments: the
    cotangent comes slot by slot, so it has a meaning for those slots only.

    How it is checked: the VJP of the reference at the implementation's own ids, on balls.

    If it fails: the router learns from another function than the layer computes. Seen in practice:
    the normalising sum detached, or the division left out of the backward pass; a straight-through
    softmax over all experts; the bias a parameter that an optimiser moves; weights computed as
    s * (1 / S), whose automatic derivative has 1 / S^2: infinite in float32 once S is below 4e-20.
    """
    logits, bias = on_grid(subject, inputs.routing)
    cotangent = held(subject, inputs.cotangent)
    routed = subject.route(logits, bias, top_k=inputs.routing.top_k)
    require_ids(routed, len(bias))
    d_logits = _gradient(subject, logits, bias, cotangent)
    require_gradient(subject, logits, routed, cotangent, d_logits, "d_logits")


def _gradient(subject: Subject, logits: Array, bias: Array, cotangent: Array) -> Array:
    """d_logits; the gradient of the bias is exactly 0, whatever the input."""
    d_logits, d_bias = subject.route_vjp(logits, bias, cotangent, top_k=cotangent.shape[1])
    worst = int(np.argmax(d_bias != 0.0))
    require(d_bias == 0.0, f"the bias of expert {worst} has the gradient {d_bias[worst]!s}, not 0")
    return d_logits


@specification(
    "RTR-GRAD-FLAT",
    source="Eq. 13",
    needs=("route", "route_vjp"),
    examples=50,
    inputs=routing_gradient.flat(),
)
def test_rtr_grad_flat(subject: Subject, inputs: GradientInputs) -> None:
    """A cotangent that is the same in all slots has next to no gradient: the weights' sum is fixed.

    The sum of the weights is S / (S + epsilon), so d_logit_j = c p_j (1 - s_j) epsilon / (S +
    epsilon): nothing but rounding, unless S is near epsilon. Without normalisation (K = 1,
    ``top1_renormalised`` off) it is c s (1 - s).

    Hypotheses: as for RTR-GRAD. The cotangent has a stride of 0, over slots or over tokens, too, as
    that of a sum has. Proof: sum_a c p_a = c S / (S + epsilon) in the formula above.

    Legal freedoms: those of RTR-GRAD. c - sum_a c p_a cancels, so what is left of it may be a few
    roundoffs of c, and the radius says so.

    If it fails: the normalising sum has no part in the backward pass. Every score is then pushed in
    the same direction by whatever scales the layer's output, until the sigmoids saturate.
    """
    top_k = inputs.routing.top_k
    logits, bias = on_grid(subject, inputs.routing)
    cotangent = held(subject, inputs.cotangent)
    routed = subject.route(logits, bias, top_k=top_k)
    require_ids(routed, len(bias))
    d_logits = _gradient(subject, logits, bias, cotangent)
    require_gradient(subject, logits, routed, cotangent, d_logits, "d_logits, equal cotangents")


@specification(
    "RTR-GRAD-LINEAR",
    source="Eq. 13",
    needs=("route", "route_vjp"),
    examples=24,
    inputs=routing_gradient.pairs(),
)
def test_rtr_grad_linear(subject: Subject, inputs: PairInputs) -> None:
    """The gradient is linear in the cotangent: that of 2 c - 3 c' is 2 times one less 3 the other.

    Hypotheses: as for RTR-GRAD; c and c' are multiples of 1/8 up to 4, in float8 up to 3/8 or 1/8,
    so 2 c - 3 c' is exact in every format. Proof: a vector-Jacobian product is a product.

    Legal freedoms: those of RTR-GRAD; the three results may differ by their radii.

    If it fails: the backward pass clips or normalises what it is given, or keeps its sign only, or
    a result of the call before. Loss scaling and gradient accumulation rest on linearity.
    """
    logits, bias = on_grid(subject, inputs.routing)
    routed = subject.route(logits, bias, top_k=inputs.routing.top_k)
    require_ids(routed, len(bias))
    first, second = (
        np.take_along_axis(by_expert, routed.expert_ids, axis=1)
        for by_expert in (few_digits(subject, inputs.first), few_digits(subject, inputs.second))
    )
    gradients, radii = [], []
    for cotangent in (first, second, 2.0 * first - 3.0 * second):
        gradients.append(_gradient(subject, logits, bias, cotangent))
        radii.append(gradient_ball(subject, logits, routed, cotangent).radius)
    rows = weighed(subject, scored(subject, logits, bias).scores, routed)
    radius = 2.0 * radii[0] + 3.0 * radii[1] + radii[2]
    combined = 2.0 * gradients[0] - 3.0 * gradients[1]
    expected: Any = Ball(combined[rows], radius[rows], subject.routing_arithmetic())
    within(subject, gradients[2][rows], expected, "d_logits of 2 c - 3 c'")


@specification(
    "RTR-GRAD-SLOTS",
    source="Eq. 13",
    needs=("route", "route_vjp"),
    examples=24,
    inputs=routing_gradient.pairs(),
    seed=seeds(),
)
def test_rtr_grad_slots(subject: Subject, inputs: PairInputs, seed: int) -> None:
    """A cotangent belongs to the expert in its slot: other labels, the same gradient by expert.

    With the experts permuted, slots come in another order wherever scores tie and in whichever
    order the implementation likes. Given cotangents by expert, put into the slots where ``route``
    has those experts, the gradient by expert stays.

    Hypotheses: as for RTR-GRAD. Proof: RTR-RELABEL, differentiated.

    Legal freedoms: another choice among ties, so that tokens are compared whose set is the same; a
    difference up to both radii.

    If it fails: the backward pass goes through the slots in another order than the forward pass, by
    id instead of by score for one, and experts are paid for what others did.
    """
    logits, bias = on_grid(subject, inputs.routing)
    order = np.random.default_rng(seed).permutation(len(bias))
    top_k = inputs.routing.top_k
    plain = subject.route(logits, bias, top_k=top_k)
    renamed = subject.route(logits[:, order], bias[order], top_k=top_k)
    for routed in (plain, renamed):
        require_ids(routed, len(bias))
    back = renamed._replace(expert_ids=order[renamed.expert_ids])
    by_expert = few_digits(subject, inputs.first)
    first, second = (_of_experts(by_expert, routed) for routed in (plain, back))
    d_plain = _gradient(subject, logits, bias, first)
    d_back = np.empty_like(d_plain)
    d_back[:, order] = _gradient(subject, logits[:, order], bias[order], second)
    radius = gradient_ball(subject, logits, plain, first).radius
    radius = radius + gradient_ball(subject, logits, back, second).radius
    rows = same_experts(plain, back) & weighed(subject, scored(subject, logits, bias).scores, plain)
    expected: Any = Ball(d_plain[rows], radius[rows], subject.routing_arithmetic())
    within(subject, d_back[rows], expected, "d_logits with other labels")


def _of_experts(by_expert: Array, routed: Routed) -> Array:
    return np.take_along_axis(by_expert, routed.expert_ids, axis=1)


@specification(
    "RTR-GRAD-FAR",
    source="Eq. 13",
    needs=("route", "route_vjp"),
    examples=36,
    inputs=routing_gradient.far(),
)
def test_rtr_grad_far(subject: Subject, inputs: GradientInputs) -> None:
    """Infinite and extreme logits have finite gradients; that of an infinite one is exactly 0.

    Hypotheses: rows as in RTR-INFINITE, from -inf to +inf by way of -110, -1e8, 30 and 1e4; finite
    cotangents. With a declared epsilon of 0, tokens whose scores are all 0 are exempt. Proof: the
    formula above, with 1 - s = 0 at +inf and p = 0 at -inf.

    Legal freedoms: those of RTR-GRAD, and of RTR-INFINITE for routers behind hidden states.

    If it fails: one saturated token makes the gradient of the whole router NaN: through
    inf / inf in a sigmoid, 0 times inf behind a mask, a quotient by S^2 that has underflown, or
    log s of a score that is 0.
    """
    logits, bias = on_grid(subject, inputs.routing)
    cotangent = held(subject, inputs.cotangent)
    routed = subject.route(logits, bias, top_k=inputs.routing.top_k)
    require_ids(routed, len(bias))
    d_logits = _gradient(subject, logits, bias, cotangent)
    require_gradient(subject, logits, routed, cotangent, d_logits, "d_logits far out")


@specification(
    "RTR-GRAD-NAN",
    source="Eq. 13",
    needs=("route", "route_vjp"),
    examples=50,
    inputs=routing_extremes.poisoned(),
    seed=seeds(),
)
def test_rtr_grad_nan(subject: Subject, inputs: PoisonedInputs, seed: int) -> None:
    """A row with NaN leaves every other row's gradient as it was, and the bias without one.

    Hypotheses: rows as in RTR-NAN, normal cotangents.

    Legal freedoms: any gradient in the poisoned rows, NaN or not; RTR-GRAD's in the others.

    If it fails: the padding of one sequence stops the training of all: a batch-wide sum in the
    backward pass, a gradient of the bias summed over tokens though it should not be there, or a
    scatter that writes out of bounds.
    """
    logits, bias = on_grid(subject, inputs.routing)
    poisoned = np.where(inputs.nan, np.nan, logits)
    top_k = inputs.routing.top_k
    drawn = np.random.default_rng(seed).standard_normal((len(logits), top_k))
    cotangent = held(subject, drawn)
    routed = subject.route(poisoned, bias, top_k=top_k)
    d_logits = _gradient(subject, poisoned, bias, cotangent)
    rows = np.flatnonzero(~inputs.nan.any(axis=1))
    part = tokens(routed, rows)
    require_ids(part, len(bias))
    require_gradient(
        subject, logits[rows], part, cotangent[rows], d_logits[rows], "d_logits beside NaN"
    )
