"""Calls brought into the range of formats that end near 2^16 (float16, float8_e5m2) or 2^9 (e4m3).

Their numbers overflow where those of bfloat16 are ordinary. Nothing is owed there, so parameters
and cotangents are halved until no value on the way can reach the largest number. An eighth of it is
aimed at: the rest is for radii, and for properties that double something.

Legend: M tokens, N experts, L width an expert works on, H its hidden width.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from properties.protocol import Array, ExpertParameters, LayerParameters
from properties.strategies.experts import ExpertInputs
from properties.strategies.layer import LayerInputs
from properties.subject import Subject

NARROW = 2.0**32

# A format is coarse if its roundoff is larger than bfloat16's. What is drawn there: the largest
# logit, the smallest eps, the largest value on the way, which is that of float8_e4m3fn, and the
# largest product of caps.
COARSE = 2.0**-8
LARGEST_LOGIT = 0.5
SMALLEST_EPS = 1e-2
LARGEST_COARSE = 448.0
LARGEST_CAPS = 100.0

# How many of the smallest numbers of compute an eps is, so that it keeps a few digits.
EPS_DIGITS = 128.0

# Slopes of SiTU-GLU are at most this times the other input's cap.
SLOPE = 1.1

__all__ = [
    "all_narrow",
    "fitting_cotangent",
    "fitting_experts",
    "fitting_layer",
    "halved",
    "is_narrow",
]


def all_narrow(subject: Subject) -> Subject:
    """The subject as if storage ended where its narrowest format does: no number may leave that."""
    precision, arithmetic = subject.precision, subject.arithmetic
    formats = {
        precision.storage: arithmetic.stored,
        precision.accumulate: arithmetic.accumulated,
        precision.compute: arithmetic.computed,
    }
    narrowest = min(formats, key=lambda name: formats[name].largest)
    if formats[narrowest].largest == arithmetic.stored.largest:
        return subject
    narrow = copy(subject)
    narrow.precision = replace(precision, storage=narrowest)
    return narrow


def is_narrow(subject: Subject) -> bool:
    """Whether storage ends near 2^16 or before."""
    return subject.arithmetic.stored.largest < NARROW


def halved(values: Array, size: float, most: float) -> Array:
    """The values, halved until ``size``, which is proportional to them, is at most ``most``."""
    halvings = float(np.ceil(np.log2(max(size / most, 1.0))))
    result: Array = values * 2.0**-halvings
    return result


def fitting_experts(subject: Subject, inputs: ExpertInputs) -> ExpertInputs:
    """The call with caps and projections that keep hidden units and outputs in range."""
    if not is_narrow(subject):
        return inputs
    room = _room(subject)
    most = LARGEST_CAPS if _is_coarse(subject) else room
    lower = max(1.0, float(np.sqrt(inputs.beta_gate * inputs.beta_up / most)))
    beta_gate, beta_up = inputs.beta_gate / lower, inputs.beta_up / lower
    inputs = replace(inputs, beta_gate=beta_gate, beta_up=beta_up)
    weight = max(1.0, float(np.abs(inputs.weights).sum(axis=1).max(initial=0.0)))
    cap = weight * inputs.beta_gate * inputs.beta_up
    x = min(float(np.abs(inputs.x).max(initial=0.0)), np.sqrt(subject.arithmetic.stored.largest))
    return replace(inputs, parameters=_fitting(inputs.parameters, x, cap, room))


def fitting_cotangent(subject: Subject, inputs: ExpertInputs, cotangent: Array) -> Array:
    """The cotangent, so small that no gradient of the fitting call leaves the range."""
    if not is_narrow(subject):
        return cotangent
    parameters = inputs.parameters
    (tokens, slots), latent = inputs.weights.shape, inputs.x.shape[1]
    weight = max(1.0, float(np.abs(inputs.weights).max(initial=0.0)))
    x = min(float(np.abs(inputs.x).max(initial=0.0)), np.sqrt(subject.arithmetic.stored.largest))
    cap = inputs.beta_gate * inputs.beta_up
    slope = SLOPE * max(inputs.beta_gate, inputs.beta_up, 1.0)
    d_hidden = weight * _columns(parameters.down_proj)
    d_gate = slope * max(d_hidden, 1.0)
    growth = max(
        slots * d_gate * (_columns(parameters.gate_proj) + _columns(parameters.up_proj)),
        tokens * d_gate * max(x, 1.0),
        tokens * weight * cap,
        latent * cap * _rows(parameters.down_proj),
        1.0,
    )
    size = float(np.abs(cotangent).max(initial=0.0))
    return halved(cotangent, size * growth, _room(subject))


def fitting_layer(subject: Subject, inputs: LayerInputs, enlarged: float = 1.0) -> LayerInputs:
    """The layer with parameters that keep every intermediate value in range.

    ``enlarged`` is what the property multiplies the routed sum by. In float8 a tenth of a logit is
    lost, so that logits up to 1/2 are as large as a score can stand; and u may be lost altogether,
    but not next to a small eps, which would multiply what is left.
    """
    if not is_narrow(subject):
        return inputs
    room, config, p = _room(subject), inputs.config, inputs.parameters
    coarse = _is_coarse(subject)
    logits = LARGEST_LOGIT if coarse else room
    smallest_eps = max(EPS_DIGITS * subject.arithmetic.computed.underflow, coarse * SMALLEST_EPS)
    eps = max(config.norm_eps, smallest_eps * enlarged**2)
    x = float(np.abs(inputs.x).max(initial=0.0))
    cap = config.beta_gate * config.beta_up
    down_proj = halved(p.routed_expert_down_proj, x * _rows(p.routed_expert_down_proj), room)
    scale = max(1.0, abs(config.routed_scale)) * enlarged
    latent = x * _rows(down_proj)
    shared = max(1, len(p.shared_experts.gate_proj))
    norm = halved(
        p.routed_expert_norm,
        float(np.sqrt(len(p.routed_expert_norm)) * np.abs(p.routed_expert_norm).max(initial=0.0)),
        room,
    )
    normed = float(np.sqrt(len(norm)) * np.abs(norm).max(initial=0.0))
    experts = _fitting(p.experts, latent, scale * cap, room)
    combined = max(normed, scale * cap * _rows(experts.down_proj))
    up_proj = p.routed_expert_up_proj
    fitting = LayerParameters(
        gate_weight=halved(p.gate_weight, x * _rows(p.gate_weight), min(room, logits)),
        e_score_correction_bias=p.e_score_correction_bias,
        routed_expert_down_proj=down_proj,
        experts=experts,
        routed_expert_norm=norm,
        routed_expert_up_proj=halved(up_proj, combined * _rows(up_proj), room),
        shared_experts=_fitting(p.shared_experts, x, shared * cap, room),
    )
    return replace(inputs, parameters=fitting, config=replace(config, norm_eps=eps))


def _fitting(parameters: ExpertParameters, x: float, cap: float, room: float) -> ExpertParameters:
    """Projections that keep W x and, with hidden units up to ``cap`` in all, W_d h in range."""
    gate, up, down = parameters.gate_proj, parameters.up_proj, parameters.down_proj
    return ExpertParameters(
        halved(gate, x * _rows(gate), room),
        halved(up, x * _rows(up), room),
        halved(down, cap * _rows(down), room),
    )


def _is_coarse(subject: Subject) -> bool:
    return subject.arithmetic.stored.roundoff > COARSE


def _room(subject: Subject) -> float:
    arithmetic: Any = subject.arithmetic
    ends = (arithmetic.stored, arithmetic.computed, arithmetic.accumulated)
    largest: float = min(number.largest for number in ends)
    return (min(largest, LARGEST_COARSE) if _is_coarse(subject) else largest) / 8.0


def _rows(weight: Array) -> float:
    """The largest sum of sizes along a row of matrices (…, O, I): what x up to 1 can come to."""
    return float(np.abs(weight).sum(axis=-1).max(initial=0.0))


def _columns(weight: Array) -> float:
    return float(np.abs(weight).sum(axis=-2).max(initial=0.0))
