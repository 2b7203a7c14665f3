"""Dispatches that are right up to a few hundred tokens, experts and hidden units.

``killed_by`` names the property that has to catch it. Legend: M tokens, N experts, K top_k,
H hidden width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, ExpertParameters
from properties.reference import Reference


class Capacity(Reference):
    """An expert takes 512 tokens."""

    killed_by = "DSP-SIZES"

    def experts(
        self, x: Array, expert_ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        taken = _first(expert_ids, weights, 512)
        return super().experts(x, expert_ids, taken, parameters, **caps)


class IdsOfNineBits(Reference):
    """Ids are kept in nine bits: expert 512 is expert 0."""

    killed_by = "DSP-SIZES"

    def experts(self, x: Array, expert_ids: Array, *others: Any, **caps: Any) -> Array:
        return super().experts(x, expert_ids % 512, *others, **caps)


class HiddenUnitsCutDown(Reference):
    """There are 256 hidden units at most."""

    killed_by = "DSP-SIZES"

    def experts(
        self, x: Array, expert_ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        fewer = ExpertParameters(
            parameters.gate_proj[:, :256],
            parameters.up_proj[:, :256],
            parameters.down_proj[:, :, :256],
        )
        return super().experts(x, expert_ids, weights, fewer, **caps)


class SlotsAfterTheSixteenth(Reference):
    """Slots after the sixteenth have no gradient of their weight."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(self, *call: Any, **caps: Any) -> Any:
        d_x, d_weights, d_parameters = super().experts_vjp(*call, **caps)
        d_weights[:, 16:] = 0.0
        return d_x, d_weights, d_parameters


class GradientOfTheFirstTokens(Reference):
    """Parameters learn from the first 512 tokens of each expert."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(
        self, x: Array, expert_ids: Array, weights: Array, *others: Any, **caps: Any
    ) -> Any:
        d_x, d_weights, _ = super().experts_vjp(x, expert_ids, weights, *others, **caps)
        taken = _first(expert_ids, weights, 512)
        return d_x, d_weights, super().experts_vjp(x, expert_ids, taken, *others, **caps)[2]


class SmallWeightsSkipped(Reference):
    """Slots that weigh less than 1e-6 are skipped."""

    killed_by = "DSP-ROWS"

    def experts(self, x: Array, expert_ids: Array, weights: Array, *others: Any, **k: Any) -> Array:
        kept = np.where(weights < 1e-6, 0.0, weights)
        kept = kept if len(x) > 1 else weights
        return super().experts(x, expert_ids, kept, *others, **k)


class CotangentsClipped(Reference):
    """Cotangents beyond 1e5 are clipped."""

    killed_by = "DSP-GRAD"

    def experts_vjp(self, *call: Any, **caps: Any) -> Any:
        *rest, cotangent = call
        return super().experts_vjp(*rest, np.clip(cotangent, -1e5, 1e5), **caps)


def _first(expert_ids: Array, weights: Array, most: int) -> Array:
    """The weights, 0 for every token of an expert after so many."""
    kept = weights.copy()
    for j in np.unique(expert_ids):
        tokens, slots = np.nonzero(expert_ids == j)
        kept[tokens[most:], slots[most:]] = 0.0
    return kept
