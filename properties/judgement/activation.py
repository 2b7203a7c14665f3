"""Calls of SiTU-GLU and of its VJP, with the balls that the reference has for their results.

b1 = beta_gate and b2 = beta_up are the caps, c is the cotangent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import reference_numpy as reference
from properties.checks import at_most, within
from properties.protocol import Array
from properties.rounding import Arithmetic, Ball
from properties.strategies.activation import ActivationInputs
from properties.strategies.activation_gradient import GradientInputs
from properties.strategies.arrays import Layout, laid_out
from properties.subject import Subject

FLOAT64 = Arithmetic("float64", "float64", "float64")

# Products in a gradient: a cap, its reciprocal, a tanh, a sigmoid, a slope and the cotangent, in
# each of the two terms of d_gate.
_PRODUCTS = 12.0

# Room that a cotangent leaves below the largest number: a gradient is at most 1.1 b2 c or b1 c.
_ROOM = 16.0

# The square of this lies far within the range of float64 and of float32.
LARGEST_SQUARE = 1e19

__all__ = [
    "FLOAT64",
    "LARGEST_SQUARE",
    "Call",
    "GradientCall",
    "Gradients",
    "held",
    "near_swiglu",
    "within_gradients",
]


class Call(NamedTuple):
    """One call: inputs that the storage format holds, in the layouts drawn, and the caps."""

    subject: Subject
    gate: Array
    up: Array
    beta_gate: float
    beta_up: float

    @classmethod
    def of(cls, subject: Subject, inputs: ActivationInputs, largest: float = np.inf) -> Call:
        """What was drawn, with numbers beyond ``largest`` or beyond storage moved to that end."""
        gate = held(subject, inputs.gate, inputs.gate_layout, largest)
        up = held(subject, inputs.up, inputs.up_layout, largest)
        return cls(subject, gate, up, inputs.beta_gate, inputs.beta_up)

    def with_held_caps(self) -> Call:
        """The call with caps that both compute and storage represent."""
        caps = self.subject.arithmetic.computed.rounded(np.array([self.beta_gate, self.beta_up]))
        gate_cap, up_cap = self.subject.round_to_storage(caps)
        return self._replace(beta_gate=float(gate_cap), beta_up=float(up_cap))

    def without_nan(self) -> Call:
        """The call with 1 in place of NaN."""
        gate = np.where(np.isnan(self.gate), 1.0, self.gate)
        return self._replace(gate=gate, up=np.where(np.isnan(self.up), 1.0, self.up))

    def bound(self) -> float | None:
        """The product of the caps, rounded to compute and then to storage; None if too large."""
        arithmetic = self.subject.arithmetic
        with np.errstate(over="ignore"):
            product = arithmetic.computed.rounded(np.array(self.beta_gate * self.beta_up))
            bound = float(arithmetic.stored.rounded(product))
        return bound if np.isfinite(bound) else None

    def result(self) -> Array:
        """What the implementation returns."""
        return self.subject.situ_glu(
            self.gate, self.up, beta_gate=self.beta_gate, beta_up=self.beta_up
        )

    def balls(self, arithmetic: Arithmetic) -> tuple[Any, Any]:
        """gate and up, exact."""
        return Ball.exact(self.gate, arithmetic), Ball.exact(self.up, arithmetic)

    def expected(self, arithmetic: Arithmetic | None = None) -> Any:
        """The reference's value as a ball, for the subject's or for another arithmetic."""
        arithmetic = arithmetic or self.subject.arithmetic
        gate, up = self.balls(arithmetic)
        ball: Any = reference.situ_glu(gate, up, beta_gate=self.beta_gate, beta_up=self.beta_up)
        # The reference multiplies by the caps first. In another order up to three factors below
        # 1 may underflow before the caps enlarge what was lost.
        caps = max(1.0, self.beta_gate) * max(1.0, self.beta_up)
        return Ball(
            ball.value, ball.radius + 3.0 * caps * arithmetic.computed.underflow, arithmetic
        )


class Gradients(NamedTuple):
    """d_gate and d_up, as arrays or as balls."""

    d_gate: Any
    d_up: Any


class GradientCall(NamedTuple):
    """A call of the VJP: the forward call, and a cotangent that lets no gradient overflow."""

    forward: Call
    cotangent: Array

    @classmethod
    def of(cls, subject: Subject, inputs: GradientInputs) -> GradientCall:
        """What was drawn, held by storage, with a cotangent cut to where gradients are finite."""
        call = cls(Call.of(subject, inputs.forward), inputs.cotangent)
        end = call.largest_cotangent()
        return call._replace(
            cotangent=held(subject, inputs.cotangent, inputs.cotangent_layout, end)
        )

    def largest_cotangent(self) -> float:
        """The size up to which no product of cotangent, caps and their reciprocals overflows."""
        arithmetic = self.forward.subject.arithmetic
        largest = min(arithmetic.computed.largest, arithmetic.stored.largest)
        return largest / (_ROOM * _caps(self.forward))

    def result(self, cotangent: Array | None = None) -> Gradients:
        """What the implementation returns, for this or for another cotangent."""
        call = self.forward
        cotangent = self.cotangent if cotangent is None else cotangent
        found = call.subject.situ_glu_vjp(
            call.gate, call.up, cotangent, beta_gate=call.beta_gate, beta_up=call.beta_up
        )
        return Gradients(*found)

    def expected(self, cotangent: Array | None = None) -> Gradients:
        """The reference's gradients as balls; where nothing rounds, exactly those."""
        call = self.forward
        arithmetic = call.subject.arithmetic
        c: Any = Ball.exact(self.cotangent if cotangent is None else cotangent, arithmetic)
        gate, up = call.balls(arithmetic)
        balls = reference.situ_glu_vjp(gate, up, c, beta_gate=call.beta_gate, beta_up=call.beta_up)
        # In another order of the products each may underflow before the rest enlarges the loss.
        size = _caps(call) * np.maximum(1.0, np.abs(c.value))
        lost = _PRODUCTS * arithmetic.computed.underflow * (1.0 + arithmetic.stored.roundoff) * size
        return Gradients(*(_loosened(ball, lost) for ball in balls))


