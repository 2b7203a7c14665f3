"""The router: sigmoid scores, biased top-k selection, unbiased combine weights (Eq. 13).

Scores, selection bias, combine weights and cutoffs are float32 (float64 in a float64 module),
whatever the hidden states are stored in. Equation numbers are those of arXiv 2607.24653.

Legend: M tokens, N routed experts, K top_k, D model width.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from impl_torch.activation import sigmoid
from impl_torch.precision import KeepsPrecision, compute_dtype

__all__ = [
    "Router",
    "Routing",
    "route",
    "route_grouped",
    "route_scores",
    "router_logits",
    "scores",
]


class Routing(NamedTuple):
    """What the router decides for M tokens.

    ``expert_ids`` (M, K) int64, distinct within a token; ``weights`` (M, K) combine weights, with
    gradient to the chosen scores; ``cutoff`` (M,) the (K+1)-th largest biased score, None if K = N.
    """

    expert_ids: Tensor
    weights: Tensor
    cutoff: Tensor | None


def router_logits(x_MD: Tensor, weight_ND: Tensor) -> Tensor:
    """Logits (…, N) of full-width hidden states (…, D), a product in float32 or better."""
    dtype = compute_dtype(x_MD.dtype)
    return nn.functional.linear(x_MD.to(dtype), weight_ND.to(dtype))


def scores(logits_MN: Tensor) -> Tensor:
    """Sigmoid scores of logits, float32 (float64 for float64)."""
    return sigmoid(logits_MN.to(compute_dtype(logits_MN.dtype)))


def route_scores(
    scores_MN: Tensor,
    bias_N: Tensor,
    *,
    top_k: int,
    epsilon: float = 1e-20,
    top1_renormalised: bool = True,
) -> Routing:
    """Choose the top-k of scores + bias and weigh the chosen by their scores alone (Eq. 13).

    Ties fall to whichever expert ``torch.topk`` finds. A NaN counts as the largest score, so a row
    with NaN still gets distinct ids in [0, N); its weights may be NaN, other rows are unaffected.
    No gradient reaches the bias or an expert that was not chosen.

    Args:
        scores_MN: sigmoid scores, float32 or float64.
        bias_N: selection bias; entries may be ±inf.
        top_k: experts per token.
        epsilon: added to the sum that normalises the weights.
        top1_renormalised: whether K = 1 gives s/(s + epsilon) or s.

    Raises:
        ValueError: top_k is not in 1 … N, or the shapes do not fit.
    """
    num_experts = scores_MN.shape[-1]
    _check_top_k(top_k, num_experts)
    _check_bias(bias_N, num_experts)
    with torch.no_grad():
        biased_MN = scores_MN + bias_N
    return _weighed(scores_MN, biased_MN, top_k, num_experts, epsilon, top1_renormalised)


def _weighed(
    scores_MN: Tensor,
    biased_MN: Tensor,
    top_k: int,
    candidates: int,
    epsilon: float,
    top1_renormalised: bool,
) -> Routing:
    """The top-k of the biased scores, of which so many are candidates, and what they weigh."""
    with torch.no_grad():
        best = biased_MN.topk(min(top_k + 1, candidates), dim=-1)
        expert_ids = best.indices[..., :top_k].contiguous()
        cutoff = None if top_k == candidates else best.values[..., top_k].clone()
    weights = scores_MN.gather(-1, expert_ids)
    if top_k > 1 or top1_renormalised:
        weights = weights / (weights.sum(-1, keepdim=True) + epsilon)
    return Routing(expert_ids, weights, cutoff)


def route(
    logits_MN: Tensor,
    bias_N: Tensor,
    *,
    top_k: int,
    epsilon: float = 1e-20,
    top1_renormalised: bool = True,
) -> Routing:
    """``route_scores`` of ``scores(logits)``; arguments and errors as there."""
    return route_scores(
        scores(logits_MN),
        bias_N,
        top_k=top_k,
        epsilon=epsilon,
        top1_renormalised=top1_renormalised,
    )


def route_grouped(
    logits_MN: Tensor,
    bias_N: Tensor,
    *,
    top_k: int,
    num_groups: int,
    top_groups: int,
    epsilon: float = 1e-20,
    top1_renormalised: bool = True,
) -> Routing:
    """``route`` among the experts of the best groups only, as DeepSeek-V3 routes.

    Group g holds the g-th run of N / num_groups consecutive experts and competes with the sum of
    its two best biased scores. The cutoff is the best candidate left out, None if all are taken.

    Args:
        logits_MN: router logits.
        bias_N: selection bias.
        top_k: experts per token.
        num_groups: how many groups the experts form.
        top_groups: how many of them each token may choose from.
        epsilon: added to the sum that normalises the weights.
        top1_renormalised: whether K = 1 gives s/(s + epsilon) or s.

    Raises:
        ValueError: the groups are unequal or hold one expert, top_groups is not in
            1 … num_groups, the open groups hold fewer than top_k experts, or the shapes do not fit.
    """
    num_experts = logits_MN.shape[-1]
    _check_groups(num_experts, num_groups, top_groups)
    _check_bias(bias_N, num_experts)
    candidates = num_experts // num_groups * top_groups
    _check_top_k(top_k, candidates)
    scores_MN = scores(logits_MN)
    with torch.no_grad():
        biased_MN = scores_MN + bias_N
        biased_MGS = biased_MN.view(-1, num_groups, num_experts // num_groups)
        groups_MT = biased_MGS.topk(2, dim=-1).values.sum(-1).topk(top_groups, dim=-1).indices
        closed_MG = torch.ones_like(biased_MGS[..., 0], dtype=torch.bool)
        closed_MG.scatter_(-1, groups_MT, value=False)
        biased_MN = biased_MGS.masked_fill(closed_MG.unsqueeze(-1), -torch.inf).flatten(1)
    return _weighed(scores_MN, biased_MN, top_k, candidates, epsilon, top1_renormalised)


class Router(KeepsPrecision):
    """The layer's ``gate``: weight (N, D) and the buffer ``e_score_correction_bias`` (N,).

    The bias is float32 and stays so through ``.to(bfloat16)``; only ``.to(float64)`` widens it. It
    is no parameter: balancing writes it, never an optimiser.

    Args:
        model_dim: D.
        num_experts: N.
        top_k: K.
        epsilon: added to the sum that normalises the weights.
        top1_renormalised: whether K = 1 gives s/(s + epsilon) or s.

    Raises:
        ValueError: top_k is not in 1 … N.
    """

    kept_buffers: ClassVar[tuple[str, ...]] = ("e_score_correction_bias",)
    e_score_correction_bias: Tensor

    def __init__(
        self,
        model_dim: int,
        num_experts: int,
        top_k: int,
        *,
        epsilon: float = 1e-20,
        top1_renormalised: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_top_k(top_k, num_experts)
        self.top_k = top_k
        self.epsilon = epsilon
        self.top1_renormalised = top1_renormalised
        self.weight = nn.Parameter(torch.empty(num_experts, model_dim, device=device, dtype=dtype))
        bias_dtype = compute_dtype(self.weight.dtype)
        self.register_buffer(
            "e_score_correction_bias", torch.zeros(num_experts, device=device, dtype=bias_dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight with variance 1/D and set the bias to 0."""
        if self.weight.is_meta:  # nothing to draw, and torch takes milliseconds to find out
            return
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.e_score_correction_bias)

    def scores(self, x_MD: Tensor) -> Tensor:
        """Sigmoid scores (M, N) of full-width hidden states (M, D)."""
        return scores(router_logits(x_MD, self.weight))

    def select(self, scores_MN: Tensor) -> Routing:
        """Route by the present bias, given scores from ``scores``."""
        return route_scores(
            scores_MN,
            self.e_score_correction_bias,
            top_k=self.top_k,
            epsilon=self.epsilon,
            top1_renormalised=self.top1_renormalised,
        )

    def forward(self, x_MD: Tensor) -> Routing:
        """Route hidden states (M, D)."""
        return self.select(self.scores(x_MD))

    def extra_repr(self) -> str:
        """Sizes, for ``print(module)``."""
        num_experts, model_dim = self.weight.shape
        return f"model_dim={model_dim}, num_experts={num_experts}, top_k={self.top_k}"


def _check_groups(num_experts: int, num_groups: int, top_groups: int) -> None:
    if num_groups < 1 or num_experts % num_groups or num_experts // num_groups < 2:
        raise ValueError(
            f"num_groups must divide {num_experts} experts into equal groups of two or more, "
            f"got {num_groups}"
        )
    if not 1 <= top_groups <= num_groups:
        raise ValueError(f"top_groups must be in 1 … {num_groups} (the groups), got {top_groups}")


def _check_bias(bias_N: Tensor, num_experts: int) -> None:
    if bias_N.shape != (num_experts,):
        raise ValueError(f"bias has shape {tuple(bias_N.shape)}; expected ({num_experts},)")


def _check_top_k(top_k: int, num_experts: int) -> None:
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k must be in 1 … {num_experts} (the experts), got {top_k}")
