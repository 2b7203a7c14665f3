"""Routers that are right up to the end of a tile, or of a whole number of chunks.

``killed_by`` names the property that has to catch it. Legend: M tokens, N experts, D model width.
"""

from __future__ import annotations

import numpy as np

from properties.reference import Reference


class SecondTileOfRowsRepeats(Reference):
    """Rows from the 129th on read the first tile's x."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        logits = super().router_logits(x, parameters)
        rows = logits.reshape(-1, logits.shape[-1])
        return rows[np.arange(len(rows)) % 128].reshape(logits.shape)


class TenTilesOfExperts(Reference):
    """There is room for ten tiles of 64 experts; logits of later ones stay 0."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        logits = super().router_logits(x, parameters)
        return np.where(np.arange(logits.shape[-1]) < 640, logits, 0.0)


class LastChunkOfTheSumLeftOut(Reference):
    """Sums of more than 256 terms are those of whole chunks of 256."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        width = x.shape[-1]
        read = width // 256 * 256 if width > 256 else width
        return x[..., :read] @ parameters.gate_weight[:, :read].T
