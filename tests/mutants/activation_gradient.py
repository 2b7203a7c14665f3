"""Wrong gradients of SiTU-GLU, each one step away from correct ones in float32 NumPy.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from properties.protocol import Array
from tests.mutants.activation import Correct

Pair = tuple[Array, Array]


def leading_digits(values: Array) -> Array:
    """float32 cut to the 8 digits of bfloat16, as the index of a table with 65,536 entries."""
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


class CorrectGradient(Correct):
    """The product rule in parts, with what a backward pass keeps: tanh and sigmoid, in float32."""

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> Pair:
        self.check(beta_gate, beta_up)
        with np.errstate(all="ignore"):
            caps = np.float32(beta_gate), np.float32(beta_up)
            return self.gradients(gate, up, cotangent, *caps)

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        t, r = self.tanh(gate / beta_gate), self.tanh(up / beta_up)
        sigma = self.sigmoid(gate, beta_gate)
        through_cap = self.gate_slope(t, gate / beta_gate) * sigma
        through_sigmoid = beta_gate * t * self.sigmoid_slope(sigma)
        d_gate = (through_cap + through_sigmoid) * (beta_up * r) * c
        d_up = beta_gate * t * sigma * self.up_slope(r, up / beta_up) * c
        return d_gate, d_up

    def gate_slope(self, t: Array, z: Array) -> Array:
        return 1 - t * t

    def up_slope(self, r: Array, z: Array) -> Array:
        return 1 - r * r

    def sigmoid_slope(self, sigma: Array) -> Array:
        return sigma * (1 - sigma)


class SoftcapSlopeOmittedOnUp(CorrectGradient):
    """up's softcap passes its gradient straight through."""

    killed_by = "ACT-VJP"

    def up_slope(self, r: Array, z: Array) -> Array:
        return np.ones_like(r)


class SoftcapSlopeOmittedOnGate(CorrectGradient):
    """The gate's softcap passes its gradient straight through."""

    killed_by = "ACT-VJP"

    def gate_slope(self, t: Array, z: Array) -> Array:
        return np.ones_like(t)


class HardClampSlope(CorrectGradient):
    """The derivative of up is kept as a mask: 1 within the cap, 0 outside."""

    killed_by = "ACT-VJP"

    def up_slope(self, r: Array, z: Array) -> Array:
        return (np.abs(z) <= 1).astype(z.dtype)


class GradientsExchanged(CorrectGradient):
    """d_up is returned for d_gate, and the reverse."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return d_up, d_gate


class SigmoidTermMissing(CorrectGradient):
    """The sigmoid counts as a constant."""

    killed_by = "ACT-VJP"

    def sigmoid_slope(self, sigma: Array) -> Array:
        return np.zeros_like(sigma)


class SigmoidSlopeIsSigmoid(CorrectGradient):
    """sigma' is taken for sigma: the factor 1 - sigma is missing."""

    killed_by = "ACT-VJP"

    def sigmoid_slope(self, sigma: Array) -> Array:
        return sigma


class GateCapMissing(CorrectGradient):
    """The term through the sigmoid has t where b1 t belongs."""

    killed_by = "ACT-VJP"

    def sigmoid_slope(self, sigma: Array) -> Array:
        return super().sigmoid_slope(sigma) / self.cap

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        self.cap = beta_gate
        return super().gradients(gate, up, c, beta_gate, beta_up)


class ChainRuleTwice(CorrectGradient):
    """The slope of up's softcap is divided by its cap, as if tanh(u / b2) were not scaled back."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return d_gate, d_up / beta_up


class SlopeAtTheOutput(CorrectGradient):
    """The slope of tanh is evaluated at tanh(z) instead of z."""

    killed_by = "ACT-VJP"

    def up_slope(self, r: Array, z: Array) -> Array:
        return 1 - np.square(np.tanh(r))


class SlopeUnscaled(CorrectGradient):
    """The slope of the gate's softcap is evaluated at g instead of g / b1."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        self.gate = gate
        return super().gradients(gate, up, c, beta_gate, beta_up)

    def gate_slope(self, t: Array, z: Array) -> Array:
        return 1 - np.square(np.tanh(self.gate))


class UpDetached(CorrectGradient):
    """up passes through a detach."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return d_gate, np.zeros_like(d_up)


class SlopeInBFloat16(CorrectGradient):
    """tanh is kept in bfloat16 for the backward pass, and 1 - t^2 formed from that."""

    killed_by = "ACT-VJP"

    def up_slope(self, r: Array, z: Array) -> Array:
        kept = r.astype(ml_dtypes.bfloat16).astype(r.dtype)
        return 1 - kept * kept


class InputsRoundedForBackward(CorrectGradient):
    """The backward pass recomputes the forward from inputs that were saved in bfloat16."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        saved = (z.astype(ml_dtypes.bfloat16).astype(z.dtype) for z in (gate, up))
        return super().gradients(*saved, c, beta_gate, beta_up)


class SignAtZero(CorrectGradient):
    """The softcap is sign(z) b tanh(abs(z) / b): autograd gives 0 at exactly 0."""

    killed_by = "ACT-VJP"

    def up_slope(self, r: Array, z: Array) -> Array:
        return np.where(z == 0, 0, 1 - r * r)


