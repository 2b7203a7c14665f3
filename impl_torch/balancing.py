"""Quantile balancing: the exact update (Eq. 14) and the histogram estimate (App. D).

With alpha_i the cutoff of token i, expert j would need the bias r_ij = alpha_i - s_ij to tie with
it. The next bias is a quantile of these required biases per expert, less the mean over experts.
Equation numbers are those of arXiv 2607.24653. Nothing here is differentiable.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from impl_torch.precision import KeepsPrecision, compute_dtype
from impl_torch.routing import Routing, route_scores, scores

__all__ = [
    "HistogramBalancer",
    "QuantileHistogram",
    "Statistic",
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
    r_MN = r_MN[_counted(r_MN, mask)]
    if r_MN.shape[0] == 0:
        return bias_N.clone()
    return _centred(expert_statistic(r_MN, top_k, statistic)).to(bias_N.dtype)


def _centred(estimate_N: Tensor) -> Tensor:
    wide = estimate_N.double()
    return wide - wide.mean()


def _counted(r_MN: Tensor, mask_M: Tensor | None) -> Tensor:
    """Which tokens count (M,): valid ones without a NaN, which would poison every later bias."""
    counted_M = ~torch.isnan(r_MN).any(-1)
    if mask_M is None:
        return counted_M
    if mask_M.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True for a valid token), got {mask_M.dtype}")
    if mask_M.shape != counted_M.shape:
        raise ValueError(f"mask has shape {tuple(mask_M.shape)}; expected {tuple(counted_M.shape)}")
    return counted_M & mask_M


def histogram_quantile(counts_NB: Tensor, low: Tensor, high: Tensor, top_k: int) -> Tensor:
    """Each expert's quantile of required biases, read from counts (App. D), not yet centred.

    The first bin whose cumulative count reaches ceil(q), then linear interpolation inside it with
    the un-ceiled q. Ranks and counts are compared as integers: exact for totals below 2^63/(K N).

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
    rank_N = (demand_N + num_experts - 1) // num_experts
    bin_N = torch.searchsorted(cumulative_NB, rank_N).clamp(max=num_bins - 1)
    inside_N = counts_NB.gather(-1, bin_N)
    before_N = cumulative_NB.gather(-1, bin_N) - inside_N
    # (q - before) / inside over the common denominator N, so that no digit of q is lost.
    part_N = (demand_N - before_N * num_experts).double() / (inside_N.clamp(min=1) * num_experts)
    width = (high.double() - low.double()) / num_bins
    return (low.double() + (bin_N + part_N.clamp(0, 1)) * width).squeeze(-1)


