"""Gradients of SiTU-GLU that are right for usual caps, shapes and cotangents in memory.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from impl_torch.adapter import BFloat16
from properties.protocol import Array
from properties.reference import Reference


class BackwardCapsUpTo1000(Reference):
    """The backward pass brings caps down to 1000, which the forward pass does not."""

    killed_by = "ACT-VJP"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        lower = {name: cap if np.isinf(cap) else min(cap, 1e3) for name, cap in caps.items()}
        return super().situ_glu_vjp(gate, up, cotangent, **lower)


class BackwardCapsFromATenth(Reference):
    """The backward pass brings caps up to 0.1."""

    killed_by = "ACT-VJP"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        higher = {name: max(cap, 0.1) if cap > 0.0 else cap for name, cap in caps.items()}
        return super().situ_glu_vjp(gate, up, cotangent, **higher)


class BackwardCapsInBFloat16(BFloat16):
    """The backward pass of bfloat16 tensors takes caps that a module's cast has rounded as well."""

    killed_by = "ACT-VJP"
    name = "mutant"

    def situ_glu_vjp(self, gate: Array, up: Array, cotangent: Array, **caps: float) -> Any:
        cast = {name: float(np.array(cap).astype(bfloat16)) for name, cap in caps.items()}
        return self._situ_glu_vjp(gate, up, cotangent, **cast)


class ExpandedCotangentIsOne(Reference):
    """A cotangent of strides 0 is taken for that of a plain sum, ones."""

    killed_by = "ACT-LAYOUT"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        if cotangent.size > 1 and not any(cotangent.strides):
            cotangent = np.ones(cotangent.shape)
        return super().situ_glu_vjp(gate, up, cotangent, **caps)


class ExpandedColumnReadFlat(Reference):
    """A cotangent of one column is read as if each of its numbers lay in memory."""

    killed_by = "ACT-LAYOUT"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        if cotangent.ndim > 1 and cotangent.shape[-1] > 1 and cotangent.strides[-1] == 0:
            cotangent = np.resize(cotangent[..., 0], cotangent.shape)
        return super().situ_glu_vjp(gate, up, cotangent, **caps)


class GradientOfOneElement(Reference):
    """Arrays of one element come back with one axis, whatever they had."""

    killed_by = "ACT-VJP"
    verdict = "adapter error"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        d_gate, d_up = super().situ_glu_vjp(gate, up, cotangent, **caps)
        return (d_gate.reshape(1), d_up.reshape(1)) if gate.size == 1 else (d_gate, d_up)