class BackwardBetasSwapped(CorrectGradient):
    """The backward pass takes the two caps in the wrong order."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        return super().gradients(gate, up, c, beta_up, beta_gate)


class ZeroGradients(CorrectGradient):
    """Zeros of the right shape."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        return np.zeros_like(gate), np.zeros_like(up)


class CotangentReturned(CorrectGradient):
    """The cotangent is handed through to both inputs, as if the operation were a sum."""

    killed_by = "ACT-VJP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        return c.copy(), c.copy()


class GradientStridesIgnored(CorrectGradient):
    """The cotangent's memory is read element after element: that of a sum holds one number."""

    killed_by = "ACT-LAYOUT"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        if 0 in c.strides and c.size > 1:
            first = c.reshape(-1)[0]
            c = np.zeros_like(c, order="C")
            c.reshape(-1)[0] = first
        return super().gradients(gate, up, c, beta_gate, beta_up)


class OneSlopeWrong(CorrectGradient):
    """A table of up's slopes has one wrong entry, at 11.375."""

    killed_by = "ACT-VJP-SWEEP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        entry = leading_digits(up) == np.float32(11.375)
        return d_gate, np.where(entry, d_up * np.float32(0.99), d_up)


class OneGateSlopeWrong(CorrectGradient):
    """A table of the gate's slopes has one wrong entry, at -2.28."""

    killed_by = "ACT-VJP-SWEEP"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        entry = leading_digits(gate) == np.float32(-2.28125)
        return np.where(entry, -d_gate, d_gate), d_up


class SwishSlopeAtInfinity(CorrectGradient):
    """The gate's gradient is formed as for g sigmoid(g): inf * 0 at an infinite gate."""

    killed_by = "ACT-VJP-FINITE"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return d_gate + 0 * gate, d_up


class OutputOverInput(CorrectGradient):
    """d_up is out / u times its logarithmic slope: inf/inf far out."""

    killed_by = "ACT-VJP-FINITE"

    def up_slope(self, r: Array, z: Array) -> Array:
        return np.where(np.abs(z) < 1, 1 - r * r, (1 / r - r) * (z / z) * r)


class SlopeFromOverflow(CorrectGradient):
    """1/cosh^2 as e / (1 + e)^2 with e = exp(2 z), which is inf/inf far out."""

    killed_by = "ACT-VJP-FINITE"

    def up_slope(self, r: Array, z: Array) -> Array:
        power = np.exp(2 * z)
        return 4 * power / np.square(1 + power)


class GradientNanDropped(CorrectGradient):
    """A guard replaces NaN in gradients by 0."""

    killed_by = "ACT-VJP-FINITE"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return np.nan_to_num(d_gate, nan=0.0), np.nan_to_num(d_up, nan=0.0)


class GradientNanSpreads(CorrectGradient):
    """Gradients are scaled by their largest and back: a NaN takes all."""

    killed_by = "ACT-VJP-FINITE"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        pair = super().gradients(gate, up, c, beta_gate, beta_up)
        if c.size == 0:
            return pair
        d_gate, d_up = (d + 0 * np.max(np.abs(d)) for d in pair)
        return d_gate, d_up


class CotangentClipped(CorrectGradient):
    """Cotangents are clipped to 100 in size, a gradient clipping in the wrong place."""

    killed_by = "ACT-VJP-LINEAR"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        return super().gradients(gate, up, np.clip(c, -100, 100), beta_gate, beta_up)


class CotangentInFloat16(CorrectGradient):
    """The cotangent passes through float16: inf or 0 under a loss scale."""

    killed_by = "ACT-VJP-LINEAR"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        narrow = c.astype(np.float16).astype(c.dtype)
        return super().gradients(gate, up, narrow, beta_gate, beta_up)


class CotangentSizeOnly(CorrectGradient):
    """abs(c) takes the place of c."""

    killed_by = "ACT-VJP-LINEAR"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        return super().gradients(gate, up, np.abs(c), beta_gate, beta_up)


class ForwardAdded(CorrectGradient):
    """A buffer that is not cleared adds the forward result to d_up."""

    killed_by = "ACT-VJP-LINEAR"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return d_gate, d_up + self.product(gate, up, beta_gate, beta_up)


class SwigluGradient(CorrectGradient):
    """The gradients of SwiGLU, under a forward of SiTU: they grow with up and with the gate."""

    killed_by = "ACT-VJP-BOUND"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        sigma = self.sigmoid(gate, beta_gate)
        swish = gate * sigma
        return (sigma + swish * (1 - sigma)) * up * c, swish * c


class UncappedUpInGradient(CorrectGradient):
    """d_gate is multiplied by up where the capped up belongs."""

    killed_by = "ACT-VJP-BOUND"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        r = beta_up * self.tanh(up / beta_up)
        return np.where(r == 0, d_gate, d_gate / r * up), d_up


class DeadBeyondTheCap(HardClampSlope):
    """The same mask, where it kills gradients."""

    killed_by = "ACT-ALIVE"


class DeadGateBeyondTheCap(CorrectGradient):
    """The gate is clamped in the backward pass: no gradient at all past its cap."""

    killed_by = "ACT-ALIVE"

    def gradients(self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float) -> Pair:
        d_gate, d_up = super().gradients(gate, up, c, beta_gate, beta_up)
        return np.where(gate > beta_gate, 0, d_gate), d_up
