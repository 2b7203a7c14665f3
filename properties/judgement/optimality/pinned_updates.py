"""Pinned batches on which balancing disappoints, judged with the oracle and with the reference.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import lp_oracle
import reference_numpy
from lp_oracle.behaviours import SplitBatch, UnevenLoads
from properties.checks import require
from properties.judgement.optimality.optimum import exact_dual, written
from properties.judgement.optimality.pinned import require_optimum
from properties.protocol import Array

LEVELS = 8  # scores t = 0..6 become (t + 1) / 8 in (0, 1)

__all__ = ["loads_of", "logits_of", "require_local_mean", "require_uneven_loads"]


def logits_of(scores_MN: Array) -> Array:
    """Logits whose sigmoid is (t + 1) / 8, for integer scores t in 0..6."""
    s_MN = (scores_MN + 1) / LEVELS
    logits_MN: Array = np.log(s_MN / (1.0 - s_MN))
    return logits_MN


def loads_of(logits_MN: Array, bias_N: Array, top_k: int) -> list[int]:
    """How many tokens the reference sends to each expert."""
    routing = reference_numpy.route(logits_MN, bias_N, top_k=top_k)
    counts = np.bincount(routing.expert_ids.ravel(), minlength=logits_MN.shape[1])
    loads: list[int] = counts.tolist()
    return loads


def require_local_mean(split: SplitBatch) -> str:
    """Require the pooled update to balance, and the mean of the ranks' updates not to."""
    s_MN, top_k = split.scores, split.top_k
    told = written(s_MN, top_k)
    require_optimum(s_MN, top_k, split.optimum)
    pooled = updated(s_MN, top_k)
    ranks = [updated(s_MN[list(part)], top_k) for part in split.parts]
    averaged = (ranks[0] + ranks[1]) * Fraction(1, 2)
    for name, beta, wanted, loads in (
        ("pooled", pooled, split.pooled, split.pooled_loads),
        ("averaged", averaged, split.averaged, split.averaged_loads),
    ):
        require(tuple(beta) == wanted, f"{name}: beta = {beta}, not {wanted}: {told}")
        verdict = lp_oracle.certify_routing(s_MN, -beta, top_k)
        require(verdict.margin > 0, f"{name}: ties at the cutoff: {told}")
        require(tuple(verdict.loads) == loads, f"{name}: loads {verdict.loads}: {told}")
        require(verdict.optimal is (name == "pooled"), f"{name}: {verdict.reason}: {told}")
    logits_MN, zero = logits_of(s_MN), np.zeros(s_MN.shape[1])
    whole = reference_numpy.quantile_update(logits_MN, zero, top_k=top_k)
    biases = [
        reference_numpy.quantile_update(logits_MN[list(part)], zero, top_k=top_k)
        for part in split.parts
    ]
    found = [loads_of(logits_MN, bias, top_k) for bias in (whole, (biases[0] + biases[1]) / 2)]
    wanted_loads = [list(split.pooled_loads), list(split.averaged_loads)]
    require(found == wanted_loads, f"the reference's loads are {found}: {told}")
    return f"{told}: pooled loads {split.pooled_loads}, averaged {split.averaged_loads}"


def updated(scores_MN: Array, top_k: int) -> Array:
    """beta after one round of Eq. 14 from b = 0, with the linear quantile, (N,) in rationals."""
    alpha = lp_oracle.token_step(scores_MN, np.zeros(scores_MN.shape[1], int), top_k, rule="k+1")
    return lp_oracle.expert_step(scores_MN, alpha, top_k, rule="linear")


def require_uneven_loads(uneven: UnevenLoads) -> str:
    """Require max/min load to rise where D falls, in the oracle's rounds and the reference's."""
    s_MN, top_k = uneven.scores, uneven.top_k
    told = written(s_MN, top_k)
    require_optimum(s_MN, top_k, uneven.optimum)
    pair = {"token_rule": uneven.token_rule, "expert_rule": uneven.expert_rule}
    duals, ratios = [], []
    for rounds, loads in enumerate(uneven.loads):
        trace = lp_oracle.coordinate_descent(s_MN, top_k, rounds=rounds, **pair)  # type: ignore[arg-type]
        alpha, beta = trace.token_multipliers, trace.expert_multipliers
        require(tuple(trace.verdict.loads) == loads, f"loads {trace.verdict.loads}: {told}")
        require(trace.verdict.margin > 0, f"ties at the cutoff before round {rounds}: {told}")
        duals.append(exact_dual(s_MN, alpha, beta, top_k))
        ratios.append(Fraction(max(loads), min(loads)))
    require(ratios[1] > ratios[0], f"max/min load goes {ratios}: {told}")
    require(duals[1] < duals[0], f"D goes {duals}: {told}")
    trace = lp_oracle.coordinate_descent(s_MN, top_k, **pair)  # type: ignore[arg-type]
    require(trace.dual_values == uneven.dual_values, f"D goes {trace.dual_values}: {told}")
    require(trace.outcome == "certified", f"ends {trace.outcome}: {told}")
    logits_MN, bias = logits_of(s_MN), np.zeros(s_MN.shape[1])
    seen = [loads_of(logits_MN, bias, top_k)]
    for _ in range(trace.rounds):
        bias = reference_numpy.quantile_update(logits_MN, bias, top_k=top_k)
        seen.append(loads_of(logits_MN, bias, top_k))
    require(seen[:2] == [list(x) for x in uneven.loads], f"the reference's loads: {seen}: {told}")
    require(len(set(seen[-1])) == 1, f"the reference ends at loads {seen[-1]}: {told}")
    path = ", ".join(str(value) for value in trace.dual_values)
    return f"{told}: max/min load {ratios[0]}, then {ratios[1]}; dual {path}"
