"""Parameters of whole models, counted from their published configurations.

Legend: N routed experts, K top_k, D model width, L latent width, H hidden width, S shared experts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from properties.protocol import Array, ExpertParameters, LayerParameters

__all__ = ["DEEPSEEK_V3", "K3", "MIXTRAL", "LatentLayers", "Model", "gated"]


def _absent(*shape: int) -> Array:
    """An array of that shape and size which takes no memory."""
    array: Array = np.broadcast_to(np.zeros(()), shape)
    return array


def _numbers(parameters: Any) -> int:
    """The elements of an array, or of all arrays in a dataclass of parameters."""
    if isinstance(parameters, np.ndarray):
        return parameters.size
    return sum(_numbers(getattr(parameters, field.name)) for field in fields(parameters))


def _experts(experts: int, hidden: int, width: int) -> ExpertParameters:
    inward, outward = _absent(experts, hidden, width), _absent(experts, width, hidden)
    return ExpertParameters(inward, inward, outward)


@dataclass(frozen=True)
class LatentLayers:
    """So many layers of Eq. 11; sizes as in the legend."""

    layers: int
    experts: int
    top_k: int
    width: int
    latent: int
    hidden: int
    shared: int

    @property
    def layer(self) -> LayerParameters:
        """One layer's arrays, as an implementation is given them, but without memory."""
        return LayerParameters(
            gate_weight=_absent(self.experts, self.width),
            e_score_correction_bias=_absent(self.experts),
            routed_expert_down_proj=_absent(self.latent, self.width),
            experts=_experts(self.experts, self.hidden, self.latent),
            routed_expert_norm=_absent(self.latent),
            routed_expert_up_proj=_absent(self.width, self.latent),
            shared_experts=_experts(self.shared, self.hidden, self.width),
        )

    @property
    def routed(self) -> int:
        """The routed experts' parameters in all layers."""
        return self.layers * _numbers(self.layer.experts)

    @property
    def router(self) -> int:
        """One layer's router: its weight and the selection bias."""
        return _numbers(self.layer.gate_weight) + _numbers(self.layer.e_score_correction_bias)

    @property
    def active(self) -> int:
        """What one token meets in one layer, without the router: K of N experts, and all else."""
        layer = self.layer
        unchosen = _numbers(layer.experts) // self.experts * (self.experts - self.top_k)
        return _numbers(layer) - unchosen - self.router


K3 = LatentLayers(92, experts=896, top_k=16, width=7168, latent=3584, hidden=3072, shared=2)


def gated(width: int, hidden: int) -> int:
    """A feed-forward block with three projections."""
    return _numbers(_experts(1, hidden, width))


@dataclass(frozen=True)
class Model:
    """A transformer whose experts work at its full width.

    ``attention`` is one layer's attention with its norms; ``dense_hidden`` the hidden width of the
    layers without experts.
    """

    vocabulary: int
    width: int
    layers: int
    attention: int
    experts: int
    top_k: int
    hidden: int
    shared: int = 0
    dense_layers: int = 0
    dense_hidden: int = 0
    selection_bias: bool = False

    @property
    def embedding(self) -> int:
        """The table of input embeddings; the output head is as large."""
        return self.vocabulary * self.width

    @property
    def total(self) -> int:
        """Every parameter."""
        return self._with_experts(self.experts)

    @property
    def active(self) -> int:
        """Those of the layers, head and embeddings that one token's K experts leave in."""
        return self._with_experts(self.top_k)

    def _with_experts(self, used: int) -> int:
        router = self.experts * self.width + self.experts * self.selection_bias
        expert_layers = self.layers - self.dense_layers
        blocks = expert_layers * (router + (used + self.shared) * gated(self.width, self.hidden))
        blocks += self.dense_layers * gated(self.width, self.dense_hidden)
        return 2 * self.embedding + self.layers * self.attention + blocks + self.width


def _grouped_attention(width: int, heads: int, key_heads: int) -> int:
    """Queries, keys, values and output of heads of equal size, and the layer's two norms."""
    keys = width // heads * key_heads
    return 2 * width * width + 2 * width * keys + 2 * width


def _latent_attention(
    width: int, heads: int, query_rank: int, key_rank: int, plain: int, rotary: int, value: int
) -> int:
    """Queries and keys through low ranks with norms of their own, and the layer's two norms."""
    queries = width * query_rank + query_rank + query_rank * heads * (plain + rotary)
    keys = width * (key_rank + rotary) + key_rank + key_rank * heads * (plain + value)
    return queries + keys + heads * value * width + 2 * width


# mistralai/Mixtral-8x7B-v0.1, config.json.
MIXTRAL = Model(
    vocabulary=32_000,
    width=4096,
    layers=32,
    attention=_grouped_attention(4096, heads=32, key_heads=8),
    experts=8,
    top_k=2,
    hidden=14_336,
)

# deepseek-ai/DeepSeek-V3, config.json, without the layer that predicts a second token.
DEEPSEEK_V3 = Model(
    vocabulary=129_280,
    width=7168,
    layers=61,
    attention=_latent_attention(7168, 128, 1536, 512, plain=128, rotary=64, value=128),
    experts=256,
    top_k=8,
    hidden=2048,
    shared=1,
    dense_layers=3,
    dense_hidden=18_432,
    selection_bias=True,
)
