"""Wrong SiTU-GLUs at their limits, in their arguments, or at single numbers, in float32 NumPy.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array, Conventions
from tests.mutants.activation import Correct
from tests.mutants.activation_gradient import CorrectGradient, Pair, leading_digits


class OneTableEntryWrong(Correct):
    """tanh comes from a table of 65,536 entries, one of which is wrong."""

    killed_by = "ACT-SWEEP"

    def up_cap(self, z: Array, beta: float) -> Array:
        entry = leading_digits(z) == np.float32(3.46875)
        return np.where(entry, np.float32(0.99), np.float32(1)) * super().up_cap(z, beta)


class SeamOfPolynomials(Correct):
    """sigmoid is in two pieces, and the one right of g = -8 is used a little too far."""

    killed_by = "ACT-SWEEP"

    def sigmoid(self, z: Array, beta: float) -> Array:
        sigma = super().sigmoid(z, beta)
        return np.where((z <= -8) & (z > -8.0625), np.float32(1.001) * sigma, sigma)


class StopsShort(Correct):
    """tanh clamps its argument to 7, and so never arrives at 1."""

    killed_by = "ACT-ATTAIN"

    def tanh(self, z: Array) -> Array:
        return np.tanh(np.clip(z, -7, 7))


class RationalTanh(Correct):
    """tanh as (1 - e) / (1 + e) from e = exp(-2 z): -inf/inf at minus infinity."""

    killed_by = "ACT-ATTAIN"

    def tanh(self, z: Array) -> Array:
        power = np.exp(-2 * z)
        return (1 - power) / (1 + power)


class SigmoidOfCappedGate(Correct):
    """The sigmoid reads the capped gate: closed gates leak."""

    killed_by = "ACT-BRANCH"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        capped = self.gate_cap(gate, beta_gate)
        return capped * self.sigmoid(capped, beta_gate) * self.up_cap(up, beta_up)


class HardSigmoid(Correct):
    """The sigmoid is clip(z/6 + 1/2, 0, 1)."""

    killed_by = "ACT-BRANCH"

    def sigmoid(self, z: Array, beta: float) -> Array:
        return np.clip(z / 6 + np.float32(0.5), 0, 1)


class TailCutOff(Correct):
    """The sigmoid stops at exp(-20), as if it clamped its argument."""

    killed_by = "ACT-BRANCH"

    def sigmoid(self, z: Array, beta: float) -> Array:
        return super().sigmoid(np.maximum(z, -20), beta)


class LargestCap(Correct):
    """Caps are clamped to 1000."""

    killed_by = "ACT-LIMIT"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(gate, up, min(beta_gate, 1000.0), min(beta_up, 1000.0))


class TanhCancels(Correct):
    """tanh as 1 - 2 / (exp(2 z) + 1): noise for tiny arguments, as large caps make them."""

    killed_by = "ACT-LIMIT"

    def tanh(self, z: Array) -> Array:
        return 1 - 2 / (np.exp(2 * z) + 1)


class SteepOrigin(Correct):
    """The softcap is b tanh(1.01 z / b), which exceeds z near the origin."""

    killed_by = "ACT-BELOW"

    def up_cap(self, z: Array, beta: float) -> Array:
        return super().up_cap(np.float32(1.01) * z, beta)


class AbsoluteUp(Correct):
    """The result has the sign of the gate alone."""

    killed_by = "ACT-BELOW"

    def up_cap(self, z: Array, beta: float) -> Array:
        return np.abs(super().up_cap(z, beta))


class TaylorFoldsBack(Correct):
    """tanh is its Taylor polynomial up to 2, which falls again from 1 on, and ±1 beyond."""

    killed_by = "ACT-MONO"

    def up_cap(self, z: Array, beta: float) -> Array:
        x = z / beta
        return beta * np.where(np.abs(x) < 2, x - x * x * x / 3, np.sign(x))


class IndexWrapsAround(Correct):
    """A table of tanh for 4 caps starts over beyond its end."""

    killed_by = "ACT-MONO"

    def up_cap(self, z: Array, beta: float) -> Array:
        return super().up_cap(np.where(np.isinf(z), z, np.fmod(z, 4 * beta)), beta)


class Float8Swiglu(Correct):
    """SwiGLU instead of SiTU, where float8 overflows."""

    killed_by = "ACT-FP8"

    def gate_cap(self, z: Array, beta: float) -> Array:
        return z

    up_cap = gate_cap


class Float8Scaled(Correct):
    """The result carries a scale of 8 for float8, which nobody divides out."""

    killed_by = "ACT-FP8"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return np.float32(8) * super().product(gate, up, beta_gate, beta_up)


class AliasedOutput(Correct):
    """Where up is the memory of gate, or overlaps it, up is taken for the gate's scratch."""

    killed_by = "ACT-LAYOUT"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        if np.shares_memory(gate, up):
            up = self.sigmoid(gate, beta_gate)
        return super().product(gate, up, beta_gate, beta_up)


