"""Stable LatentMoE in PyTorch: grouped dispatch, float32 routing, quantile balancing.

``LatentMoE`` is the layer (Eq. 11 of arXiv 2607.24653); its parts are modules and functions of
their own. ``impl_torch.adapter`` shows them to the property suite.
"""

from impl_torch.activation import situ_glu, softcap, swiglu
from impl_torch.balancing import quantile_update
from impl_torch.expert_parallel import ExpertParallel, ParallelExperts, parallel_experts
from impl_torch.experts import Experts, experts
from impl_torch.histogram import HistogramBalancer, QuantileHistogram, update_biases
from impl_torch.layer import LatentMoE, SharedExperts, latent_moe
from impl_torch.norm import RMSNorm, rms_norm
from impl_torch.pooling import distinct_token_group
from impl_torch.routing import Router, Routing, route, route_grouped, router_logits

__version__ = "0.1.0"

__all__ = [
    "ExpertParallel",
    "Experts",
    "HistogramBalancer",
    "LatentMoE",
    "ParallelExperts",
    "QuantileHistogram",
    "RMSNorm",
    "Router",
    "Routing",
    "SharedExperts",
    "distinct_token_group",
    "experts",
    "latent_moe",
    "parallel_experts",
    "quantile_update",
    "rms_norm",
    "route",
    "route_grouped",
    "router_logits",
    "situ_glu",
    "softcap",
    "swiglu",
    "update_biases",
]
