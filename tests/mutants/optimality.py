"""Updates that do not find the optimal assignment, each from the reference by the smallest change.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import reference_numpy as reference
from properties.protocol import Array, Conventions, Routing
from properties.reference import Reference


def required_biases(logits: Array, bias: Array, rank: int) -> Array:
    """r (M, N) with the rank-th largest biased score as the cutoff; k + 1 is right."""
    s_MN = reference.scores(logits)
    descending = -np.sort(-(s_MN + bias), axis=1)
    return np.asarray(descending[:, rank - 1 : rank] - s_MN)


def centred(values: Array) -> Array:
    return np.asarray(values - values.mean())


class Interior(Reference):
    """The base of updates that claim a statistic strictly inside the interval of minimisers."""

    conventions = Conventions(expert_rank="interior")


class FlippedUpdate(Interior):
    """The bias moves against the load: overloaded experts are made more attractive."""

    killed_by = "OPT-IMPL"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        return -super().quantile_update(logits, bias, **options)


class AccumulatedUpdate(Interior):
    """The new estimate is added to the old bias instead of replacing it."""

    killed_by = "OPT-IMPL"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        r_MN = required_biases(logits, bias, options["top_k"] + 1)
        return np.asarray(bias + reference.expert_statistic(r_MN, options["top_k"]))


class CornerDeclaredInterior(Interior):
    """Eq. 14 as written, the (q+1)-th statistic, passed off as an interior one: it jams."""

    killed_by = "OPT-IMPL"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        return reference.quantile_update(logits, bias, statistic="q+1", **options)


class RankBeyondInterval(Interior):
    """The (q+2)-th smallest required bias: every expert asks for one token too many."""

    killed_by = "OPT-IMPL"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        top_k = options["top_k"]
        r_MN = required_biases(logits, bias, top_k + 1)
        rank = reference.target_rank(*r_MN.shape[:1], top_k, r_MN.shape[1]) + 2
        return centred(np.sort(r_MN, axis=0)[min(rank, r_MN.shape[0]) - 1])


class CutoffIsLastChosen(Reference):
    """The k-th biased score as the cutoff, with the q-th statistic: the mirror that jams, too."""

    killed_by = "OPT-IMPL"
    conventions = Conventions(expert_rank="q")

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        r_MN = required_biases(logits, bias, options["top_k"])
        return centred(reference.expert_statistic(r_MN, options["top_k"], "q"))


class CutoffWithoutBias(Interior):
    """The cutoff is taken from the raw scores, so every update repeats the first one."""

    killed_by = "OPT-IMPL"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        r_MN = required_biases(logits, np.zeros_like(bias), options["top_k"] + 1)
        return centred(reference.expert_statistic(r_MN, options["top_k"]))


class BFloat16Bias(Interior):
    """The bias is kept in bfloat16: three digits cannot hold what balances the batch."""

    killed_by = "OPT-IMPL"

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        after = super().quantile_update(logits, bias, **options)
        return np.asarray(after.astype(ml_dtypes.bfloat16).astype(np.float64))


class RouteWithoutBias(Interior):
    """The update is right, but the router never adds the bias that it returns."""

    killed_by = "OPT-IMPL"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return reference.route(logits, np.zeros_like(bias), top_k=top_k)
