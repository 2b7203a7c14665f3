"""Wrong SiTU-GLUs, each one step away from a correct one in float32 NumPy.

``killed_by`` names the property that has to catch it; ``verdict`` is there where that is not
"failed".
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from properties.protocol import Array, Precision


class Correct:
    """The formula in parts, so that a mutant replaces one of them."""

    name = "mutant"
    version = "1"
    precision = Precision(compute="float32", accumulate="float32", storage="float32")

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        self.check(beta_gate, beta_up)
        with np.errstate(all="ignore"):
            return self.product(gate, up, beta_gate, beta_up)

    def check(self, beta_gate: float, beta_up: float) -> None:
        if not (0 < beta_gate < np.inf and 0 < beta_up < np.inf):
            raise ValueError(f"caps must be positive and finite, not {beta_gate} and {beta_up}")

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        sigma = self.sigmoid(gate, beta_gate)
        return self.gate_cap(gate, beta_gate) * sigma * self.up_cap(up, beta_up)

    def gate_cap(self, z: Array, beta: float) -> Array:
        return beta * self.tanh(z / beta)

    def up_cap(self, z: Array, beta: float) -> Array:
        return beta * self.tanh(z / beta)

    def tanh(self, z: Array) -> Array:
        return np.tanh(z)

    def sigmoid(self, z: Array, beta: float) -> Array:
        return 1 / (1 + np.exp(-z))


class Swiglu(Correct):
    """SwiGLU instead of SiTU."""

    killed_by = "ACT-BOUND"

    def gate_cap(self, z: Array, beta: float) -> Array:
        return z

    up_cap = gate_cap


class CapOnGateOnly(Correct):
    """up passes uncapped."""

    killed_by = "ACT-BOUND"

    def up_cap(self, z: Array, beta: float) -> Array:
        return z


class CapOnUpOnly(Correct):
    """The gate passes uncapped."""

    killed_by = "ACT-BOUND"

    def gate_cap(self, z: Array, beta: float) -> Array:
        return z


class OvershootingTanh(Correct):
    """A rational tanh that exceeds 1 by one ulp: every value is accurate, the bound is not."""

    killed_by = "ACT-BOUND"

    def tanh(self, z: Array) -> Array:
        return np.tanh(z) * np.float32(1 + 2.0**-23)


class BoundForgottenAtInfinity(Correct):
    """An infinite up skips the cap, as a fast path for large inputs may."""

    killed_by = "ACT-BOUND"

    def up_cap(self, z: Array, beta: float) -> Array:
        return np.where(np.isinf(z), z, super().up_cap(z, beta))


class HardClamp(Correct):
    """Both inputs are clamped to their caps instead of passing through tanh."""

    killed_by = "ACT-VALUE"

    def gate_cap(self, z: Array, beta: float) -> Array:
        return np.clip(z, -beta, beta)

    up_cap = gate_cap


class BetasSwapped(Correct):
    """The gate gets the cap of up, and up that of the gate."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(gate, up, beta_up, beta_gate)


class DefaultBetaGate(Correct):
    """beta_gate stays at a default of 1."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(gate, up, 1.0, beta_up)


class ReportBetas(Correct):
    """The caps 4 and 25 are written into the kernel."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(gate, up, 4.0, 25.0)


class TanhFromExponentials(Correct):
    """tanh as (e^2z - 1) / (e^2z + 1): cancels near 0, inf/inf beyond 44."""

    killed_by = "ACT-VALUE"

    def tanh(self, z: Array) -> Array:
        power = np.exp(2 * z)
        return (power - 1) / (power + 1)


class TanhFromExponentialsAtInfinity(TanhFromExponentials):
    """The same formula, where it divides infinities."""

    killed_by = "ACT-FINITE"


class TanhFromSigmoid(Correct):
    """tanh as 2 sigmoid(2z) - 1: right in size everywhere, without accuracy near 0."""

    killed_by = "ACT-VALUE"

    def tanh(self, z: Array) -> Array:
        return 2 * self.sigmoid(2 * z, 1.0) - 1


class SigmoidFromTanh(Correct):
    """sigmoid as (1 + tanh(z/2)) / 2, which has no left tail."""

    killed_by = "ACT-VALUE"

    def sigmoid(self, z: Array, beta: float) -> Array:
        return (1 + np.tanh(z / 2)) / 2


class CapAfterSigmoid(Correct):
    """The softcap acts on gate * sigmoid(gate) instead of the gate alone."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        swish = np.where(np.isinf(gate), np.maximum(gate, 0), gate * self.sigmoid(gate, beta_gate))
        return self.gate_cap(swish, beta_gate) * self.up_cap(up, beta_up)


class GateAndUpSwapped(Correct):
    """The first argument is taken for up."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(up, gate, beta_gate, beta_up)


