"""Quantile Balancing: Eq. 14 and App. D of arXiv 2607.24653.

Legend: M tokens, N routed experts, B histogram bins. k = top_k, m = M valid tokens, n = N,
q = m k / n the target load.

The required bias r_ij = alpha_i - s_ij is what expert j needs to reach token i's cutoff. As
b_j = -beta_j, the (1 - k/n)-quantile of s - alpha is minus the (k/n)-quantile of r: an order
statistic of r near rank q.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from reference_numpy.arrays import Array, BoolArray, require_mask, require_shape, require_top_k
from reference_numpy.routing import Routing, cutoff, route, scores

Statistic: TypeAlias = Literal["q", "q+1", "linear", "midpoint"]

NUM_BINS = 1000

__all__ = [
    "NUM_BINS",
    "HistogramBalancer",
    "Statistic",
    "bin_counts",
    "expert_statistic",
    "histogram_range",
    "histogram_statistic",
    "quantile_interval",
    "quantile_update",
    "required_bias",
    "target_rank",
]


def required_bias(s_MN: Array, cutoff_M: Array) -> Array:
    """r_ij = alpha_i - s_ij, (M, N): the least bias that lifts expert j to token i's cutoff."""
    return cutoff_M[:, None] - s_MN


def target_rank(valid_tokens: int, top_k: int, num_experts: int) -> int:
    """ceil(q) = ceil(m k / n), in integers: in floating point k/n = 16/896 is rounded up too often.

    Raises ValueError for a negative number of tokens and a top_k outside 1 .. n.
    """
    if valid_tokens < 0:
        raise ValueError(f"valid_tokens = {valid_tokens} must not be negative")
    require_top_k(top_k, num_experts)
    return -(-int(valid_tokens) * int(top_k) // int(num_experts))


def quantile_interval(r_MN: Array, top_k: int) -> tuple[Array, Array]:
    """(lower, upper), each (N,): the ceil(q)-th and (ceil(q) + 1)-th smallest r of each expert.

    For integral q these ends and all between minimise the dual objective of App. C over b_j; for
    fractional q only the lower end does. Ranks beyond m read the m-th. Raises ValueError without
    tokens.
    """
    _require_required_bias(r_MN)
    num_tokens, num_experts = r_MN.shape
    rank = target_rank(num_tokens, top_k, num_experts)
    ascending_MN = np.sort(r_MN, axis=0)
    return ascending_MN[rank - 1], ascending_MN[min(rank, num_tokens - 1)]


def expert_statistic(r_MN: Array, top_k: int, statistic: Statistic = "linear") -> Array:
    """b-hat_j before centring, (N,): one statistic of column j of r.

    "q" and "q+1" are the ends of ``quantile_interval``, "midpoint" is their mean, and "linear" is
    Eq. 14 with the interpolating quantile that NumPy and PyTorch default to. The latter's rank is
    q + 1 - k/n: strictly inside the interval for integral q, but below its lower end where the
    fractional part of q lies in (0, k/n). Raises ValueError without tokens and for another name.
    """
    if statistic == "linear":
        _require_required_bias(r_MN)
        quantile_N: Array = np.quantile(-r_MN, 1.0 - top_k / r_MN.shape[1], axis=0)
        return -quantile_N
    lower_N, upper_N = quantile_interval(r_MN, top_k)
    if statistic == "q":
        return lower_N
    if statistic == "q+1":
        return upper_N
    if statistic == "midpoint":
        return lower_N + (upper_N - lower_N) / 2
    raise ValueError(f'statistic is {statistic!r}, expected "q", "q+1", "linear" or "midpoint"')


def quantile_update(
    logits_MN: Array,
    bias_N: Array,
    *,
    top_k: int,
    mask: BoolArray | None = None,
    statistic: Statistic = "linear",
) -> Array:
    """Eq. 14 on one pooled batch: the mean-centred bias (N,) for the next batch.

    alpha_i is the cutoff of token i under the old bias, b-hat the statistic of r, and
    b = b-hat - mean(b-hat). Rows where ``mask`` (M,) is False are left out. Without valid tokens,
    or with k = n, the old bias is returned. Raises ValueError for shapes that do not fit, a top_k
    outside 1 .. n, a mask that is not boolean, and another statistic.
    """
    require_shape("logits", logits_MN, (None, None))
    num_tokens, num_experts = logits_MN.shape
    require_shape("bias", bias_N, (num_experts,))
    require_top_k(top_k, num_experts)
    if mask is not None:
        require_mask(mask, num_tokens)
        logits_MN = logits_MN[mask]
    if logits_MN.shape[0] == 0 or top_k == num_experts:
        return np.array(bias_N)
    s_MN = scores(logits_MN)
    r_MN = required_bias(s_MN, cutoff(s_MN + bias_N, top_k))
    return _centred(expert_statistic(r_MN, top_k, statistic))


def histogram_range(bias_N: Array) -> tuple[float, float]:
    """App. D's closed range [min b - 1, max b + 1], which holds every r for scores in [0, 1]."""
    return bias_N.min() - 1.0, bias_N.max() + 1.0


def bin_counts(r_MN: Array, low: float, high: float, num_bins: int) -> Array:
    """Counts (N, B) of each expert's r in B equal bins of [low, high], both ends inside.

    A value on an inner edge belongs to the bin above it, one outside the range to the nearest bin.
    Raises ValueError for r that are not
    finite: they belong to no bin.
    """
    if not np.isfinite(r_MN).all():
        raise ValueError("required biases are not finite: the logits or the bias hold NaN or inf")
    num_experts = r_MN.shape[1]
    bins_MN = np.floor((r_MN - low) / ((high - low) / num_bins))
    bins_MN = np.clip(bins_MN, 0, num_bins - 1).astype(np.int64)
    flat = bins_MN + num_bins * np.arange(num_experts)
    counts = np.bincount(flat.ravel(), minlength=num_experts * num_bins)
    return counts.reshape(num_experts, num_bins)


def histogram_statistic(counts_NB: Array, low: float, high: float, top_k: int) -> Array:
    """b-hat_j before centring, (N,): App. D's estimate of the q-th smallest r from its counts.

    The first bin whose cumulative count reaches ceil(q) holds the ceil(q)-th value. Inside it the
    estimate goes clip((q - count below) / count in bin, 0, 1) of the way, with q not rounded.
    Raises ValueError without counts and for experts that have counted unequal numbers of tokens.
    """
    num_experts, num_bins = counts_NB.shape
    total = _tokens_counted(counts_NB)
    if total == 0:
        raise ValueError("the histogram is empty: observe a batch before reading its quantile")
    cumulative_NB = np.cumsum(counts_NB, axis=1, dtype=np.int64)
    first_N = np.argmax(cumulative_NB >= target_rank(total, top_k, num_experts), axis=1)
    experts_N = np.arange(num_experts)
    inside_N = counts_NB[experts_N, first_N]
    below_N = cumulative_NB[experts_N, first_N] - inside_N
    fraction_N = np.clip((total * top_k / num_experts - below_N) / inside_N, 0.0, 1.0)
    estimate_N: Array = low + (first_N + fraction_N) * ((high - low) / num_bins)
    return estimate_N


class HistogramBalancer:
    """Quantile Balancing over micro-batches, App. D: integer counts now, one update later.

    ``bias`` (N,) float64 changes in ``update`` and ``load_state_dict`` alone, so the range that a
    batch was counted in is still known when the counts are read. ``histogram`` (N, B) int64.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        num_bins: int = NUM_BINS,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> None:
        """Start from ``bias`` (N,), or zeros, and empty counts.

        Raises ValueError for a top_k outside 1 .. N, fewer than 1 bin or a bias of another shape.
        """
        require_top_k(top_k, num_experts)
        if num_bins < 1:
            raise ValueError(f"num_bins = {num_bins} must be at least 1")
        if bias is None:
            bias = np.zeros(num_experts)
        require_shape("bias", bias, (num_experts,))
        self.num_experts = num_experts
        self.top_k = top_k
        self.num_bins = num_bins
        self.enabled = enabled
        self.bias = np.array(bias, dtype=np.float64)
        self.histogram = self._empty()

    def observe(
        self, logits_MN: Array, *, training: bool = True, mask: BoolArray | None = None
    ) -> Routing:
        """Route a micro-batch (M, N) with the present bias and, in training, count its valid rows.

        Nothing is counted in evaluation, while disabled, and with k = n, where no cutoff exists.
        Raises ValueError as ``route`` and ``bin_counts`` do, and for a mask that is not a boolean
        (M,).
        """
        routing = route(logits_MN, self.bias, top_k=self.top_k)
        if mask is not None:
            require_mask(mask, logits_MN.shape[0])
        if training and self.enabled and routing.cutoff is not None:
            r_MN = required_bias(scores(logits_MN), routing.cutoff)
            valid_MN = r_MN if mask is None else r_MN[mask]
            low, high = histogram_range(self.bias)
            self.histogram = self.histogram + bin_counts(valid_MN, low, high, self.num_bins)
        return routing

    def update(self) -> None:
        """Replace the bias by the centred estimate and clear the counts.

        While disabled, and with nothing counted, everything stays as it is.
        """
        if not self.enabled or _tokens_counted(self.histogram) == 0:
            return
        low, high = histogram_range(self.bias)
        self.bias = _centred(histogram_statistic(self.histogram, low, high, self.top_k))
        self.histogram = self._empty()

    def set_enabled(self, flag: bool) -> None:
        """Switch counting and updating on or off; pending counts stay."""
        self.enabled = flag

    def state_dict(self) -> dict[str, Array]:
        """Copies of the bias (N,) and of the pending counts (N, B)."""
        return {"bias": self.bias.copy(), "histogram": self.histogram.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Replace bias and counts by copies of ``state``'s.

        Raises ValueError for a missing key, another shape, counts that are not integers of at
        least 0, and experts that have counted unequal numbers of tokens; nothing is replaced then.
        """
        for key in ("bias", "histogram"):
            if key not in state:
                raise ValueError(f"state has no {key!r}, only {sorted(state)}")
        bias_N, histogram_NB = np.asarray(state["bias"]), np.asarray(state["histogram"])
        require_shape("bias", bias_N, (self.num_experts,))
        require_shape("histogram", histogram_NB, (self.num_experts, self.num_bins))
        if not np.issubdtype(histogram_NB.dtype, np.integer) or (histogram_NB < 0).any():
            raise ValueError("histogram must hold integer counts of at least 0")
        _tokens_counted(histogram_NB)
        self.bias = bias_N.astype(np.float64)
        self.histogram = histogram_NB.astype(np.int64)

    def _empty(self) -> Array:
        return np.zeros((self.num_experts, self.num_bins), dtype=np.int64)


def _tokens_counted(counts_NB: Array) -> int:
    totals_N = counts_NB.sum(axis=1, dtype=np.int64)
    if (totals_N != totals_N[0]).any():
        raise ValueError(
            f"experts have counted between {totals_N.min()} and {totals_N.max()} tokens, "
            "but every valid token counts once for every expert"
        )
    return int(totals_N[0])


def _centred(estimate_N: Array) -> Array:
    centred_N: Array = estimate_N - np.mean(estimate_N)
    return centred_N


def _require_required_bias(r_MN: Array) -> None:
    require_shape("required bias", r_MN, (None, None))
    if r_MN.shape[0] == 0:
        raise ValueError("required bias has no rows: a quantile needs at least one valid token")
