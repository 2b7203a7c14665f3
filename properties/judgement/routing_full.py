"""Judging whatever a router offers on one call: the routing, that in groups, and the gradient."""

from __future__ import annotations

from properties.checks import require, within
from properties.judgement.routing import (
    Scored,
    cutoff_ball,
    require_selection,
    require_weights,
    scored,
)
from properties.judgement.routing_calls import RouterCall
from properties.judgement.routing_gradient import require_gradient
from properties.judgement.routing_groups import require_grouped
from properties.subject import Routed

__all__ = ["require_each"]


def require_each(call: RouterCall) -> None:
    """Require what is offered of the three methods to be right.

    A gradient is that of the ids of ``route``; without these only that of the bias is judged.
    """
    subject = call.subject
    what = f"of {call.logits.shape} with top_k = {call.top_k}"
    routed = _routed(call, what) if "route" in subject.offered else None
    if "route_grouped" in subject.offered:
        groups, opened = call.groups
        found = subject.route_grouped(
            call.logits, call.bias, top_k=call.top_k, num_groups=groups, top_groups=opened
        )
        known = _known(call, found)
        require_grouped(subject, found, call.logits, known, call.groups, f"in groups {what}")
    if "route_vjp" in subject.offered:
        d_logits, d_bias = subject.route_vjp(
            call.logits, call.bias, call.cotangent, top_k=call.top_k
        )
        require(d_bias == 0.0, f"the bias has a gradient other than 0 {what}")
        if routed is not None:
            named = f"d_logits {what}"
            require_gradient(subject, call.logits, routed, call.cotangent, d_logits, named)


def _routed(call: RouterCall, what: str) -> Routed:
    """The routing, whose ids, weights and cutoff are right."""
    subject = call.subject
    routed = subject.route(call.logits, call.bias, top_k=call.top_k)
    known = _known(call, routed)
    require_selection(subject, routed, known.biased, f"selection {what}")
    require_weights(subject, routed, known.scores, f"weights {what}")
    if routed.cutoff is not None and call.top_k < len(call.bias):
        within(subject, routed.cutoff, cutoff_ball(known.biased, call.top_k), f"cutoff {what}")
    return routed


def _known(call: RouterCall, routed: Routed) -> Scored:
    return scored(call.subject, call.logits, call.bias, stored=routed.weights_format)
