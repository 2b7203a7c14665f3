"""The Stable LatentMoE layer in NumPy: float64, literal, one topic of the report per module.

    activation  SiTU-GLU, Eq. 12            norm     RMSNorm of the combined latent
    routing     top-k and weights, Eq. 13   experts  dense evaluation and weighted sum
    balancing   Eq. 14 and App. D           layer    Eq. 11

Every formula is written with operations that an array with an error radius can take over, so it
yields a value and a bound for what rounding may do to it. The names below are the ones a caller
starts from; the modules hold the steps in between. Two modules share their name with a function,
which is what ``experts`` and ``layer`` mean here; ``from reference_numpy.layer import routed_sum``
still finds the module.
"""

from __future__ import annotations

from reference_numpy.activation import sigmoid, situ_glu, situ_glu_vjp, softcap, swiglu
from reference_numpy.balancing import (
    HistogramBalancer,
    expert_statistic,
    quantile_interval,
    quantile_update,
    required_bias,
    target_rank,
)
from reference_numpy.experts import ExpertParameters, expert, experts, experts_vjp
from reference_numpy.layer import LayerConfig, LayerParameters, layer, layer_vjp, router_logits
from reference_numpy.norm import rms_norm, rms_norm_vjp
from reference_numpy.routing import (
    Routing,
    combine_weights,
    cutoff,
    route,
    route_grouped,
    route_vjp,
    scores,
    top_k_ids,
    weights_vjp,
)
from reference_numpy.storage import stored

__all__ = [
    "ExpertParameters",
    "HistogramBalancer",
    "LayerConfig",
    "LayerParameters",
    "Routing",
    "combine_weights",
    "cutoff",
    "expert",
    "expert_statistic",
    "experts",
    "experts_vjp",
    "layer",
    "layer_vjp",
    "quantile_interval",
    "quantile_update",
    "required_bias",
    "rms_norm",
    "rms_norm_vjp",
    "route",
    "route_grouped",
    "route_vjp",
    "router_logits",
    "scores",
    "sigmoid",
    "situ_glu",
    "situ_glu_vjp",
    "softcap",
    "stored",
    "swiglu",
    "target_rank",
    "top_k_ids",
    "weights_vjp",
]
