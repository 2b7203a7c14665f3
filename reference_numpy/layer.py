"""The Stable LatentMoE layer, Eq. 11 of arXiv 2607.24653.

Legend: M tokens, N routed experts, K top_k, S shared experts, D model width, L latent width,
H hidden width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reference_numpy.activation import BETA_GATE, BETA_UP
from reference_numpy.arrays import Array, require_shape
from reference_numpy.experts import (
    ExpertParameters,
    expert,
    expert_vjp,
    experts,
    experts_vjp,
    require_expert_parameters,
)
from reference_numpy.norm import NORM_EPS, rms_norm, rms_norm_vjp
from reference_numpy.routing import (
    WEIGHT_EPSILON,
    Routing,
    combine_weights,
    route,
    scores,
    top_k_ids,
    weights_vjp,
)
from reference_numpy.storage import projected, stored

__all__ = [
    "LayerConfig",
    "LayerParameters",
    "latent",
    "layer",
    "layer_vjp",
    "routed_output",
    "routed_sum",
    "router_logits",
    "shared_outputs",
]


@dataclass(frozen=True, eq=False)
class LayerParameters:
    """The layer's parameters, under the names of the public checkpoint.

    ``gate_weight`` (N, D), ``e_score_correction_bias`` (N,), ``routed_expert_down_proj`` (L, D),
    ``experts`` over L, ``routed_expert_norm`` (L,), ``routed_expert_up_proj`` (D, L),
    ``shared_experts`` over D: (S, H, D), (S, H, D), (S, D, H), with a hidden width of their own.
    """

    gate_weight: Array
    e_score_correction_bias: Array
    routed_expert_down_proj: Array
    experts: ExpertParameters
    routed_expert_norm: Array
    routed_expert_up_proj: Array
    shared_experts: ExpertParameters


@dataclass(frozen=True)
class LayerConfig:
    """The layer's numbers; the defaults are the report's.

    ``routed_scale`` multiplies the combine weights, hence acts before the norm.
    """

    top_k: int
    beta_gate: float = BETA_GATE
    beta_up: float = BETA_UP
    norm_eps: float = NORM_EPS
    routed_scale: float = 1.0


def router_logits(x: Array, gate_weight_ND: Array) -> Array:
    """The router's logits W_r x (…, N): they read the full-width x (…, D), never the latent."""
    return projected(x, gate_weight_ND)


def latent(x_MD: Array, parameters: LayerParameters) -> Array:
    """W_down x, (M, L): what the routed experts work on."""
    return projected(x_MD, parameters.routed_expert_down_proj)


def routed_sum(
    x_MD: Array, parameters: LayerParameters, routing: Routing, *, config: LayerConfig
) -> Array:
    """u = sum over the chosen j of p_j E_j(W_down x), (M, L), before the norm.

    The weights of ``routing`` come without ``routed_scale``, which is applied here.
    """
    return experts(
        latent(x_MD, parameters),
        routing.expert_ids,
        _scaled_weights(routing.weights, config),
        parameters.experts,
        beta_gate=config.beta_gate,
        beta_up=config.beta_up,
    )


def routed_output(u_ML: Array, parameters: LayerParameters, *, config: LayerConfig) -> Array:
    """W_up RMSNorm(u), (M, D): one norm and one up projection, after the combine."""
    normalised_ML = rms_norm(u_ML, parameters.routed_expert_norm, eps=config.norm_eps)
    return projected(normalised_ML, parameters.routed_expert_up_proj)


def shared_outputs(x_MD: Array, parameters: LayerParameters, *, config: LayerConfig) -> Array:
    """E^sh(x) of every shared expert, (S, M, D): full width, and neither weighted nor normed."""
    shared = parameters.shared_experts
    return expert(
        x_MD,
        shared.gate_proj,
        shared.up_proj,
        shared.down_proj,
        beta_gate=config.beta_gate,
        beta_up=config.beta_up,
    )


