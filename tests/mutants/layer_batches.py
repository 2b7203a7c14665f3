"""Layers that mix up sequences of a batch, or what is left of a longer one.

``killed_by`` names the property that has to catch it. Legend: M tokens, D model width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from properties.protocol import Array, LayerConfig, LayerParameters
from properties.reference import Reference


class SequencesReadRowByRow(Reference):
    """Sequences that are cut out of a longer buffer are read row by row, past the end of each."""

    killed_by = "LAY-LAYOUT"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        if x.ndim == 3 and x.strides[0] > x.shape[1] * x.strides[1] > 0:
            rows_MD = as_strided(x, (x.shape[0] * x.shape[1], x.shape[2]), x.strides[1:])
            x = np.array(rows_MD).reshape(x.shape)
        return super().layer(x, parameters, config=config, training=training)


class HalvesJoinedAlongTheBatch(Reference):
    """The backward pass takes long sequences in halves, and joins d_x as if those were batches."""

    killed_by = "LAY-LAYOUT"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        d_x, d_parameters = super().layer_vjp(x, parameters, cotangent, config=config)
        if x.ndim == 3 and x.shape[1] > 16 and x.shape[1] % 2 == 0:
            halves = np.split(d_x, 2, axis=1)
            d_x = np.concatenate(halves).reshape(x.shape)
        return d_x, d_parameters


class PaddingOfALongerBatch(Reference):
    """Tokens are filled up to a multiple of 8 with those that a longer batch has left there."""

    killed_by = "LAY-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[Any, tuple[Array, Array]] = {}

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        tokens, rows = -(-len(x) // 8) * 8, len(x)
        if x.ndim != 2 or not rows:
            return super().layer_vjp(x, parameters, cotangent, config=config)
        key = tokens, parameters.gate_weight.shape, parameters.experts.gate_proj.shape
        zeros = np.zeros((tokens, x.shape[1])), np.zeros((tokens, x.shape[1]))
        held = self._buffers.setdefault(key, zeros)
        for buffer, values in zip(held, (x, cotangent), strict=True):
            buffer[:rows] = values
        d_x, d_parameters = super().layer_vjp(held[0], parameters, held[1], config=config)
        return np.array(d_x[:rows]), d_parameters
