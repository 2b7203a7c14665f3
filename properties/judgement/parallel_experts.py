"""What experts on several ranks may return: the result of one process, or of stored partial sums.

Legend: M tokens, K top_k, L latent width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from properties.judgement.experts import ExpertCall, Gradients
from properties.protocol import Array
from properties.rounding import Ball
from properties.strategies.splits import BadToken

__all__ = ["Pooled", "in_partial_sums", "spoilt"]


class Pooled(NamedTuple):
    """The balls of the result (M, L) and of the gradients of all tokens together."""

    result: Any
    gradients: Gradients


def in_partial_sums(call: ExpertCall) -> Pooled:
    """What may come back where the terms of u and of d_x are added rank by rank.

    Each term is an expert's, and each rank stores the sum of the terms of its own experts. The
    partial sums of one element are together at most as large as its terms, so that storing them
    adds at most that share of all terms' sizes to the radius of one process.
    """
    gradients = call.expected_gradients()
    result = call.expected()
    terms = _single_slots(call)
    d_x = _with_partial_sums(call, gradients.x, terms.expected_gradients().x)
    return Pooled(_with_partial_sums(call, result, terms.expected()), gradients._replace(x=d_x))


def spoilt(call: ExpertCall, bad: BadToken) -> ExpertCall:
    """The call with a bad token, in x and cotangent; NaN where storage has no infinities."""
    value = np.nan if call.subject.arithmetic.stored.overflow_is_nan else bad.value
    rows = np.arange(call.x.shape[0])[:, None] == bad.row
    return replace(
        call,
        x=np.where(rows, value, call.x),
        cotangent=np.where(rows, value, call.cotangent),
    )


def _single_slots(call: ExpertCall) -> ExpertCall:
    """Every slot as a token (M K,) of its own."""
    slots = call.expert_ids.shape[1]
    return replace(
        call,
        x=np.repeat(call.x, slots, axis=0),
        expert_ids=call.expert_ids.reshape(-1, 1),
        weights=call.weights.reshape(-1, 1),
        cotangent=np.repeat(call.cotangent, slots, axis=0),
    )


def _with_partial_sums(call: ExpertCall, whole: Any, terms: Any) -> Any:
    tokens, slots = call.expert_ids.shape
    sizes: Array = np.abs(terms.value) + terms.radius
    size = sizes.reshape(tokens, slots, -1).sum(axis=1)
    store = call.subject.arithmetic.rules["store"]
    radius = whole.radius + store.share * (1.0 + store.share) * size + slots * store.underflow
    return Ball(whole.value, radius, whole.arithmetic)
