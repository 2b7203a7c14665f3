"""Adding required biases to a histogram (App. D), as one operator.

As an operator it is opaque to ``torch.compile``, which calls it as it is, graph unbroken, and it
decides when it runs, not when it is traced, whether a backward pass is recomputing the forward one.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from impl_torch.balancing import counted, required_bias

__all__ = ["bias_extremes", "count_required_biases", "histogram_range"]


def bias_extremes(bias_N: Tensor) -> Tensor:
    """The smallest and the largest finite bias, (2,): all that the range of the bins depends on.

    A cast of the bias casts its extremes alike, which is not true of the range itself.
    """
    finite_N = torch.isfinite(bias_N)
    smallest = torch.where(finite_N, bias_N, torch.inf).amin()
    largest = torch.where(finite_N, bias_N, -torch.inf).amax()
    return torch.stack((smallest, largest))


def histogram_range(extremes: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The ends [min b - 1, max b + 1] of the bins, which no sigmoid score can leave."""
    smallest, largest = extremes.to(dtype).unbind()
    return smallest - 1, largest + 1


def recomputing() -> bool:
    """Whether this runs inside a backward pass, as recomputation under checkpointing does."""
    return bool(torch._C._current_graph_task_id() != -1)


def _count(
    histogram_NB: Tensor,
    extremes: Tensor,
    scores_MN: Tensor,
    cutoff_M: Tensor,
    bias_N: Tensor,
    mask_M: Tensor | None,
) -> None:
    if recomputing():
        return
    num_experts, num_bins = histogram_NB.shape
    r_MN = required_bias(scores_MN, cutoff_M)
    counted_M = counted(r_MN, mask_M)
    # The first tokens after an update fix the range; a micro-batch without any must not.
    first = torch.isnan(extremes) & counted_M.any()
    extremes.copy_(torch.where(first, bias_extremes(bias_N).to(extremes), extremes))
    low, high = histogram_range(extremes, r_MN.dtype)
    # The top edge belongs to the last bin; rounding may reach past either edge. Without a token
    # that counts the range is NaN, and so is every position.
    position_MN = ((r_MN - low) * (num_bins / (high - low))).clamp_(0, num_bins - 1)
    index_MN = position_MN.to(torch.int64)
    index_MN += torch.arange(num_experts, device=index_MN.device) * num_bins
    # Tokens that do not count go to one more slot: their number need not be known here.
    slots = num_experts * num_bins
    index_MN.masked_fill_(~counted_M[:, None], slots)
    counts = torch.bincount(index_MN.flatten(), minlength=slots + 1)
    histogram_NB += counts[:slots].view_as(histogram_NB)


# Not torch.library.custom_op, whose first call imports the compiler: 1.5 seconds for everybody.
_library: Any = torch.library.Library("impl_torch", "DEF")  # type: ignore[no-untyped-call]
_library.define(
    "count_required_biases(Tensor(a!) histogram_NB, Tensor(b!) extremes, Tensor scores_MN, "
    "Tensor cutoff_M, Tensor bias_N, Tensor? mask_M) -> ()"
)
_library.impl("count_required_biases", _count, "CompositeExplicitAutograd")
_library.impl("count_required_biases", lambda *_: None, "Meta")  # also where it is traced


def count_required_biases(
    histogram_NB: Tensor,
    extremes: Tensor,
    scores_MN: Tensor,
    cutoff_M: Tensor,
    bias_N: Tensor,
    mask_M: Tensor | None,
) -> None:
    """Add one micro-batch's required biases to the counts, in place, unless it is recomputed.

    Args:
        histogram_NB: int64 counts, added to.
        extremes: (2,) those of the bias under which the counts are taken; set if they are NaN.
        scores_MN: sigmoid scores; tokens with a NaN are left out.
        cutoff_M: the (K+1)-th largest biased scores.
        bias_N: the bias in force.
        mask_M: True for the tokens that count; all of them if left out.
    """
    scores_MN, cutoff_M = scores_MN.detach(), cutoff_M.detach()
    torch.ops.impl_torch.count_required_biases(
        histogram_NB, extremes, scores_MN, cutoff_M, bias_N, mask_M
    )
