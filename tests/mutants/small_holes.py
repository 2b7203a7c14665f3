"""Norms and activations that are right but for large shapes, or an eps of 0.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


class EpsNotGiven(Reference):
    """An eps of 0 is taken for none, in place of which there is float32's roundoff."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=eps or 2.0**-23)


class GridOf128Rows(Reference):
    """Rows after the 128th are left 0."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps)
        out.reshape(-1, x.shape[-1])[128:] = 0.0
        return out


class BlockOf2048Columns(Reference):
    """The sum of squares is that of the first 2048 columns."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        square = np.square(x[..., :2048]).sum(axis=-1, keepdims=True) / x.shape[-1]
        return x / np.sqrt(square + eps) * weight


class GridOf65535Rows(Reference):
    """Rows after the 65,535th are not launched."""

    killed_by = "ACT-VALUE"

    def situ_glu(self, gate: Array, up: Array, **caps: Any) -> Array:
        out = np.array(super().situ_glu(gate, up, **caps))
        if out.ndim > 1 and out.size:
            out.reshape(-1, out.shape[-1])[65535:] = 0.0
        return out


class GridOf65535Gradients(Reference):
    """Rows of gradients after the 65,535th are not launched."""

    killed_by = "ACT-VJP"

    def situ_glu_vjp(self, gate: Array, *others: Array, **caps: Any) -> Any:
        gradients = tuple(map(np.array, super().situ_glu_vjp(gate, *others, **caps)))
        for one in gradients:
            if one.ndim > 1 and one.size:
                one.reshape(-1, one.shape[-1])[65535:] = 0.0
        return gradients


class TileOffTheEdges(Reference):
    """In tiles of 64 x 128 that are second or later both ways, up is that of the first rows."""

    killed_by = "ACT-VALUE"

    def situ_glu(self, gate: Array, up: Array, **caps: Any) -> Array:
        out = super().situ_glu(gate, up, **caps)
        if gate.ndim == 2 and gate.shape[0] > 64 and gate.shape[1] > 128:
            corner = gate[64:, 128:]
            first = np.resize(up[:64, 128:], corner.shape)
            out[64:, 128:] = super().situ_glu(corner, first, **caps)
        return out


class GradientOffTheEdges(Reference):
    """In tiles of 64 x 128 that are second or later both ways, the gate's gradient stays 0."""

    killed_by = "ACT-VJP"

    def situ_glu_vjp(self, *arrays: Array, **caps: Any) -> Any:
        d_gate, d_up = super().situ_glu_vjp(*arrays, **caps)
        if d_gate.ndim == 2:
            d_gate[64:, 128:] = 0.0
        return d_gate, d_up
