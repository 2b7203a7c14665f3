"""Quantile balancing over micro-batches, layers and ranks: counts now, one update later (App. D).

Legend: M tokens, N routed experts, K top_k, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from impl_torch.balancing import centred, check_mask, histogram_quantile
from impl_torch.counting import bias_extremes, count_required_biases, histogram_range
from impl_torch.pooling import group_size, pooled
from impl_torch.precision import KeepsPrecision, compute_dtype
from impl_torch.routing import Routing, route_scores, scores

__all__ = ["HistogramBalancer", "QuantileHistogram", "Site", "update_biases"]


class QuantileHistogram(KeepsPrecision):
    """Counts of required biases per expert, and the deferred update that reads them (App. D).

    The bias itself lives elsewhere (in the layer it is the gate's ``e_score_correction_bias``) and
    is passed in: ``count`` looks at it, only ``update_`` changes it. The bins cover
    [min b - 1, max b + 1] of the bias in force at the first count after an update, a range that no
    sigmoid score can leave. The extremes of that bias are kept with the counts, so that these keep
    their meaning if another bias is loaded before the update.

    Buffers, both in the state dict, so that pending counts survive a checkpoint: ``histogram``
    (N, B) int64, this rank's own counts; ``extremes`` (2,), NaN while nothing is pending. A state
    dict without ``extremes`` is accepted: its counts are read over the range of the bias at the
    next call. ``reduced_histogram``, not in the state dict, holds the counts of all ranks that the
    last update used, or None; it is only kept on request.

    Recomputation under activation checkpointing, reentrant or not, is recognised by running inside
    a backward pass, and counts nothing.

    Args:
        num_experts: N.
        top_k: K; with K = N there is no cutoff, and nothing is counted or updated.
        num_bins: B, at least 2.
        enabled: if false, ``count`` and ``update_`` do nothing; may be changed at any time, on all
            ranks alike.
        keep_reduced: whether ``reduced_histogram`` is kept, which takes 8 N B bytes.

    Raises:
        ValueError: a size is out of range.
    """

    kept_buffers: ClassVar[tuple[str, ...]] = ("histogram", "extremes", "reduced_histogram")
    histogram: Tensor
    extremes: Tensor
    reduced_histogram: Tensor | None

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        num_bins: int = 1000,
        *,
        enabled: bool = True,
        keep_reduced: bool = False,
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
        self.keep_reduced = keep_reduced
        counts = torch.zeros(num_experts, num_bins, dtype=torch.int64, device=device)
        self.register_buffer("histogram", counts)
        extremes = torch.full((2,), torch.nan, dtype=compute_dtype(dtype), device=device)
        self.register_buffer("extremes", extremes)
        self.register_buffer("reduced_histogram", None, persistent=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget all counts, as is needed after ``to_empty``, say from the meta device."""
        self.histogram.zero_()
        self.extremes.fill_(torch.nan)
        self.reduced_histogram = None

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

        Raises:
            TypeError: the mask is not boolean.
            ValueError: the mask's shape is not (M,).
        """
        if mask is not None:
            check_mask(mask, scores_MN.shape[0])
        if cutoff_M is None or not self.enabled:
            return
        count_required_biases(self.histogram, self.extremes, scores_MN, cutoff_M, bias_N, mask)

    def update_(self, bias_N: Tensor, *, group: dist.ProcessGroup | None = None) -> None:
        """``update_biases`` for this histogram alone, and the bias that belongs to it."""
        update_biases([(self, bias_N)], group=group)

    @property
    def updates(self) -> bool:
        """Whether an update changes anything: the histogram is enabled and K < N."""
        return self.enabled and self.top_k < self.histogram.shape[0]

    def _contribution(self, bias_N: Tensor, ranks: int) -> Tensor:
        """The counts that this rank adds to those of others, negative if they cannot be added."""
        if ranks == 1:
            return self.histogram
        extremes = self.extremes
        stale = (bias_extremes(bias_N).to(extremes) != extremes).any() & ~extremes.isnan().any()
        # Negative in every bin, whatever the other ranks add, and no overflow if all are stale.
        return torch.where(stale, -(2**62 // ranks), self.histogram)

    def _finish_update(self, bias_N: Tensor, counts_NB: Tensor, ranks: int) -> None:
        now = bias_extremes(bias_N)
        # Among several ranks the counts are known to belong to the bias in force.
        extremes = now if ranks > 1 else torch.where(self.extremes.isnan(), now, self.extremes)
        low, high = histogram_range(extremes, torch.float64)
        new_N = centred(histogram_quantile(counts_NB, low, high, self.top_k)).to(bias_N.dtype)
        bias_N.copy_(torch.where(counts_NB.any(), new_N, bias_N))
        self.reduced_histogram = counts_NB.clone() if self.keep_reduced else None
        self.histogram.zero_()
        self.extremes.fill_(torch.nan)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if prefix + "histogram" in state_dict:
            unknown = torch.full_like(self.extremes, torch.nan)
            state_dict.setdefault(prefix + "extremes", unknown)
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
        keep_reduced: whether ``reduced_histogram`` is kept.
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
        keep_reduced: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            num_experts,
            top_k,
            num_bins,
            enabled=enabled,
            keep_reduced=keep_reduced,
            device=device,
            dtype=dtype,
        )
        if bias is not None and bias.shape != (num_experts,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}; expected ({num_experts},)")
        own = torch.zeros(num_experts, dtype=compute_dtype(dtype), device=device)
        self.register_buffer("bias", own if bias is None else own.copy_(bias))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget all counts and set the bias to 0."""
        super().reset_parameters()
        self.bias.zero_()

    def observe(
        self, logits_MN: Tensor, *, training: bool | None = None, mask: Tensor | None = None
    ) -> Routing:
        """Route a micro-batch with the present bias and, in training, count it.

        Args:
            logits_MN: router logits.
            training: whether to count; the module's own mode if left out.
            mask: True for the tokens that count.

        Raises:
            TypeError: the mask is not boolean.
            ValueError: the logits' or the mask's shape is wrong.
        """
        scores_MN = scores(logits_MN)
        routing = route_scores(scores_MN, self.bias, top_k=self.top_k)
        if self.training if training is None else training:
            self.count(scores_MN, routing.cutoff, self.bias, mask)
        return routing

    def update(self, *, group: dist.ProcessGroup | None = None) -> None:
        """Replace the bias, in its own storage, by the one that the counts of all ranks ask for.

        Several balancers are better updated together, by ``update_biases``.
        """
        update_biases(self, group=group)

    def balancing_site(self) -> Site:
        """This histogram and its bias."""
        return self, self.bias


Site: TypeAlias = tuple[QuantileHistogram, Tensor]


@torch.no_grad()
def update_biases(
    balanced: nn.Module | Iterable[nn.Module | Site], *, group: dist.ProcessGroup | None = None
) -> None:
    """Once per optimiser step: every bias becomes what the counts of all ranks ask for (App. D).

    The counts of all layers travel in one all-reduce of integers, 8 N B bytes a layer whatever the
    number of tokens, so that every rank arrives at the same bias, bit by bit. Biases change in
    their own storage, and the counts are cleared; a bias for which nothing was counted anywhere
    keeps its values. Disabled histograms are passed over.

    Call it on every rank, after the backward pass: recomputation has to find the bias of the
    forward one.

    Args:
        balanced: a model, of which every module with a method ``balancing_site`` takes part
            (``LatentMoE`` and ``HistogramBalancer`` have it), or modules and pairs of a
            ``QuantileHistogram`` and its bias. The same on every rank.
        group: the ranks whose tokens are added up; if left out, all ranks, or this process alone
            where torch.distributed is not initialised. Ranks that see the same tokens, as in
            tensor parallelism, must not be in one group: see ``distinct_token_group``.

    Raises:
        ValueError: there is nothing to balance in it.
        RuntimeError: on every rank, with nothing changed: a rank has counted under another bias
            than the one now in force, which ranks without tokens know nothing of.
    """
    sites = _sites(balanced)
    if not sites:
        raise ValueError("no balancing layer found; pass a model with a LatentMoE(num_bins=1000)")
    ranks = group_size(group)
    sites = [site for site in sites if site[0].updates]
    own = [histogram._contribution(bias_N, ranks) for histogram, bias_N in sites]
    counts = pooled(own, group)
    if ranks > 1:
        _require_one_bias(counts)
    for (histogram, bias_N), counts_NB in zip(sites, counts, strict=True):
        histogram._finish_update(bias_N, counts_NB, ranks)


def _sites(balanced: nn.Module | Iterable[nn.Module | Site]) -> list[Site]:
    found: list[Site] = []
    for part in (balanced,) if isinstance(balanced, nn.Module) else balanced:
        if not isinstance(part, nn.Module):
            found.append(part)
            continue
        owners = (getattr(module, "balancing_site", None) for module in part.modules())
        sites = [owner() for owner in owners if owner is not None]
        found += [site for site in sites if site is not None]
    return found


def _require_one_bias(counts: list[Tensor]) -> None:
    if not counts:
        return
    lowest = torch.stack([counts_NB.amin().to(counts[0].device) for counts_NB in counts])
    stale = [layer for layer, count in enumerate(lowest.tolist()) if count < 0]
    if stale:
        raise RuntimeError(
            f"balancing layers {stale}: a rank has counted tokens under another bias than the one "
            "now in force; update before a bias is loaded, or load the counts along with it"
        )
