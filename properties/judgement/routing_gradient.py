"""What the gradient of the combine weights may be, at the experts that were chosen.

Legend: M tokens, N routed experts, K top_k; s = sigmoid(logits).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from properties.checks import within
from properties.errors import ViolationError
from properties.judgement.routing import renormalised, scored, weighed
from properties.protocol import Array
from properties.rounding import Ball
from properties.subject import Routed, Subject

__all__ = [
    "complement",
    "few_digits",
    "gradient_ball",
    "held",
    "require_gradient",
    "require_no_gradient",
]

# Cotangents of pairs are multiples of this, up to so many times.
EIGHTH, LARGEST_MULTIPLE = 1.0 / 8.0, 32


def held(subject: Subject, cotangent: Array) -> Array:
    """The nearest cotangent that storage and routing formats both hold, its sums included."""
    formats = (subject.arithmetic.stored, subject.routing_arithmetic().computed)
    largest = min(number.largest for number in formats) / 64.0
    if np.abs(cotangent).max(initial=0.0) > largest:
        cotangent = np.clip(cotangent, -largest, largest)
    return subject.round_to_routing(subject.round_to_storage(cotangent))


def few_digits(subject: Subject, eighths: Array) -> Array:
    """Multiples of 1/8 up to 4, or in float8 so few of them that storage holds 2 c - 3 c', too.

    p bits hold every integer up to 2^p, and 5 times the largest multiple is at most that.
    """
    multiples = int(1.0 / (5.0 * subject.arithmetic.stored.roundoff))
    if multiples >= LARGEST_MULTIPLE:
        return eighths
    fewer: Array = EIGHTH * np.rint(eighths / EIGHTH * multiples / LARGEST_MULTIPLE)
    return fewer


def gradient_ball(subject: Subject, logits: Array, routed: Routed, cotangent: Array) -> Any:
    """d_logits (M, N) of sum(cotangent * weights) for the ids of ``routed``.

    Exactly 0 at every other expert: the chosen logits alone have a part in it. The result may have
    been rounded to storage once: an adapter may cast the logits to it, as they are representable
    there.
    """
    arithmetic = subject.routing_arithmetic(subject.precision.storage)
    ids = routed.expert_ids
    chosen: Any = Ball.exact(np.take_along_axis(logits, ids, axis=1), arithmetic)
    gradient: Any = reference.weights_vjp(
        chosen,
        np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        Ball.exact(cotangent, arithmetic),  # type: ignore[arg-type]
        epsilon=subject.conventions.weight_epsilon,
        renormalise=renormalised(subject, ids.shape[1]),
        complement_MN=complement(chosen),
    )
    by_slot: Any = reference.stored(gradient)
    value, radius = (np.zeros(logits.shape) for _ in range(2))
    np.put_along_axis(value, ids, by_slot.value, axis=1)
    np.put_along_axis(radius, ids, by_slot.radius, axis=1)
    return Ball(value, radius, by_slot.arithmetic)


def complement(logits: Any) -> Any:
    """1 - s, whether computed as sigmoid(-z) or as the difference, which cancels for large z.

    The derivative of a sigmoid is usually taken from its output, as s (1 - s).
    """
    direct: Any = reference.scores(-logits)
    difference: Any = 1.0 - reference.scores(logits)
    apart = np.abs(direct.value - difference.value) * (1.0 + 2.0**-50)
    radius = np.maximum(direct.radius, apart + difference.radius)
    # A logit that may be anything, since it may have overflowed, leaves its score open.
    return Ball(direct.value, np.where(np.isnan(radius), np.inf, radius), logits.arithmetic)


def require_gradient(
    subject: Subject, logits: Array, routed: Routed, cotangent: Array, d_logits: Array, what: str
) -> Any:
    """Require the gradient that follows from the implementation's own ids; return its ball.

    Tokens that have no weights, as 0/0, are left out, and those whose cotangent / S overflows.
    """
    require_no_gradient(routed, d_logits, what)
    scores_MN = scored(subject, logits, np.zeros(logits.shape[1])).scores
    rows = weighed(subject, scores_MN, routed) & _divisible(subject, scores_MN, routed, cotangent)
    expected = gradient_ball(subject, logits, routed, cotangent)
    within(subject, d_logits[rows], expected[rows], what)
    return expected


def _divisible(subject: Subject, scores_MN: Any, routed: Routed, cotangent: Array) -> Array:
    """The tokens (M,) whose cotangent / S is finite; with a declared epsilon of 0 it may not."""
    if subject.conventions.weight_epsilon > 0.0:
        return np.ones(len(cotangent), np.bool_)
    chosen: Any = np.take_along_axis(scores_MN, routed.expert_ids, axis=1)
    least_M = np.maximum((chosen.value - chosen.radius).sum(axis=1), 0.0)
    finite: Array = np.abs(cotangent).sum(axis=1) < (
        least_M * subject.routing_arithmetic().computed.largest
    )
    return finite


def require_no_gradient(routed: Routed, d_logits: Array, what: str) -> None:
    """Require a gradient of exactly 0 at all experts that were not chosen."""
    elsewhere = d_logits != 0.0
    np.put_along_axis(elsewhere, routed.expert_ids, False, axis=1)
    if elsewhere.any():
        token, expert = np.argwhere(elsewhere)[0]
        raise ViolationError(
            f"{what}: token {token} was not sent to expert {expert}, "
            f"but its logit there has the gradient {d_logits[token, expert]!s}, not 0"
        )
