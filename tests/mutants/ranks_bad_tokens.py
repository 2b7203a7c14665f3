"""Experts and layers on several ranks in which a bad token spoils others; in one process none.

A bad token is one of NaN or infinities.

``killed_by`` names the property that has to catch it. Legend: M tokens, K top_k, L latent width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array
from tests.mutants.ranks_parallel import Dispatched, LayerInParts


class KeptInTheGraph(Dispatched):
    """0 times the sum of x is added to the result, so that experts without tokens take part."""

    killed_by = "DSP-PARALLEL"

    def experts(self, x: Array, expert_ids: Array, *call: Any, **caps: Any) -> Array:
        (everyone,), _ = self.gathered(x)
        return super().experts(x, expert_ids, *call, **caps) + _nothing(self, everyone)


class RankKeptInTheGraph(Dispatched):
    """The same with the tokens of the rank alone."""

    killed_by = "DSP-PARALLEL"

    def experts(self, x: Array, expert_ids: Array, *call: Any, **caps: Any) -> Array:
        return super().experts(x, expert_ids, *call, **caps) + _nothing(self, x)


class GradientsKeptInTheGraph(Dispatched):
    """0 times the sum of all cotangents is added to d_x."""

    killed_by = "DSP-PARALLEL"

    def experts_vjp(self, *call: Any, **caps: Any) -> Any:
        (everyone,), _ = self.gathered(call[4])
        d_x, *others = super().experts_vjp(*call, **caps)
        return d_x + _nothing(self, everyone), *others


class MaskedByAProduct(Dispatched):
    """Rows are picked by a product with a 0/1 matrix, in which 0 times NaN is NaN."""

    killed_by = "DSP-PARALLEL"

    def added(self, part: Array) -> Array:
        total = super().added(part)
        if self.size == 1:
            return total
        with np.errstate(invalid="ignore"):
            return np.eye(len(total)) @ total


class LayerKeptInTheGraph(LayerInParts):
    """0 times the sum of all ranks' tokens is added to the layer's output."""

    killed_by = "LAY-PARALLEL"

    def layer(self, x: Array, *call: Any, **options: Any) -> Array:
        (everyone,), _ = self.gathered(x.reshape(-1, x.shape[-1]))
        return super().layer(x, *call, **options) + _nothing(self, everyone)


class LayerGradientsKeptInTheGraph(LayerInParts):
    """0 times the sum of the rank's own cotangents is added to d_x."""

    killed_by = "LAY-PARALLEL"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return d_x + _nothing(self, cotangent), gradients


class LayerInOrderByAProduct(LayerInParts):
    """Sums come back in order by a product with a 0/1 matrix, in which 0 times NaN is NaN."""

    killed_by = "LAY-PARALLEL"

    def added(self, part: Array) -> Array:
        total = super().added(part)
        if self.size == 1:
            return total
        with np.errstate(invalid="ignore"):
            return np.eye(len(total)) @ total


def _nothing(world: Dispatched, values: Array) -> float:
    """0, or NaN where a value is no number; 0 in one process."""
    with np.errstate(invalid="ignore"):
        return 0.0 if world.size == 1 else 0.0 * float(values.sum())
