"""Nemotron-H's router, experts and norm in transformers 5.23.0, as an implementation for the gate.

    latentmoe-gate run tests.peers.transformers_nemotron_h:Float32

Its layer is latent too, W_up sum_j p_j E_j(W_down x), but has no norm before W_up, so it is not
Eq. 11 and ``layer`` is not offered. Its experts have one matrix and squared ReLU instead of a gate.
Here the matrix holds gate and up below one another and SiTU of the two halves stands in for the
squared ReLU: what is judged is the dispatch, at a latent width of its own.
"""

import torch
from transformers import NemotronHConfig
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron

from tests.peers.transformers_moe import (
    BFLOAT16,
    TransformersExperts,
    TransformersGroupedRouter,
    situ,
)


class Float32(TransformersExperts, TransformersGroupedRouter):
    """Parameters and hidden states in float32; grouped_mm."""

    name = "transformers, Nemotron-H router and latent experts"
    modeling, prefix = nemotron, "NemotronH"

    def router_config(self, *, num_experts, top_k, width, num_groups=1, top_groups=1):
        return NemotronHConfig(
            hidden_size=width,
            n_routed_experts=num_experts,
            num_experts_per_tok=top_k,
            n_group=num_groups,
            topk_group=top_groups,
            routed_scaling_factor=1.0,
        )

    def experts_config(self, *, num_experts, hidden, width):
        return NemotronHConfig(
            moe_latent_size=width,
            moe_intermediate_size=hidden,
            n_routed_experts=num_experts,
            experts_implementation=self.experts_implementation,
        )

    def situ_experts(self, config, beta_gate, beta_up):
        experts = nemotron.NemotronHExperts(config)
        experts.act_fn = SituOfHalves(beta_gate, beta_up)
        return experts

    def first_matrix(self, parameters):
        return "up_proj", torch.cat((parameters.gate_proj, parameters.up_proj), dim=1)


class Float32Eager(Float32):
    """The same with the loop over experts that the model's file writes out."""

    experts_implementation = "eager"


class BFloat16(Float32):
    """Parameters and hidden states in bfloat16; the router computes in float32."""

    precision = BFLOAT16
    dtype = torch.bfloat16


class BFloat16Eager(BFloat16):
    """The loop in bfloat16: unlike DeepSeek-V3's, it adds in the weights' float32."""

    experts_implementation = "eager"


class SituOfHalves(torch.nn.Module):
    """Stands in for squared ReLU: SiTU of the first and the second half of the last axis."""

    def __init__(self, beta_gate, beta_up):
        super().__init__()
        self.beta_gate, self.beta_up = beta_gate, beta_up

    def forward(self, gate_and_up):
        return situ(*gate_and_up.chunk(2, dim=-1), self.beta_gate, self.beta_up)
