"""Judging a sweep over all numbers: a violation is told of one number, where that one shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from properties.checks import within
from properties.judgement.activation import Call, GradientCall, held
from properties.protocol import Array
from properties.rounding import ratio
from properties.strategies.activation_sweep import Sweep
from properties.subject import Subject

Judged = Callable[[Any], tuple[tuple[str, Array, Any], ...]]

__all__ = ["forward_sweep", "gradient_sweep"]


def forward_sweep(subject: Subject, sweep: Sweep) -> None:
    """Require the value of SiTU-GLU at every number."""
    _judge(subject, _call(subject, sweep), lambda call: (("situ_glu", *_value(call)),))


def gradient_sweep(subject: Subject, sweep: Sweep) -> None:
    """Require both gradients at every number."""

    def gradients(call: Call) -> tuple[tuple[str, Array, Any], ...]:
        cotangent = held(subject, np.full(call.gate.shape, sweep.cotangent), "contiguous")
        vjp = GradientCall(call, cotangent)
        found, expected = vjp.result(), vjp.expected()
        return (
            ("d_gate", found.d_gate, expected.d_gate),
            ("d_up", found.d_up, expected.d_up),
        )

    _judge(subject, _call(subject, sweep), gradients)


def _call(subject: Subject, sweep: Sweep) -> Call:
    """Two rows: all gates beside one up, and all ups beside one gate."""
    numbers = sweep.numbers(subject.storage_dtype)
    gate, up = (
        held(subject, np.full(numbers.shape, value), "contiguous")
        for value in (sweep.gate, sweep.up)
    )
    gates, ups = np.stack([numbers, gate]), np.stack([up, numbers])
    return Call(subject, gates, ups, sweep.beta_gate, sweep.beta_up)


def _value(call: Call) -> tuple[Array, Any]:
    return call.result(), call.expected()


def _judge(subject: Subject, call: Call, judged: Judged) -> None:
    everything = judged(call)
    for _, found, expected in everything:
        wrong = np.flatnonzero(ratio(found, expected) > 1.0)
        if wrong.size:
            alone = [z.reshape(-1)[wrong[:1]] for z in (call.gate, call.up)]
            for name, one, ball in judged(call._replace(gate=alone[0], up=alone[1])):
                within(subject, one, ball, f"{name}, called with this number alone")
    for name, found, expected in everything:
        within(subject, found, expected, name)
