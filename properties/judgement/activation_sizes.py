"""Judging SiTU-GLU and its VJP, whichever is offered, on one call after another."""

from __future__ import annotations

from collections.abc import Iterator

from properties.checks import within
from properties.judgement.activation import GradientCall
from properties.strategies.apart import APART
from properties.subject import Subject

__all__ = ["behind_axes", "require_both_ways"]

# Which of gate, up and cotangent lie so, the others being contiguous.
ROLES = {"up": (1,), "gate": (0,), "cotangent": (2,), "all": (0, 1, 2)}


def require_both_ways(subject: Subject, call: GradientCall, what: str) -> None:
    """Require the value where ``situ_glu`` is offered, the gradients where ``situ_glu_vjp`` is."""
    forward = call.forward
    if "situ_glu" in subject.offered and forward.bound() is not None:
        within(subject, forward.result(), forward.expected(), f"situ_glu {what}")
    if "situ_glu_vjp" in subject.offered:
        found, expected = call.result(), call.expected()
        for name, values, ball in zip(found._fields, found, expected, strict=True):
            within(subject, values, ball, f"{name} {what}")


def behind_axes(call: GradientCall, name: str) -> Iterator[tuple[GradientCall, str]]:
    """The call with one argument in that kind of view, each in turn, and with all of them."""
    for role, places in ROLES.items():
        arguments = (
            APART[name](values) if place in places else values
            for place, values in enumerate((call.forward.gate, call.forward.up, call.cotangent))
        )
        gate, up, cotangent = arguments
        turned = GradientCall(call.forward._replace(gate=gate, up=up), cotangent)
        yield turned, f"with {role} as {name}"