class QuantileHistogram(KeepsPrecision):
    """Counts of required biases per expert, and the deferred update that reads them (App. D).

    The bias itself lives elsewhere (in the layer it is the gate's ``e_score_correction_bias``) and
    is passed in: ``count`` looks at it, only ``update_`` changes it. The bins cover
    [min b - 1, max b + 1] of the bias in force at the first count after an update, a range that no
    sigmoid score can leave. That range is kept with the counts, so they keep their meaning if
    another bias is loaded before the update.

    Buffers, both in the state dict, so that pending counts survive a checkpoint: ``histogram``
    (N, B) int64; ``bounds`` (2,), NaN while nothing is pending. A state dict without ``bounds`` is
    accepted: its counts are read over the range of the bias at the next call.

    Args:
        num_experts: N.
        top_k: K; with K = N there is no cutoff, and nothing is counted or updated.
        num_bins: B, at least 2.
        enabled: if false, ``count`` and ``update_`` do nothing; may be changed at any time.

    Raises:
        ValueError: a size is out of range.
    """

    kept_buffers: ClassVar[tuple[str, ...]] = ("histogram", "bounds")
    histogram: Tensor
    bounds: Tensor

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        num_bins: int = 1000,
        *,
        enabled: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k must be in 1 … {num_experts} (the experts), got {top_k}")
        if num_bins < 2:
            raise ValueError(f"num_bins must be at least 2, got {num_bins}")
        self.top_k = top_k
        self.enabled = enabled
        counts = torch.zeros(num_experts, num_bins, dtype=torch.int64, device=device)
        self.register_buffer("histogram", counts)
        bounds = torch.full((2,), torch.nan, dtype=compute_dtype(dtype), device=device)
        self.register_buffer("bounds", bounds)

    @torch.no_grad()
    def count(
        self,
        scores_MN: Tensor,
        cutoff_M: Tensor | None,
        bias_N: Tensor,
        mask: Tensor | None = None,
    ) -> None:
        """Add the required biases of one micro-batch, routed with ``bias_N``, to the counts.

        Args:
            scores_MN: sigmoid scores; tokens with a NaN are left out.
            cutoff_M: the (K+1)-th largest biased scores; None (K = N) counts nothing.
            bias_N: the bias in force.
            mask: True for the tokens that count; all of them if left out.
        """
        if cutoff_M is None or not self.enabled:
            return
        low, high = self._range(bias_N)
        self.bounds.copy_(torch.stack((low, high)))
        num_experts, num_bins = self.histogram.shape
        r_MN = required_bias(scores_MN, cutoff_M)
        counted_M = _counted(r_MN, mask)
        # The top edge belongs to the last bin; rounding may reach past either edge.
        position_MN = ((r_MN - low) * (num_bins / (high - low))).clamp_(0, num_bins - 1)
        index_MN = position_MN.to(torch.int64)
        index_MN += torch.arange(num_experts, device=index_MN.device) * num_bins
        # Tokens that do not count go to one more slot: their number need not be known here.
        slots = num_experts * num_bins
        index_MN.masked_fill_(~counted_M[:, None], slots)
        counts = torch.bincount(index_MN.flatten(), minlength=slots + 1)
        self.histogram += counts[:slots].view_as(self.histogram)

    @torch.no_grad()
    def update_(self, bias_N: Tensor) -> None:
        """Write the bias that the pending counts ask for into ``bias_N``, and clear the counts.

        Without pending counts the bias keeps its values. Its storage is never replaced.
        """
        num_experts = self.histogram.shape[0]
        if not self.enabled or self.top_k == num_experts:
            return
        counts_NB = self.histogram  # Of all ranks: the one place where they are to be added up.
        low, high = self._range(bias_N)
        new_N = _centred(histogram_quantile(counts_NB, low, high, self.top_k)).to(bias_N.dtype)
        bias_N.copy_(torch.where(counts_NB.any(), new_N, bias_N))
        self.histogram.zero_()
        self.bounds.fill_(torch.nan)

    def _range(self, bias_N: Tensor) -> tuple[Tensor, Tensor]:
        """The range of the pending counts, or the one for ``bias_N`` where nothing is pending."""
        finite = torch.isfinite(bias_N)
        low = torch.where(finite, bias_N, torch.inf).amin() - 1
        high = torch.where(finite, bias_N, -torch.inf).amax() + 1
        new = torch.stack((low, high)).to(self.bounds)
        low, high = torch.where(torch.isnan(self.bounds), new, self.bounds).unbind()
        return low, high

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if prefix + "histogram" in state_dict:
            unknown = torch.full_like(self.bounds, torch.nan)
            state_dict.setdefault(prefix + "bounds", unknown)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Sizes, for ``print(module)``."""
        num_experts, num_bins = self.histogram.shape
        return f"{num_experts}, top_k={self.top_k}, num_bins={num_bins}, enabled={self.enabled}"


class HistogramBalancer(QuantileHistogram):
    """A histogram together with a bias of its own, for routers that only hand over logits.

    Buffers: ``bias`` (N,) float32 or float64, and those of ``QuantileHistogram``.

    Args:
        num_experts: N.
        top_k: K.
        num_bins: B, at least 2.
        bias: the first bias (N,), copied; 0 if left out.
        enabled: if false, nothing is counted and the bias stays what it is.
        dtype: format of the bias, float32 or float64.

    Raises:
        ValueError: a size is out of range.
    """

    kept_buffers: ClassVar[tuple[str, ...]] = ("bias", *QuantileHistogram.kept_buffers)
    bias: Tensor

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        num_bins: int = 1000,
        *,
        bias: Tensor | None = None,
        enabled: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(num_experts, top_k, num_bins, enabled=enabled, device=device, dtype=dtype)
        if bias is not None and bias.shape != (num_experts,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}; expected ({num_experts},)")
        own = torch.zeros(num_experts, dtype=compute_dtype(dtype), device=device)
        self.register_buffer("bias", own if bias is None else own.copy_(bias))

    def observe(
        self, logits_MN: Tensor, *, training: bool | None = None, mask: Tensor | None = None
    ) -> Routing:
        """Route a micro-batch with the present bias and, in training, count it.

        Args:
            logits_MN: router logits.
            training: whether to count; the module's own mode if left out.
            mask: True for the tokens that count.
        """
        scores_MN = scores(logits_MN)
        routing = route_scores(scores_MN, self.bias, top_k=self.top_k)
        if self.training if training is None else training:
            self.count(scores_MN, routing.cutoff, self.bias, mask)
        return routing

    def update(self) -> None:
        """Replace the bias, in its own storage, by the one the pending counts ask for."""
        self.update_(self.bias)
