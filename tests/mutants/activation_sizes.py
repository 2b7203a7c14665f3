"""Activations that are right at most sizes, and behind axes that merge into one.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array
from properties.reference import Reference
from tests.mutants.norm_sizes import by_one_stride


class BatchOffsetOfTheFirstTile(Reference):
    """Of (B, S, H), tiles of 32 columns beyond the first read up of the first batch."""

    killed_by = "ACT-SIZES"

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        if up.ndim == 3 and up.shape[-1] > 32:
            up = np.concatenate([up[..., :32], np.repeat(up[:1, :, 32:], len(up), 0)], axis=-1)
        return super().situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)


class FullTilesLackABlock(Reference):
    """A multiple of 512 elements takes the path without masks, whose last 512 stay 0."""

    killed_by = "ACT-SIZES"

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        out = super().situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)
        if out.size and out.size % 512 == 0:
            out.reshape(-1)[-512:] = 0.0
        return out


class GradientOfOneBlock(Reference):
    """The gradient of one axis has a block of 1,024 threads: later elements get 0."""

    killed_by = "ACT-SIZES"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        parts = super().situ_glu_vjp(gate, up, cotangent, beta_gate=beta_gate, beta_up=beta_up)
        if gate.ndim == 1:
            for part in parts:
                part[1024:] = 0.0
        return parts


class UpByOneStride(Reference):
    """up of three axes is walked by the stride of the axis before the last."""

    killed_by = "ACT-AXES"

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        return super().situ_glu(gate, by_one_stride(up), beta_gate=beta_gate, beta_up=beta_up)


class CotangentByOneStride(Reference):
    """The cotangent of three axes is walked by the stride of the axis before the last."""

    killed_by = "ACT-AXES"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        walked = by_one_stride(cotangent)
        return super().situ_glu_vjp(gate, up, walked, beta_gate=beta_gate, beta_up=beta_up)
