"""Quantile balancing: the exact update (Eq. 14) and how a histogram is read (App. D).

With alpha_i the cutoff of token i, expert j would need the bias r_ij = alpha_i - s_ij to tie with
it. The next bias is a quantile of these required biases per expert, less the mean over experts.
Equation numbers are those of arXiv 2607.24653. Nothing here is differentiable.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from impl_torch.routing import route_scores, scores

__all__ = [
    "Statistic",
    "centred",
    "check_mask",
    "counted",
    "expert_statistic",
    "histogram_quantile",
    "quantile_update",
    "required_bias",
]

Statistic: TypeAlias = Literal["q", "q+1", "linear", "midpoint"]


def required_bias(scores_MN: Tensor, cutoff_M: Tensor) -> Tensor:
    """r_ij = alpha_i - s_ij, shape (M, N)."""
    return cutoff_M[:, None] - scores_MN


def expert_statistic(r_MN: Tensor, top_k: int, statistic: Statistic = "linear") -> Tensor:
    """The statistic of each expert's required biases that balances its load, shape (N,).

    Ranks are counted in integers, from 1, and are at most M: "q" is the ceil(q)-th smallest, "q+1"
    the next, "midpoint" the mean of the two, "linear" the linear K/N-quantile, which is Eq. 14 read
    with the default interpolation of NumPy and PyTorch. For integral q the last two lie strictly
    between the first two.

    Raises:
        ValueError: M = 0, or there is no such statistic.
    """
    tokens, num_experts = r_MN.shape
    if tokens == 0:
        raise ValueError("no token, so no quantile; keep the old bias instead")
    if statistic not in get_args(Statistic):
        raise ValueError(f"statistic must be one of {get_args(Statistic)}, got {statistic!r}")
    if statistic == "linear":
        below, part = divmod((tokens - 1) * top_k, num_experts)
        lower, upper = _neighbours(r_MN, below + 1)
        return torch.lerp(lower, upper, part / num_experts)
    lower, upper = _neighbours(r_MN, -(-tokens * top_k // num_experts))
    if statistic == "midpoint":
        return torch.lerp(lower, upper, 0.5)
    return lower if statistic == "q" else upper


def _neighbours(r_MN: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The rank-th and next smallest of every column (the last one where there is no next)."""
    wanted = min(rank + 1, r_MN.shape[0])
    smallest = r_MN.t().topk(wanted, dim=-1, largest=False, sorted=True).values
    return smallest[:, min(rank, wanted) - 1], smallest[:, -1]


@torch.no_grad()
def quantile_update(
    logits_MN: Tensor,
    bias_N: Tensor,
    *,
    top_k: int,
    mask: Tensor | None = None,
    statistic: Statistic = "linear",
) -> Tensor:
    """The next bias after one pooled batch, exactly (Eq. 14): quantile per expert, then centring.

    Args:
        logits_MN: router logits; tokens with a NaN are left out.
        bias_N: the bias in force, float32 or float64; it is not changed.
        top_k: experts per token.
        mask: True for the tokens that count; all of them if left out.
        statistic: see ``expert_statistic``.

    Returns:
        The new bias, in the format of ``bias_N``; a copy of the old one if K = N (then there is no
        cutoff) or if no token counts.

    Raises:
        ValueError: top_k, a shape or the statistic is wrong.
        TypeError: the mask is not boolean.
    """
    scores_MN = scores(logits_MN)
    cutoff_M = route_scores(scores_MN, bias_N, top_k=top_k).cutoff
    if cutoff_M is None:
        return bias_N.clone()
    r_MN = required_bias(scores_MN, cutoff_M)
    r_MN = r_MN[counted(r_MN, mask)]
    if r_MN.shape[0] == 0:
        return bias_N.clone()
    return centred(expert_statistic(r_MN, top_k, statistic)).to(bias_N.dtype)


def centred(estimate_N: Tensor) -> Tensor:
    """The estimate less its mean, in float64 (Eq. 14)."""
    wide = estimate_N.double()
    return wide - wide.mean()


def counted(r_MN: Tensor, mask_M: Tensor | None) -> Tensor:
    """Which tokens count (M,): valid ones without a NaN, which would poison every later bias.

    Raises what ``check_mask`` raises.
    """
    counted_M = ~torch.isnan(r_MN).any(-1)
    if mask_M is None:
        return counted_M
    check_mask(mask_M, r_MN.shape[0])
    return counted_M & mask_M


def check_mask(mask_M: Tensor, tokens: int) -> None:
    """Require a boolean mask of shape (M,).

    Raises:
        TypeError: the mask is not boolean.
        ValueError: it has another shape.
    """
    if mask_M.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True for a valid token), got {mask_M.dtype}")
    if mask_M.shape != (tokens,):
        raise ValueError(f"mask has shape {tuple(mask_M.shape)}; expected {(tokens,)}")


def histogram_quantile(counts_NB: Tensor, low: Tensor, high: Tensor, top_k: int) -> Tensor:
    """Each expert's quantile of required biases, read from counts (App. D), not yet centred.

    The first bin whose cumulative count reaches ceil(q), then linear interpolation inside it with
    the un-ceiled q. Ranks and counts are compared as integers, exactly, for totals below 2^63/K.

    Args:
        counts_NB: integer counts over B equal bins of [low, high].
        low: lower end of the range, a scalar tensor.
        high: upper end.
        top_k: experts per token.

    Returns:
        (N,) float64.
    """
    num_experts, num_bins = counts_NB.shape
    cumulative_NB = counts_NB.cumsum(-1)
    demand_N = cumulative_NB[:, -1:] * top_k
    rank_N = -(-demand_N // num_experts)
    bin_N = torch.searchsorted(cumulative_NB, rank_N).clamp(max=num_bins - 1)
    inside_N = counts_NB.gather(-1, bin_N)
    before_N = cumulative_NB.gather(-1, bin_N) - inside_N
    # (q - before) / inside over the common denominator N, so that no digit of q is lost. The
    # products of integers stay below 2^63, as before < q; inside N may not.
    above_N = (demand_N - before_N * num_experts).double()
    part_N = above_N / (inside_N.clamp(min=1).double() * num_experts)
    width = (high.double() - low.double()) / num_bins
    return (low.double() + (bin_N + part_N.clamp(0, 1)) * width).squeeze(-1)
