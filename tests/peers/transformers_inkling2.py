"""Inkling 2's activation, router, experts and norm in transformers 5.23.0, for the gate.

    latentmoe-gate run tests.peers.transformers_inkling2:Float32

Its "soft-capped SwiGLU" is SiTU-GLU, betas 4 and 25 included, so nothing is replaced here. The
layer has neither a latent width nor shared experts: it is not Eq. 11, and not offered.
"""

import torch
from transformers.models.inkling2 import modeling_inkling2 as inkling2
from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig

from tests.peers.tensors import call, vjp
from tests.peers.transformers_moe import BFLOAT16, TransformersExperts, TransformersRouter


class Float32(TransformersExperts, TransformersRouter):
    """Parameters and hidden states in float32; grouped_mm."""

    name = "transformers, Inkling 2 activation, router and experts"
    modeling, prefix = inkling2, "Inkling2"
    router_suffix = "TopKRouter"

    def situ_glu(self, gate, up, *, beta_gate, beta_up):
        return call(_situ_glu(beta_gate, beta_up), gate, up)

    def situ_glu_vjp(self, gate, up, cotangent, *, beta_gate, beta_up):
        return vjp(_situ_glu(beta_gate, beta_up), (gate, up), cotangent)

    def router_config(self, *, num_experts, top_k, width):
        return Inkling2TextConfig(
            hidden_size=width,
            n_routed_experts=num_experts,
            num_experts_per_tok=top_k,
            routed_scaling_factor=1.0,
        )

    def call_router(self, router, hidden, weight, bias):
        # The package keeps this weight in float32 whatever the model's dtype.
        return super().call_router(router, hidden, weight.float(), bias)

    def experts_config(self, *, num_experts, hidden, width):
        return Inkling2TextConfig(
            hidden_size=width,
            moe_intermediate_size=hidden,
            n_routed_experts=num_experts,
            experts_implementation=self.experts_implementation,
        )

    def situ_experts(self, config, beta_gate, beta_up):
        experts = inkling2.Inkling2Experts(config)
        experts.act_fn = _situ_glu(beta_gate, beta_up)
        return experts


class Float32Eager(Float32):
    """The same with the loop over experts that the model's file writes out."""

    experts_implementation = "eager"


class BFloat16(Float32):
    """Parameters and hidden states in bfloat16; router and nonlinearities in float32."""

    precision = BFLOAT16
    dtype = torch.bfloat16


def _situ_glu(beta_gate, beta_up):
    config = Inkling2TextConfig(mlp_gate_softcap=float(beta_gate), mlp_up_softcap=float(beta_up))
    return inkling2.Inkling2SoftcappedSwiGLU(config)