class StridesIgnored(Correct):
    """Memory is read element after element, whatever the strides."""

    killed_by = "ACT-VALUE"

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        raw = _packed(gate), _packed(up)
        return super().situ_glu(*raw, beta_gate=beta_gate, beta_up=beta_up)


def _packed(values: Array) -> Array:
    """What a kernel sees that takes the first address and the shape; inside the memory only."""
    if values.size == 0 or any(stride < 0 for stride in values.strides):
        return values
    steps = [
        values.itemsize * int(np.prod(values.shape[axis + 1 :])) for axis in range(values.ndim)
    ]
    return np.lib.stride_tricks.as_strided(values, values.shape, steps)


class VectorTailForgotten(Correct):
    """Elements after the last full vector of eight stay uncapped."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        out = super().product(gate, up, beta_gate, beta_up).reshape(-1)
        tail = slice(out.size - out.size % 8, None)
        uncapped = (gate * self.sigmoid(gate, beta_gate) * up).reshape(-1)
        out[tail] = uncapped[tail]
        return out.reshape(gate.shape)


class ComputedInBFloat16(Correct):
    """All arithmetic in bfloat16, handed out as float32."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        coarse = gate.astype(ml_dtypes.bfloat16), up.astype(ml_dtypes.bfloat16)
        caps = ml_dtypes.bfloat16(beta_gate), ml_dtypes.bfloat16(beta_up)
        return super().product(*coarse, *caps).astype(np.float32)


class ScaledSigmoid(Correct):
    """sigmoid(gate / beta_gate)."""

    killed_by = "ACT-ORIGIN"

    def sigmoid(self, z: Array, beta: float) -> Array:
        return super().sigmoid(z / beta, beta)


class SlopeForgotten(Correct):
    """beta_up tanh(up), with the division by the cap left out."""

    killed_by = "ACT-ORIGIN"

    def up_cap(self, z: Array, beta: float) -> Array:
        return beta * self.tanh(z)


class SmallerCap(Correct):
    """The cap of up is that of the gate."""

    killed_by = "ACT-ORIGIN"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(gate, up, beta_gate, beta_gate)


class UpPlusOne(Correct):
    """up + 1 multiplies the gate, as in GLUs of another family."""

    killed_by = "ACT-ODD"

    def up_cap(self, z: Array, beta: float) -> Array:
        return super().up_cap(z, beta) + 1


class ClampedFromAbove(Correct):
    """up is capped above and not below."""

    killed_by = "ACT-ODD"

    def up_cap(self, z: Array, beta: float) -> Array:
        return np.where(z > 0, super().up_cap(z, beta), z)


class SwishFirst(Correct):
    """The gate meets its sigmoid before its cap is divided out: inf * 0 at minus infinity."""

    killed_by = "ACT-FINITE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        swish = gate * self.sigmoid(gate, beta_gate)
        capped_share = np.where(gate == 0, 1, self.gate_cap(gate, beta_gate) / gate)
        return swish * capped_share * self.up_cap(up, beta_up)


class NanDropped(Correct):
    """A guard replaces NaN by 0."""

    killed_by = "ACT-FINITE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return np.nan_to_num(super().product(gate, up, beta_gate, beta_up), nan=0.0)


class ScaledByTheRow(Correct):
    """up is scaled by the row's largest element and back: a NaN takes the whole row."""

    killed_by = "ACT-FINITE"

    def up_cap(self, z: Array, beta: float) -> Array:
        capped = super().up_cap(z, beta)
        if z.size == 0:
            return capped
        scale = np.exp2(np.ceil(np.log2(np.max(np.abs(capped), axis=-1, keepdims=True))))
        return np.where(scale == 0, capped, capped / scale * scale)


class ZeroOutput(Correct):
    """Zeros of the right shape."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return np.zeros_like(gate)


class InputCopied(Correct):
    """up, unchanged."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return up.copy()


class RandomOutput(Correct):
    """Normal numbers of the right shape."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return np.random.default_rng(0).standard_normal(gate.shape, np.float32)


class WrongDtype(Correct):
    """float64 from an implementation that declares float32."""

    killed_by = "ACT-VALUE"
    verdict = "adapter error"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(gate, up, beta_gate, beta_up).astype(np.float64)


class WritesIntoGate(Correct):
    """The result is right, and gate is used as scratch memory."""

    killed_by = "ACT-VALUE"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        out = super().product(gate, up, beta_gate, beta_up)
        gate.setflags(write=True)
        np.multiply(gate, 2, out=gate)
        return out
