"""SiTU-GLU that is right in few rows, few axes and a single call.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


class RowsAfterTheBlock(Reference):
    """Of a matrix, rows after the 64th are left at zero."""

    killed_by = "ACT-VALUE"

    def situ_glu(self, gate: Array, up: Array, **caps: float) -> Array:
        out = super().situ_glu(gate, up, **caps)
        return np.where(np.arange(len(out))[:, None] < 64, out, 0.0) if out.ndim == 2 else out


class GradientsOfFourAxes(Reference):
    """Behind three leading axes the two gradients change places."""

    killed_by = "ACT-VJP"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        d_gate, d_up = super().situ_glu_vjp(gate, up, cotangent, **caps)
        return (d_up, d_gate) if gate.ndim == 4 else (d_gate, d_up)


class ResultsInOneBuffer(Reference):
    """Results of one shape share a buffer."""

    killed_by = "ACT-ODD"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def situ_glu(self, gate: Array, up: Array, **caps: float) -> Array:
        out = super().situ_glu(gate, up, **caps)
        buffer = self.buffers.setdefault(out.shape, np.empty_like(out))
        buffer[...] = out
        return buffer


class GradientsInOneBuffer(Reference):
    """Gradients of the gate of one shape share a buffer."""

    killed_by = "ACT-VJP-LINEAR"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        d_gate, d_up = super().situ_glu_vjp(gate, up, cotangent, **caps)
        buffer = self.buffers.setdefault(d_gate.shape, np.empty_like(d_gate))
        buffer[...] = d_gate
        return buffer, d_up