def layer(
    x: Array,
    parameters: LayerParameters,
    *,
    config: LayerConfig,
    routing: Routing | None = None,
    epsilon: float = WEIGHT_EPSILON,
    top1_renormalised: bool = True,
) -> Array:
    """y = sum_shared E^sh(x) + W_up RMSNorm(u), Eq. 11: x (…, D) -> y (…, D).

    ``routing``, if given, holds the ids (M, K) and weights (M, K) to follow for the M flattened
    tokens, and ``parameters``' router is not consulted; ``epsilon`` and ``top1_renormalised`` are
    those of ``route`` otherwise. Raises ValueError for shapes that do not fit each other, a top_k
    outside 1 .. N, ids out of range, and betas that are not positive and finite.
    """
    _require_parameters(x, parameters)
    x_MD = x.reshape(-1, x.shape[-1])
    if routing is None:
        routing = route(
            router_logits(x_MD, parameters.gate_weight),
            parameters.e_score_correction_bias,
            top_k=config.top_k,
            epsilon=epsilon,
            top1_renormalised=top1_renormalised,
        )
    require_shape("expert_ids", routing.expert_ids, (x_MD.shape[0], config.top_k))
    u_ML = routed_sum(x_MD, parameters, routing, config=config)
    y_MD = routed_output(u_ML, parameters, config=config)
    shared_SMD = shared_outputs(x_MD, parameters, config=config)
    return _with_shared(y_MD, shared_SMD).reshape(x.shape)


def layer_vjp(
    x: Array,
    parameters: LayerParameters,
    cotangent: Array,
    *,
    config: LayerConfig,
    expert_ids: Array | None = None,
    epsilon: float = WEIGHT_EPSILON,
    top1_renormalised: bool = True,
    complement: Callable[[Array], Array] | None = None,
    add_slots: Callable[[Array], Array] | None = None,
) -> tuple[Array, LayerParameters]:
    """Gradients (d_x, d_parameters) of sum(cotangent * layer(x)), at a fixed selection.

    ``expert_ids`` (M, K) is the selection to follow, else the router's own. In the order of the
    chain rule, with z = W_down x, v = RMSNorm(u), w = routed_scale p the scaled combine weights
    and C the cotangent (primes are gradients):

        v' = C W_up,    W_up' = C^T v,    (u', norm') = rms_norm_vjp(u, v'),
        (z', w', experts') = experts_vjp(z, w, u'),    p' = routed_scale w',
        logits' = weights_vjp(logits, p'),    W_r' = logits'^T x,    W_down' = z'^T x,
        x' = logits' W_r + z' W_down + sum over shared experts of expert_vjp(x, C)

    The selection bias gets exactly 0. ``complement`` gives 1 - sigmoid(logits) for whoever obtains
    it otherwise than as sigmoid(-logits), and ``add_slots`` is that of ``experts_vjp``. Raises
    ValueError as ``layer`` does, and for a cotangent whose shape is not that of x.
    """
    _require_parameters(x, parameters)
    require_shape("cotangent", cotangent, x.shape)
    x_MD, cotangent_MD = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, x.shape[-1])
    bias_N, renormalise = parameters.e_score_correction_bias, config.top_k > 1 or top1_renormalised

    logits_MN = router_logits(x_MD, parameters.gate_weight)
    if expert_ids is None:
        expert_ids = top_k_ids(scores(logits_MN) + bias_N, config.top_k)
    require_shape("expert_ids", expert_ids, (x_MD.shape[0], config.top_k))
    weights_MK = combine_weights(
        scores(logits_MN), expert_ids, epsilon=epsilon, renormalise=renormalise
    )
    routing = Routing(expert_ids, weights_MK)

    routed = _routed_vjp(x_MD, parameters, routing, cotangent_MD, config, add_slots)
    d_logits_MN = stored(
        weights_vjp(
            logits_MN,
            expert_ids,
            routed.d_weights,
            epsilon=epsilon,
            renormalise=renormalise,
            complement_MN=None if complement is None else complement(logits_MN),
        )
    )
    d_x_router_MD = stored(d_logits_MN @ parameters.gate_weight)
    d_x_SMD, d_shared_experts = _shared_vjp(x_MD, parameters, cotangent_MD, config)
    d_x_MD = _with_shared(stored(routed.d_x + d_x_router_MD), d_x_SMD)
    d_parameters = LayerParameters(
        gate_weight=stored(d_logits_MN.T @ x_MD),
        e_score_correction_bias=np.zeros(bias_N.shape),
        routed_expert_down_proj=routed.d_down_proj,
        experts=routed.d_experts,
        routed_expert_norm=routed.d_norm,
        routed_expert_up_proj=routed.d_up_proj,
        shared_experts=d_shared_experts,
    )
    return d_x_MD.reshape(x.shape), d_parameters


