"""Kimi Linear's router, experts and norm in transformers 5.23.0, as an implementation for the gate.

    latentmoe-gate run tests.peers.transformers_kimi_linear:Float32

The text of its router and experts is DeepSeek-V3's, and so is what can be reached: no latent width,
no SiTU, hence no ``layer`` and no ``situ_glu``.
"""

import torch
from transformers import KimiLinearConfig
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear

from tests.peers.transformers_moe import (
    BFLOAT16,
    TransformersExperts,
    TransformersGroupedRouter,
)


class Float32(TransformersExperts, TransformersGroupedRouter):
    """Parameters and hidden states in float32; grouped_mm."""

    name = "transformers, Kimi Linear router and experts"
    modeling, prefix = kimi_linear, "KimiLinear"

    def router_config(self, *, num_experts, top_k, width, num_groups=1, top_groups=1):
        return KimiLinearConfig(
            hidden_size=width,
            num_local_experts=num_experts,
            num_experts_per_tok=top_k,
            n_group=num_groups,
            topk_group=top_groups,
            routed_scaling_factor=1.0,
        )

    def experts_config(self, *, num_experts, hidden, width):
        return KimiLinearConfig(
            hidden_size=width,
            moe_intermediate_size=hidden,
            num_local_experts=num_experts,
            experts_implementation=self.experts_implementation,
        )


class BFloat16(Float32):
    """Parameters and hidden states in bfloat16; the router computes in float32."""

    precision = BFLOAT16
    dtype = torch.bfloat16
