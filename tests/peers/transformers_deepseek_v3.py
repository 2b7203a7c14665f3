"""DeepSeek-V3's router, experts and norm in transformers 5.23.0, as an implementation for the gate.

    latentmoe-gate run tests.peers.transformers_deepseek_v3:Float32

DeepSeek-V3 has no latent width and no SiTU: there is no ``layer`` and no ``situ_glu``. Its experts
run with SiTU in place of SwiGLU: what is judged is the dispatch (sort, grouped matrix product,
weights, way back), not the activation.
"""

from dataclasses import replace

import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from tests.peers.transformers_moe import (
    BFLOAT16,
    TransformersExperts,
    TransformersGroupedRouter,
)


class _Experts(TransformersExperts):
    """The experts alone."""

    modeling, prefix = deepseek, "DeepseekV3"

    def experts_config(self, *, num_experts, hidden, width):
        return DeepseekV3Config(
            hidden_size=width,
            moe_intermediate_size=hidden,
            n_routed_experts=num_experts,
            experts_implementation=self.experts_implementation,
        )


class Float32(_Experts, TransformersGroupedRouter):
    """Parameters and hidden states in float32; grouped_mm, the default path of a loaded model."""

    name = "transformers, DeepSeek-V3 router and experts"

    def router_config(self, *, num_experts, top_k, width, num_groups=1, top_groups=1):
        return DeepseekV3Config(
            hidden_size=width,
            n_routed_experts=num_experts,
            num_experts_per_tok=top_k,
            n_group=num_groups,
            topk_group=top_groups,
            routed_scaling_factor=1.0,  # 2.5 unless told otherwise
        )


class Float32Batched(_Experts):
    """Experts with batched_mm, which gathers each token's expert matrices."""

    name = "transformers, DeepSeek-V3 experts, batched"
    experts_implementation = "batched_mm"


class Float32Eager(_Experts):
    """Experts with the loop over them that the model's file writes out."""

    name = "transformers, DeepSeek-V3 experts, eager"
    experts_implementation = "eager"


class BFloat16(Float32):
    """Parameters and hidden states in bfloat16; the router computes in float32."""

    precision = BFLOAT16
    dtype = torch.bfloat16


class BFloat16Eager(Float32Eager):
    """The loop in bfloat16. It adds the k weighted terms into a bfloat16 tensor, so says so."""

    precision = replace(BFLOAT16, accumulate="bfloat16")
    dtype = torch.bfloat16