class _RoutedGradients(NamedTuple):
    d_x: Array
    d_weights: Array
    d_down_proj: Array
    d_experts: ExpertParameters
    d_norm: Array
    d_up_proj: Array


def _routed_vjp(
    x_MD: Array,
    parameters: LayerParameters,
    routing: Routing,
    cotangent_MD: Array,
    config: LayerConfig,
    add_slots: Callable[[Array], Array] | None,
) -> _RoutedGradients:
    """Gradients of sum(cotangent * routed_output(routed_sum(x))), the weights held apart from x."""
    norm_L = parameters.routed_expert_norm
    u_ML = routed_sum(x_MD, parameters, routing, config=config)
    normalised_ML = rms_norm(u_ML, norm_L, eps=config.norm_eps)
    d_normalised_ML = stored(cotangent_MD @ parameters.routed_expert_up_proj)
    d_u_ML, d_norm_L = rms_norm_vjp(u_ML, norm_L, d_normalised_ML, eps=config.norm_eps)
    d_latent_ML, d_scaled_MK, d_experts = experts_vjp(
        latent(x_MD, parameters),
        routing.expert_ids,
        _scaled_weights(routing.weights, config),
        parameters.experts,
        d_u_ML,
        beta_gate=config.beta_gate,
        beta_up=config.beta_up,
        add_slots=add_slots,
    )
    return _RoutedGradients(
        d_x=stored(d_latent_ML @ parameters.routed_expert_down_proj),
        d_weights=config.routed_scale * d_scaled_MK,
        d_down_proj=stored(d_latent_ML.T @ x_MD),
        d_experts=d_experts,
        d_norm=d_norm_L,
        d_up_proj=stored(cotangent_MD.T @ normalised_ML),
    )


def _shared_vjp(
    x_MD: Array, parameters: LayerParameters, cotangent_MD: Array, config: LayerConfig
) -> tuple[Array, ExpertParameters]:
    """Gradients (S, M, D) and of the parameters: each shared expert sees the whole cotangent."""
    shared = parameters.shared_experts
    d_x_SMD, d_gate_proj, d_up_proj, d_down_proj = expert_vjp(
        x_MD,
        shared.gate_proj,
        shared.up_proj,
        shared.down_proj,
        cotangent_MD,
        beta_gate=config.beta_gate,
        beta_up=config.beta_up,
    )
    return d_x_SMD, ExpertParameters(d_gate_proj, d_up_proj, d_down_proj)


def _with_shared(y_MD: Array, shared_SMD: Array) -> Array:
    """y + the sum over S, every partial sum stored."""
    for j in range(shared_SMD.shape[0]):
        y_MD = stored(shared_SMD[j] + y_MD)
    return y_MD


def _scaled_weights(weights_MK: Array, config: LayerConfig) -> Array:
    # A mark of its own: weights are kept in the routing format until they meet hidden states.
    return stored(config.routed_scale * weights_MK)


def _require_parameters(x: Array, parameters: LayerParameters) -> None:
    if x.ndim == 0:
        raise ValueError("x has no axes, expected (…, D)")
    width = x.shape[-1]
    require_shape("gate_weight", parameters.gate_weight, (None, width))
    num_experts = parameters.gate_weight.shape[0]
    require_shape("e_score_correction_bias", parameters.e_score_correction_bias, (num_experts,))
    require_shape("routed_expert_down_proj", parameters.routed_expert_down_proj, (None, width))
    latent_width = parameters.routed_expert_down_proj.shape[0]
    require_shape("routed_expert_norm", parameters.routed_expert_norm, (latent_width,))
    require_shape("routed_expert_up_proj", parameters.routed_expert_up_proj, (width, latent_width))
    require_expert_parameters("experts", parameters.experts, latent_width)
    require_expert_parameters("shared_experts", parameters.shared_experts, width)
    if parameters.experts.gate_proj.shape[0] != num_experts:
        raise ValueError(
            f"experts.gate_proj has {parameters.experts.gate_proj.shape[0]} experts, "
            f"but gate_weight has {num_experts}"
        )
