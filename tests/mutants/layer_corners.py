"""Layers that are right wherever one dimension is long, and wrong where two are.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.protocol import Array, ExpertParameters, LayerConfig, LayerParameters
from properties.reference import Reference


def _corner_of_first_rows(product: Array, rows: int, columns: int) -> Array:
    """In second tiles both ways, the rows are those of the first tile."""
    product = np.array(product)
    later = np.arange(rows, len(product))
    product[rows:, columns:] = product[later % rows, columns:]
    return product


class RouterTilesOffTheEdges(Reference):
    """The router of the layer has tiles of 128 tokens x 64 experts."""

    killed_by = "LAY-SIZES"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        tokens = x.reshape(-1, x.shape[-1])
        logits = _corner_of_first_rows(
            reference.router_logits(tokens, parameters.gate_weight), 128, 64
        )
        bias = parameters.e_score_correction_bias
        routing = reference.route(logits, bias, top_k=config.top_k)
        return reference.layer(x, parameters, config=config, routing=routing)


class UpTilesOffTheEdges(Reference):
    """The up projection of the layer has tiles of 128 tokens x 128 columns."""

    killed_by = "LAY-SIZES"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        def shared_alone(tokens: Array) -> Array:
            silent = np.zeros_like(parameters.routed_expert_up_proj)
            return super(UpTilesOffTheEdges, self).layer(
                tokens, replace(parameters, routed_expert_up_proj=silent), config=config
            )

        rows = x.reshape(-1, x.shape[-1])
        shared = shared_alone(rows)
        routed = super().layer(rows, parameters, config=config) - shared
        return (_corner_of_first_rows(routed, 128, 128) + shared).reshape(x.shape)


class SharedExpertsFusedBackward(Reference):
    """Where 16 divides G, shared experts are one, whose down gradient is not taken apart again."""

    killed_by = "LAY-SIZES"

    def layer_vjp(self, *arguments: Any, **options: Any) -> Any:
        d_x, d = super().layer_vjp(*arguments, **options)
        own = d.shared_experts
        shared, model, hidden = own.down_proj.shape
        if shared < 2 or hidden % 16:
            return d_x, d
        fused = np.swapaxes(own.down_proj, 0, 1).reshape(shared, model, hidden)
        return d_x, replace(d, shared_experts=ExpertParameters(own.gate_proj, own.up_proj, fused))


class DecodeOfThreeSharedExperts(Reference):
    """A kernel for a single token has room for three shared experts."""

    killed_by = "LAY-SIZES"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        own = parameters.shared_experts
        if x.size == x.shape[-1]:
            few = ExpertParameters(own.gate_proj[:3], own.up_proj[:3], own.down_proj[:3])
            parameters = replace(parameters, shared_experts=few)
        return super().layer(x, parameters, config=config)
