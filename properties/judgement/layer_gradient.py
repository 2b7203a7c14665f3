"""What a correct layer's gradients may be, although nobody sees how it routed.

A token's d_x depends on that token alone, so it is judged like an output: by the nearest of those
that its legal selections give. Gradients of parameters are sums over tokens. They are judged with
a cotangent of 0 for each token that has several legal selections, which leaves nothing of it.

Legend: M tokens, R rows (a token with one legal selection), N routed experts, K top_k, D model
width, S shared experts, P places where the layer reads x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.judgement.layer import (
    LegalLayer,
    Selections,
    legal_selections,
    on_arrays,
    score_balls,
    with_shared_experts,
)
from properties.judgement.layer_calls import LayerCall
from properties.judgement.routing_gradient import complement
from properties.judgement.sums import added_in_any_order, slots_added
from properties.protocol import Array, LayerParameters
from properties.rounding import Arithmetic, Ball
from properties.rounding.ball import lifted
from properties.subject import Subject

__all__ = [
    "legal_gradients",
    "named_arrays",
    "parameter_gradients",
    "possibly_chosen",
    "selections_of",
    "silenced",
]


def selections_of(subject: Subject, call: LayerCall) -> Selections:
    """Every legal selection of the call's tokens."""
    x_MD = call.x.reshape(-1, call.x.shape[-1])
    _, biased_MN = score_balls(subject, x_MD, call.parameters)
    return legal_selections(biased_MN, call.config.top_k)


def silenced(cotangent: Array, selections: Selections) -> Array:
    """The cotangent (…, D) with 0 for each token that has more than one legal selection.

    It is the same array, in its own memory, where no token has.
    """
    if selections.clear.all():
        return cotangent
    clear: Array = selections.clear.reshape((*cotangent.shape[:-1], 1))
    return np.where(clear, cotangent, 0.0)


def possibly_chosen(selections: Selections, cotangent: Array, num_experts: int) -> Array:
    """Which experts (N,) some legal selection of a token with a cotangent names."""
    chosen = np.zeros(num_experts, np.bool_)
    told_M = np.any(cotangent.reshape(-1, cotangent.shape[-1]) != 0.0, axis=1)
    chosen[selections.expert_ids[told_M[selections.token]].reshape(-1)] = True
    return chosen