class AssumesAlignment(Correct):
    """Reads start at the last multiple of 16 bytes."""

    killed_by = "ACT-LAYOUT"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        if gate.base is not None and gate.size and gate.flags.c_contiguous:
            gate = np.roll(gate, gate.ctypes.data % 16 // 4)
        return super().product(gate, up, beta_gate, beta_up)


class NoElements(Correct):
    """A maximum over the input fails on no elements."""

    killed_by = "ACT-LAYOUT"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        np.max(gate)
        return super().product(gate, up, beta_gate, beta_up)


class Exchanged(Correct):
    """up first, then the gate, as one library's class takes them."""

    killed_by = "ACT-ORDER"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        return super().product(up, gate, beta_gate, beta_up)


class InterleavedForConcatenated(Correct):
    """The fused columns [gate | up] are read as alternating gate and up."""

    killed_by = "ACT-ORDER"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        fused = np.concatenate([gate, up], axis=-1)
        return super().product(fused[..., 0::2], fused[..., 1::2], beta_gate, beta_up)


class ConcatenatedForInterleaved(Correct):
    """Alternating columns of gate and up are read as two halves."""

    killed_by = "ACT-ORDER"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        fused = np.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], -1)
        width = gate.shape[-1]
        return super().product(fused[..., :width], fused[..., width:], beta_gate, beta_up)


class HalvesOfTheTensor(Correct):
    """The fused tensor is cut in halves as a whole instead of row by row."""

    killed_by = "ACT-ORDER"

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        first, second = np.concatenate([gate, up], axis=-1).reshape(2, *gate.shape)
        return super().product(first, second, beta_gate, beta_up)


class AnyCap(Correct):
    """Caps are not looked at: NaN for 0 and inf, and the softcap of 4 for -4."""

    killed_by = "ACT-REJECT"

    def check(self, beta_gate: float, beta_up: float) -> None:
        pass


class ZeroCapDivides(Correct):
    """Only a division by zero stops a cap of 0; the others are refused."""

    killed_by = "ACT-REJECT"

    def check(self, beta_gate: float, beta_up: float) -> None:
        1 / beta_gate + 1 / beta_up
        if not (0 <= beta_gate < np.inf and 0 <= beta_up < np.inf):
            raise ValueError(f"caps must be positive, not {beta_gate} and {beta_up}")


class SilentlyOff(Correct):
    """A cap up to 0 or not finite switches its softcap off, and nobody is told."""

    killed_by = "ACT-REJECT"

    def check(self, beta_gate: float, beta_up: float) -> None:
        pass

    def gate_cap(self, z: Array, beta: float) -> Array:
        return super().gate_cap(z, beta) if 0 < beta < np.inf else z

    up_cap = gate_cap


class OffIsZero(SilentlyOff):
    """0 is declared as off, and makes the factor 0 instead of the identity."""

    killed_by = "ACT-REJECT"
    conventions = Conventions(beta_off=0.0)

    def gate_cap(self, z: Array, beta: float) -> Array:
        if not beta < np.inf:
            raise ValueError(f"a cap must be finite, not {beta}")
        return super().gate_cap(z, beta) if beta > 0 else np.zeros_like(z)

    up_cap = gate_cap


class RefusedForwardOnly(CorrectGradient):
    """The forward pass refuses senseless caps, and the backward pass computes with them."""

    killed_by = "ACT-REJECT"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> Pair:
        with np.errstate(all="ignore"):
            return self.gradients(gate, up, cotangent, beta_gate, beta_up)
