"""Judging how SiTU-GLU takes its arguments: memory, order, and caps that make no sense."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

import reference_numpy as reference
from properties.checks import require, unknown, within
from properties.errors import ViolationError
from properties.judgement.activation import FLOAT64, Call, GradientCall, held
from properties.protocol import Array
from properties.rounding import Ball, ratio
from properties.strategies.activation_arguments import (
    MEMORY,
    MemoryInputs,
    OrderInputs,
    RejectInputs,
    expanded,
)
from properties.subject import Subject

# Errors that Python or NumPy raises by itself when something was not thought of.
_ACCIDENTS = (ArithmeticError, AttributeError, LookupError, NameError, MemoryError, RecursionError)

Result = TypeVar("Result")

__all__ = ["Compared", "Readings", "in_memory", "refused_or_off", "told_apart"]


class Compared(NamedTuple):
    """A result found on views, that found on copies, and a ball around the latter."""

    name: str
    found: Array
    expected: Any


def in_memory(subject: Subject, inputs: MemoryInputs) -> Iterator[Compared]:
    """The value, and the gradients where offered, each on views and on contiguous copies."""
    dtype = subject.storage_dtype
    parts = (inputs.gate, inputs.up, inputs.cotangent)
    gate, up, cotangent = (held(subject, z, "contiguous").astype(dtype) for z in parts)
    views = MEMORY[inputs.memory](gate, up)
    handed = Call(subject, *views, inputs.beta_gate, inputs.beta_up)
    if handed.bound() is None:
        return
    copies = handed._replace(gate=_copied(views[0]), up=_copied(views[1]))
    radius = copies.expected().radius
    yield Compared("situ_glu", handed.result(), _around(copies.result(), radius))
    if "situ_glu_vjp" not in subject.offered:
        return
    seen = expanded(cotangent, inputs.expanded)
    copied = GradientCall(copies, _copied(seen))
    found, alone = GradientCall(handed, seen).result(), copied.result()
    for name, value, other, ball in zip(
        found._fields, found, alone, copied.expected(), strict=True
    ):
        yield Compared(name, value, _around(other, ball.radius))


class Readings(NamedTuple):
    """A call, and what else could be read from its arguments, by name."""

    right: Call
    wrong: dict[str, Call]

    @classmethod
    def of(cls, subject: Subject, inputs: OrderInputs) -> Readings:
        """The readings of two arguments, or of the one tensor that joins them."""
        gate, up = (held(subject, z, "contiguous") for z in (inputs.gate, inputs.up))
        right = Call(subject, gate, up, inputs.beta_gate, inputs.beta_up)
        rows, columns = gate.shape
        joined = np.concatenate([gate, up], axis=1)
        mixed = np.stack([gate, up], axis=2).reshape(rows, 2 * columns)
        readings = {
            "concatenated columns as interleaved": (joined[:, 0::2], joined[:, 1::2]),
            "interleaved columns as concatenated": (mixed[:, :columns], mixed[:, columns:]),
        }
        if rows > 1:
            first, second = joined.reshape(2, rows, columns)
            readings["halves of each row as halves of the tensor"] = (first, second)
        wrong = {"gate and up exchanged": (up, gate)}
        for name, (first, second) in readings.items():
            wrong[name] = (first, second)
            wrong[f"{name}, and exchanged"] = (second, first)
        return cls(right, {name: right._replace(gate=g, up=u) for name, (g, u) in wrong.items()})


def told_apart(subject: Subject, readings: Readings) -> None:
    """Require the right reading; where another one was taken, say which."""
    found, expected = readings.right.result(), readings.right.expected()
    right = np.all(ratio(found, expected) <= 1.0)
    for name, call in readings.wrong.items():
        other = call.expected()
        apart = np.abs(expected.value - other.value) > expected.radius + other.radius
        if not apart.any():
            unknown(subject, f"the inputs do not tell apart: {name}")
        require(right or not np.all(ratio(found, other) <= 1.0), f"situ_glu takes {name}")
    within(subject, found, expected, "situ_glu")


def refused_or_off(subject: Subject, inputs: RejectInputs) -> None:
    """Require a refusal on purpose, or the declared meaning; and the same of the VJP."""
    caps = (inputs.beta, inputs.other) if inputs.gate_side else (inputs.other, inputs.beta)
    gate, up = (held(subject, z, "contiguous") for z in (inputs.gate, inputs.up))
    call = Call(subject, gate, up, *caps)
    found = _unless_refused("situ_glu", call.result)
    if found is not None:
        named = f"{'beta_gate' if inputs.gate_side else 'beta_up'} = {inputs.beta}"
        declared = _is_off(subject, inputs.beta)
        require(
            declared,
            f"situ_glu accepts {named}, which Conventions.beta_off does not declare; raise a "
            "ValueError, or declare it",
        )
        within(subject, found, _switched_off(call, inputs.gate_side), f"situ_glu with {named}")
    if "situ_glu_vjp" in subject.offered:
        vjp = GradientCall(call, np.ones_like(gate))
        gradients = _unless_refused("situ_glu_vjp", vjp.result)
        require(
            (gradients is None) == (found is None),
            "of situ_glu and situ_glu_vjp one refuses a cap that the other accepts",
        )
        for gradient in gradients or ():
            require(np.isfinite(gradient), "situ_glu_vjp is not finite with a softcap switched off")


def _unless_refused(method: str, call: Callable[[], Result]) -> Result | None:
    """The result, or None for an error raised on purpose; any other error is a violation."""
    try:
        return call()
    except ViolationError as violation:
        error = violation.__cause__
        if error is None:  # an input was modified
            raise
        meant = isinstance(error, Exception) and not isinstance(error, _ACCIDENTS)
        require(
            meant and str(error).strip(),
            f"{method} refuses the cap by accident: {type(error).__name__}: {error}; raise an "
            "error that says which caps are allowed",
        )
        return None


def _is_off(subject: Subject, beta: float) -> bool:
    """Whether the conventions declare that this cap switches its softcap off."""
    off = subject.conventions.beta_off
    if off is None:
        return False
    same = beta == off or (np.isnan(off) and np.isnan(beta))
    return bool(same or (off <= 0.0 and beta <= 0.0))


def _switched_off(call: Call, gate_side: bool) -> Any:
    """The ball of the result with the identity in place of that softcap."""
    gate, up = call.balls(call.subject.arithmetic)
    gate_cap = gate if gate_side else reference.softcap(gate, call.beta_gate)
    up_cap = reference.softcap(up, call.beta_up) if gate_side else up
    return reference.stored(gate_cap * reference.sigmoid(gate) * up_cap)


def _copied(view: Array) -> Array:
    """A contiguous float64 copy."""
    return np.array(view.astype(np.float64), order="C")


def _around(values: Array, radius: Array) -> Any:
    """The ball of what another call may have found, if both lie within the radius."""
    return Ball(values, 2.0 * radius, FLOAT64)