def named_arrays(parameters: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each array, or ball, of the parameters with its dotted name."""
    for part in fields(parameters):
        value = getattr(parameters, part.name)
        if is_dataclass(value):
            yield from named_arrays(value, f"{part.name}.")
        else:
            yield prefix + part.name, value


# Values ------------------------------------------------------------------------------------------


def parameter_gradients(
    subject: Subject, call: LayerCall, cotangent: Array, selections: Selections
) -> LayerParameters:
    """Balls of every parameter's gradient, each token following its first legal selection.

    That is the only one of each token which has a cotangent, if ``silenced`` made it.
    """
    ids_MK = selections.expert_ids[selections.first]
    _, gradients = _reference_vjp(subject, call, cotangent, ids_MK)
    return gradients


def legal_gradients(
    subject: Subject, call: LayerCall, cotangent: Array, selections: Selections
) -> tuple[LegalLayer, LayerParameters]:
    """The reference's d_x (R, D) for every legal selection, and balls of parameters' gradients.

    The terms of d_x may be added in any order. The layer reads x in P places: the router, the
    latent and the gate and up projection of each shared expert, or of all of them side by side.
    Each place's term is found by handing the layer x P times, side by side, with parameters that
    read one copy in each place.

    The gradients of parameters add up all rows: where a token has several, they are nobody's.
    """
    rows = replace(call, x=call.x.reshape(-1, call.x.shape[-1])[selections.token])
    cotangent_RD = cotangent.reshape(-1, cotangent.shape[-1])[selections.token]
    d_x, d_parameters = _evaluated(subject, rows, cotangent_RD, selections.expert_ids)
    if len(call.parameters.shared_experts.gate_proj) > 1:
        side_by_side = replace(rows, parameters=with_shared_experts(call.parameters, 1))
        other, _ = _evaluated(subject, side_by_side, cotangent_RD, selections.expert_ids)
        with np.errstate(invalid="ignore"):
            reach = other.radius + np.abs(other.value - d_x.value)
            radius = np.maximum(d_x.radius, reach)
        d_x = Ball(d_x.value, np.where(np.isnan(radius), np.inf, radius), d_x.arithmetic)
    return LegalLayer(selections, d_x, call.x.shape), d_parameters


def _evaluated(
    subject: Subject, call: LayerCall, cotangent_RD: Array, expert_ids_RK: Array
) -> tuple[Ball, LayerParameters]:
    """d_x (R, D), its terms added in any order, and the gradients of parameters."""
    rows, model = call.x.shape
    places = 2 + 2 * len(call.parameters.shared_experts.gate_proj)
    apart = replace(
        call, x=np.tile(call.x, places), parameters=_reading_apart(call.parameters, places)
    )
    padded = np.pad(cotangent_RD, ((0, 0), (0, (places - 1) * model)))
    d_x, d_parameters = _reference_vjp(subject, apart, padded, expert_ids_RK)
    terms: Ball = np.swapaxes(d_x.reshape(rows, places, model), 0, 1)
    return added_in_any_order(terms), _read_together(d_parameters, model)


def _reference_vjp(
    subject: Subject, call: LayerCall, cotangent: Array, expert_ids: Array
) -> tuple[Any, LayerParameters]:
    arithmetic = _gradient_arithmetic(subject)

    def ball(array: Array) -> Any:
        return Ball.exact(array, arithmetic)

    d_x, gradients = reference.layer_vjp(
        ball(call.x),
        on_arrays(ball, call.parameters),
        ball(cotangent),
        config=call.config,
        expert_ids=expert_ids,
        epsilon=subject.conventions.weight_epsilon,
        top1_renormalised=subject.conventions.top1_renormalised,
        complement=complement,
        add_slots=slots_added,
    )
    return d_x, on_arrays(lambda found: lifted(found, arithmetic), gradients)


def _gradient_arithmetic(subject: Subject) -> Arithmetic:
    """That of hidden states, or the coarser one of routing: one formula holds both here."""
    arithmetic, routing = subject.arithmetic, subject.routing_arithmetic()
    if routing.computed.roundoff <= arithmetic.computed.roundoff:
        return arithmetic
    return subject.routing_arithmetic(stored=subject.precision.storage)


# Places where the layer reads x ------------------------------------------------------------------


def _reading_apart(parameters: LayerParameters, places: int) -> LayerParameters:
    """A layer of width P D that reads a different copy of x (R, P D) in each place.

    It writes to the first D dimensions only.
    """
    shared, model = parameters.shared_experts, parameters.gate_weight.shape[1]

    def reading(weight: Array, place: int) -> Array:
        sides = (place * model, (places - 1 - place) * model)
        return np.pad(weight, (*[(0, 0)] * (weight.ndim - 1), sides))

    def each(weights: Array, first: int) -> Array:
        apart = [reading(weight, first + 2 * j) for j, weight in enumerate(weights)]
        empty: Array = np.zeros((0, weights.shape[1], places * model))
        return np.stack(apart) if apart else empty

    def writing(weight: Array) -> Array:
        sides = (0, (places - 1) * model)
        return np.pad(weight, (*[(0, 0)] * (weight.ndim - 2), sides, (0, 0)))

    return replace(
        parameters,
        gate_weight=reading(parameters.gate_weight, 0),
        routed_expert_down_proj=reading(parameters.routed_expert_down_proj, 1),
        routed_expert_up_proj=writing(parameters.routed_expert_up_proj),
        shared_experts=replace(
            shared,
            gate_proj=each(shared.gate_proj, 2),
            up_proj=each(shared.up_proj, 3),
            down_proj=writing(shared.down_proj),
        ),
    )


def _read_together(gradients: LayerParameters, model: int) -> LayerParameters:
    """The gradients of the parameters that ``_reading_apart`` was given."""
    shared = gradients.shared_experts

    def read(place: int) -> slice:
        return slice(place * model, (place + 1) * model)

    def each(balls: Any, first: int) -> Any:
        count = range(len(balls))
        apart = [balls[j, :, read(first + 2 * j)] for j in count]
        return np.stack(apart) if apart else balls[:, :, :model]

    return replace(
        gradients,
        gate_weight=gradients.gate_weight[:, read(0)],
        routed_expert_down_proj=gradients.routed_expert_down_proj[:, read(1)],
        routed_expert_up_proj=gradients.routed_expert_up_proj[:model],
        shared_experts=replace(
            shared,
            gate_proj=each(shared.gate_proj, 2),
            up_proj=each(shared.up_proj, 3),
            down_proj=shared.down_proj[:, :model],
        ),
    )
