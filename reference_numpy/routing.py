"""Routing: scores, selection and combine weights, Eq. 13 of arXiv 2607.24653.

Legend: M tokens, N routed experts, K top_k.

Selection is a decision and not a value with an error: ``top_k_ids`` and ``cutoff`` look at plain
numbers. What follows from a selection takes the ids as an argument, so that it can be evaluated on
anybody's choice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reference_numpy.activation import sigmoid
from reference_numpy.arrays import Array, require_expert_ids, require_shape, require_top_k

WEIGHT_EPSILON = 1e-20

__all__ = [
    "WEIGHT_EPSILON",
    "Routing",
    "combine_weights",
    "cutoff",
    "group_scores",
    "grouped",
    "route",
    "route_grouped",
    "route_vjp",
    "scores",
    "top_k_ids",
    "weights_vjp",
]


class Routing(NamedTuple):
    """Who serves each token, and how much.

    ``expert_ids`` (M, K) integers, K different ones per token; ``weights`` (M, K) combine weights;
    ``cutoff`` (M,) the (K+1)-th largest biased score, or None where there is none (K = N).
    """

    expert_ids: Array
    weights: Array
    cutoff: Array | None = None


def scores(logits: Array) -> Array:
    """The affinities s = sigmoid(logits), elementwise."""
    return sigmoid(logits)


def top_k_ids(biased_MN: Array, top_k: int) -> Array:
    """argtop_k of each row of s + b, best first, as (M, K) integers.

    Ties go to the lowest id and NaN comes last, so the ids are different and in range always.
    Raises ValueError unless 1 <= top_k <= N.
    """
    require_shape("biased scores", biased_MN, (None, None))
    require_top_k(top_k, biased_MN.shape[1])
    return np.argsort(-biased_MN, axis=1, kind="stable")[:, :top_k]


def cutoff(biased_MN: Array, top_k: int) -> Array:
    """alpha_i of Eq. 14: the (K+1)-th largest biased score of each token, (M,).

    Raises ValueError unless 1 <= top_k < N: with K = N nothing is left out.
    """
    require_shape("biased scores", biased_MN, (None, None))
    num_experts = biased_MN.shape[1]
    require_top_k(top_k, num_experts)
    if top_k == num_experts:
        raise ValueError(f"top_k = {top_k} takes all experts, so there is no (top_k + 1)-th score")
    ascending_MN: Array = np.sort(-biased_MN, axis=1)
    return -ascending_MN[:, top_k]


def combine_weights(
    s_MN: Array,
    expert_ids_MK: Array,
    *,
    epsilon: float = WEIGHT_EPSILON,
    renormalise: bool = True,
) -> Array:
    """p_j = s_j / (sum of the chosen s + epsilon), (M, K): the raw scores weigh, never the bias.

    Without ``renormalise`` the chosen scores themselves. Raises ValueError for ids out of range.
    """
    require_shape("scores", s_MN, (None, None))
    require_expert_ids(expert_ids_MK, *s_MN.shape)
    chosen_MK = np.take_along_axis(s_MN, expert_ids_MK, axis=1)
    if not renormalise:
        return chosen_MK
    total_M1: Array = np.sum(chosen_MK, axis=1, keepdims=True)
    return chosen_MK / (total_M1 + epsilon)


def route(
    logits_MN: Array,
    bias_N: Array,
    *,
    top_k: int,
    epsilon: float = WEIGHT_EPSILON,
    top1_renormalised: bool = True,
) -> Routing:
    """Eq. 13 and the cutoff of Eq. 14 for a batch of tokens.

    With K = 1 the single weight is s / (s + epsilon), or s without ``top1_renormalised``.
    Raises ValueError for logits that are not (M, N), a bias that is not (N,), and a top_k outside
    1 .. N.
    """
    s_MN = scores(logits_MN)
    biased_MN = _biased(s_MN, bias_N)
    expert_ids_MK = top_k_ids(biased_MN, top_k)
    weights_MK = combine_weights(
        s_MN, expert_ids_MK, epsilon=epsilon, renormalise=top_k > 1 or top1_renormalised
    )
    cutoff_M = cutoff(biased_MN, top_k) if top_k < bias_N.shape[0] else None
    return Routing(expert_ids_MK, weights_MK, cutoff_M)


def group_scores(biased_MN: Array, num_groups: int) -> Array:
    """What groups compete by, (M, G): the sum of the two best biased scores of each group.

    Group g is the g-th run of N / G consecutive experts. From the public inference code of
    DeepSeek-V3; its report (arXiv 2412.19437, 2.1.2) sums the best K / M of a group, M the groups
    that a token may reach, which is two at its sizes, K = 8 and M = 4.
    Raises ValueError unless G divides N and leaves at least two experts to a group.
    """
    require_shape("biased scores", biased_MN, (None, None))
    num_tokens, num_experts = biased_MN.shape
    if num_groups < 1 or num_experts % num_groups or num_experts // num_groups < 2:
        raise ValueError(
            f"num_groups = {num_groups} must divide the {num_experts} experts into groups of "
            "the same size, two or more"
        )
    size = num_experts // num_groups
    ascending_MGS = np.sort(np.reshape(biased_MN, (num_tokens, num_groups, size)), axis=2)
    totals_MG: Array = ascending_MGS[:, :, -1] + ascending_MGS[:, :, -2]
    return totals_MG


def grouped(biased_MN: Array, *, num_groups: int, top_groups: int) -> Array:
    """The biased scores (M, N) with -inf for every expert outside the ``top_groups`` best groups.

    Ties go to the lowest group. Raises ValueError as ``group_scores`` does, and unless
    1 <= top_groups <= num_groups.
    """
    totals_MG = group_scores(biased_MN, num_groups)
    if not 1 <= top_groups <= num_groups:
        raise ValueError(f"top_groups = {top_groups} must lie in 1 .. {num_groups}, the groups")
    group_of_N = np.arange(biased_MN.shape[1]) // (biased_MN.shape[1] // num_groups)
    best_MT = top_k_ids(totals_MG, top_groups)
    open_MN = np.any(group_of_N == best_MT[:, :, None], axis=1)
    return np.where(open_MN, biased_MN, -np.inf)


def route_grouped(
    logits_MN: Array,
    bias_N: Array,
    *,
    top_k: int,
    num_groups: int,
    top_groups: int,
    epsilon: float = WEIGHT_EPSILON,
    top1_renormalised: bool = True,
) -> Routing:
    """Group-limited routing: Eq. 13 among the experts of each token's ``top_groups`` best groups.

    The cutoff is the best of those experts that is left out, None where all are taken.
    Raises ValueError as ``route`` and ``grouped`` do, and unless the open groups hold top_k.
    """
    s_MN = scores(logits_MN)
    biased_MN = grouped(_biased(s_MN, bias_N), num_groups=num_groups, top_groups=top_groups)
    candidates = bias_N.shape[0] // num_groups * top_groups
    require_top_k(top_k, candidates)
    expert_ids_MK = top_k_ids(biased_MN, top_k)
    weights_MK = combine_weights(
        s_MN, expert_ids_MK, epsilon=epsilon, renormalise=top_k > 1 or top1_renormalised
    )
    cutoff_M = cutoff(biased_MN, top_k) if top_k < candidates else None
    return Routing(expert_ids_MK, weights_MK, cutoff_M)


def weights_vjp(
    logits_MN: Array,
    expert_ids_MK: Array,
    weights_cotangent_MK: Array,
    *,
    epsilon: float = WEIGHT_EPSILON,
    renormalise: bool = True,
    complement_MN: Array | None = None,
) -> Array:
    """The gradient d_logits (M, N) of sum(cotangent * combine_weights(scores(logits), ids)).

    With S the sum of the chosen scores, p_j = s_j / (S + epsilon) and c the cotangent, the quotient
    rule d p_a / d s_j = (1[a = j] - p_a) / (S + epsilon) and s' = s sigmoid(-z) give, on chosen j,

        d_logit_j = p_j sigmoid(-z_j) (c_j - sum_a c_a p_a)

    and exactly 0 elsewhere. Without ``renormalise``: c_j s_j sigmoid(-z_j).
    ``complement_MN`` stands in for sigmoid(-z) = 1 - s, for whoever obtains it in another way.
    Raises ValueError for ids out of range and for a cotangent that is not (M, K).
    """
    weights_MK = combine_weights(
        scores(logits_MN), expert_ids_MK, epsilon=epsilon, renormalise=renormalise
    )
    require_shape("weights_cotangent", weights_cotangent_MK, weights_MK.shape)
    pull_MK = weights_cotangent_MK
    if renormalise:
        pull_MK = pull_MK - np.sum(weights_cotangent_MK * weights_MK, axis=1, keepdims=True)
    if complement_MN is None:
        complement_MN = sigmoid(-logits_MN)
    slope_MK = weights_MK * np.take_along_axis(complement_MN, expert_ids_MK, axis=1)
    return _scatter(slope_MK * pull_MK, expert_ids_MK, logits_MN.shape[1])


def route_vjp(
    logits_MN: Array,
    bias_N: Array,
    weights_cotangent_MK: Array,
    *,
    top_k: int,
    epsilon: float = WEIGHT_EPSILON,
    top1_renormalised: bool = True,
) -> tuple[Array, Array]:
    """Gradients (d_logits, d_bias) of sum(cotangent * weights) at route's own selection.

    The selection is locally constant and the bias does nothing else: its gradient is 0.
    Raises ValueError as ``route`` and ``weights_vjp`` do.
    """
    expert_ids_MK = top_k_ids(_biased(scores(logits_MN), bias_N), top_k)
    d_logits_MN = weights_vjp(
        logits_MN,
        expert_ids_MK,
        weights_cotangent_MK,
        epsilon=epsilon,
        renormalise=top_k > 1 or top1_renormalised,
    )
    return d_logits_MN, np.zeros(bias_N.shape)


def _biased(s_MN: Array, bias_N: Array) -> Array:
    require_shape("logits", s_MN, (None, None))
    require_shape("bias", bias_N, s_MN.shape[1:])
    return s_MN + bias_N


def _scatter(values_MK: Array, expert_ids_MK: Array, num_experts: int) -> Array:
    """Add values_MK into zeros (M, N) at the columns expert_ids_MK."""
    here_MKN = expert_ids_MK[:, :, None] == np.arange(num_experts)
    scattered_MN: Array = np.sum(np.where(here_MKN, values_MK[:, :, None], 0.0), axis=1)
    return scattered_MN
