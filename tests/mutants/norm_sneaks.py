"""Norms that are right for few rows, narrow ones, a weight without gaps, and a single call.

``killed_by`` names the property that has to catch it. Legend: M rows, L the normalised width.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


class RowsAfterTheBlock(Reference):
    """Rows after the 32nd come back as they are."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps).reshape(-1, x.shape[-1])
        out[32:] = x.reshape(out.shape)[32:]
        return out.reshape(x.shape)


class MeanOfAThousandAndTwentyFour(Reference):
    """The mean square sees one block of 1,024 columns."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        mean_square = np.mean(np.square(x[..., :1024]), axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + eps) * weight


class WeightsStridesIgnored(Reference):
    """The weight is read from its lowest address on, number after number."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, np.ravel(weight[:: np.sign(weight.strides[0])]), eps=eps)


class FourAxesAreTwo(Reference):
    """Behind three leading axes, the last two are normalised together."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        if x.ndim < 4:
            return super().rms_norm(x, weight, eps=eps)
        mean_square = np.mean(np.square(x), axis=(-2, -1), keepdims=True)
        return x / np.sqrt(mean_square + eps) * weight


class ResultsInOneBuffer(Reference):
    """Results of one shape share a buffer."""

    killed_by = "NRM-SCALE"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps)
        buffer = self.buffers.setdefault(out.shape, np.empty_like(out))
        buffer[...] = out
        return buffer