def near_swiglu(subject: Subject, call: Call) -> None:
    """Require abs(SiTU - SwiGLU) <= abs(SwiGLU) ((g/b1)^2 + (u/b2)^2) / 3, up to the radii."""
    gate, up = call.balls(FLOAT64)
    swiglu = reference.swiglu(gate, up)
    powers = np.square(gate / call.beta_gate) + np.square(up / call.beta_up)
    bound = np.abs(swiglu) * powers / 3.0
    distance = np.abs(Ball.exact(call.result(), FLOAT64) - swiglu)
    # The first radius leads from the result to the reference, the second on to the exact value.
    radius = call.expected().radius + call.expected(FLOAT64).radius
    slack = radius + distance.radius + bound.radius
    at_most(subject, distance.value, Ball(bound.value, slack, FLOAT64), "distance to SwiGLU")


def within_gradients(subject: Subject, actual: Gradients, expected: Gradients) -> None:
    """Require both gradients to lie in their balls."""
    within(subject, actual.d_gate, expected.d_gate, "d_gate")
    within(subject, actual.d_up, expected.d_up, "d_up")


def held(subject: Subject, values: Array, layout: Layout, largest: float = np.inf) -> Array:
    """The values as storage holds them, cut at ``largest``; infinities stay where it has them."""
    stored = subject.arithmetic.stored
    end = min(stored.largest, largest)
    keep = np.isinf(values) & (not stored.overflow_is_nan)
    cut = subject.round_to_storage(np.where(keep, values, np.clip(values, -end, end)))
    return laid_out(cut, layout)


def _caps(call: Call) -> float:
    """How much the caps and their reciprocals can enlarge."""
    return float(np.prod([max(beta, 1.0 / beta) for beta in (call.beta_gate, call.beta_up)]))


def _loosened(ball: Any, by: Array) -> Any:
    return Ball(ball.value, np.where(ball.radius == 0.0, 0.0, ball.radius + by), ball.arithmetic)
