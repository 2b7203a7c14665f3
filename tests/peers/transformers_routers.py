"""Further sigmoid routers with a selection bias in transformers 5.23.0, each with a choice its own.

    latentmoe-gate run tests.peers.transformers_routers:MiniMaxM2

Only what differs from DeepSeek-V3's is here: the router, and the norm that comes with it. Experts
are the same text, up to the names of configuration entries.
"""

import torch
from torch.func import functional_call
from transformers import Kolibri1Config, LagunaConfig, MiniMaxM2Config
from transformers.models.kolibri1 import modeling_kolibri1
from transformers.models.laguna import modeling_laguna
from transformers.models.minimax_m2 import modeling_minimax_m2
from transformers.models.muse_spark import modeling_muse_spark
from transformers.models.muse_spark.configuration_muse_spark import MuseSparkTextConfig

from properties.protocol import Conventions
from tests.peers.transformers_moe import BFLOAT16, TransformersRouter


class MiniMaxM2(TransformersRouter):
    """MiniMax-M2: nothing is added to the sum that normalises the weights."""

    name = "transformers, MiniMax-M2 router"
    conventions = Conventions(padding="unsupported", weight_epsilon=0.0)
    modeling, prefix = modeling_minimax_m2, "MiniMaxM2"
    router_suffix = "TopKRouter"

    def router_config(self, *, num_experts, top_k, width):
        return MiniMaxM2Config(
            hidden_size=width, num_local_experts=num_experts, num_experts_per_tok=top_k
        )

    def call_router(self, router, hidden, weight, bias):
        return functional_call(router, {"weight": weight}, (hidden, bias))


class Laguna(TransformersRouter):
    """Laguna, its softcap of the logits off, as by default; weights in the hidden states' dtype."""

    name = "transformers, Laguna router"
    conventions = Conventions(padding="unsupported", weight_epsilon=0.0)
    modeling, prefix = modeling_laguna, "Laguna"
    router_suffix = "TopKRouter"

    def router_config(self, *, num_experts, top_k, width):
        return LagunaConfig(hidden_size=width, num_experts=num_experts, num_experts_per_tok=top_k)


class LagunaBFloat16(Laguna):
    """Parameters, hidden states and weights in bfloat16."""

    precision = BFLOAT16
    dtype = torch.bfloat16


class Kolibri1(TransformersRouter):
    """Kolibri 1, normalised: its bias is added to the logits, and the sigmoid only weighs."""

    name = "transformers, Kolibri 1 router"
    conventions = Conventions(padding="unsupported", weight_epsilon=0.0, score_domain="logit")
    modeling, prefix = modeling_kolibri1, "Kolibri1"
    router_suffix = "TopKRouter"

    def router_config(self, *, num_experts, top_k, width):
        return Kolibri1Config(
            hidden_size=width,
            num_local_experts=num_experts,
            num_experts_per_tok=top_k,
            norm_topk_prob=True,
        )


class MuseSpark(TransformersRouter):
    """Muse Spark, its multiplier of the logits at 1: 1e-15 is added to the sum of the weights."""

    name = "transformers, Muse Spark router"
    conventions = Conventions(padding="unsupported", weight_epsilon=1e-15)
    modeling, prefix = modeling_muse_spark, "MuseSpark"

    def router_config(self, *, num_experts, top_k, width):
        config = MuseSparkTextConfig(
            num_local_experts=num_experts,
            num_experts_per_tok=top_k,
            output_multiplier=1.0,
            routed_scaling_factor=1.0,
        )
        config.hidden_size = width  # the constructor wants a multiple of the attention's heads
        return config
