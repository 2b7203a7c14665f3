"""Experts that are right wherever one dimension is long, and wrong where two are, or one is split.

``killed_by`` names the property that has to catch it. Legend: M tokens, N experts, K top_k,
L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, ExpertParameters
from properties.reference import Reference
from tests.mutants.experts_holes import Grouped


class SplitSumOverwrites(Grouped):
    """An inner dimension of 1024 and more is split in two, and the second product is stored."""

    killed_by = "DSP-SIZES"

    def linear(self, x: Array, weight: Array) -> Array:
        inner = x.shape[-1]
        half = inner // 2 if inner >= 1024 else 0
        return super().linear(x[:, half:], weight[:, half:])


class CombineOf512Columns(Grouped):
    """The combine has 512 threads for a token and no loop: where K > 1 the rest stays 0."""

    killed_by = "DSP-SIZES"

    def experts(self, x: Array, ids: Array, *arguments: Any, **caps: Any) -> Array:
        out = np.array(super().experts(x, ids, *arguments, **caps))
        if ids.shape[1] > 1:
            out[:, 512:] = 0.0
        return out


class BlocksAtManyExperts(Reference):
    """Beyond 128 experts slots are sorted in blocks of 16 tokens, all with the first one's rows."""

    killed_by = "DSP-SIZES"

    def experts(self, x: Array, ids: Array, weights: Array, parameters: Any, **caps: Any) -> Array:
        if len(parameters.gate_proj) > 128:
            x = np.resize(x[:16], x.shape)
        return super().experts(x, ids, weights, parameters, **caps)


class Byte255IsNobody(Reference):
    """Up to 256 experts ids are bytes, of which 255 marks a dropped slot."""

    killed_by = "DSP-SIZES"

    def experts(self, x: Array, ids: Array, weights: Array, parameters: Any, **caps: Any) -> Array:
        dropped = (ids == 255) & (len(parameters.gate_proj) <= 256)
        return super().experts(x, ids, np.where(dropped, 0.0, weights), parameters, **caps)


class TilesOffTheDiagonal(Reference):
    """Gradients of gate_proj: where H and L are beyond 128, second tiles both ways stay 0."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(self, *arguments: Any, **caps: Any) -> Any:
        d_x, d_weights, d = super().experts_vjp(*arguments, **caps)
        d_gate = np.array(d.gate_proj)
        d_gate[:, 128:, 128:] = 0.0
        return d_x, d_weights, ExpertParameters(d_gate, d.up_proj, d.down_proj)


class CapsOfSixDigits(Reference):
    """The caps are printed into the source of a kernel by %g."""

    killed_by = "DSP-DENSE"

    def experts(self, *arguments: Any, **caps: float) -> Array:
        return super().experts(
            *arguments, **{name: float(f"{cap:g}") for name, cap in caps.items()}
        )
