"""The loads that a router gives its experts, a subgradient of the dual, and what an update owes it.

D(b) = sum_i (sum of the k largest s_i + b) - q sum b is the dual of App. C with the token
multipliers at their best. Its subgradients in b are L - q, with L the loads of any top-k choice.

Legend: M tokens, N routed experts; k = top_k, m = M, n = N, q = m k / n.
"""

from __future__ import annotations

import math

import numpy as np

import reference_numpy as reference
from properties.judgement.balancing import Allowed, readings, required_biases
from properties.judgement.balancing_runs import valid_rows
from properties.judgement.balancing_update import Landing, Path, judged
from properties.judgement.routing import require_ids, scored
from properties.protocol import Array
from properties.strategies.balancing import BatchInputs
from properties.subject import Subject

__all__ = ["loads_of", "on_own_side", "require_least", "require_subgradient"]


def loads_of(subject: Subject, batch: BatchInputs) -> tuple[Array, Array]:
    """How many valid tokens each expert gets at the batch's bias, (N,), and who chose: (M, N).

    The subject's own router chooses, or the reference where none is offered.
    """
    logits_MN = valid_rows(batch)
    chosen_MN = np.zeros(logits_MN.shape, dtype=bool)
    if "route" in subject.offered:
        routed = subject.route(logits_MN, batch.bias, top_k=batch.top_k)
        require_ids(routed, batch.bias.shape[0])
        ids_MK = routed.expert_ids
    else:
        ids_MK = reference.top_k_ids(
            scored(subject, logits_MN, batch.bias).biased.value, batch.top_k
        )
    np.put_along_axis(chosen_MN, ids_MK, True, axis=1)
    return chosen_MN.sum(axis=0), chosen_MN


def on_own_side(
    subject: Subject, batch: BatchInputs, path: Path, landing: Landing, loads_N: Array
) -> list[Allowed]:
    """Where b̂_j may lie if overloaded experts go down and underloaded ones up, per reading.

    Overloaded is a load of at least the highest rank that may be read: so many r_ij lie at or
    below b_j. Underloaded is a load below the lowest: fewer than that lie below b_j. The router may
    take either side within two radii of a tie.
    """
    logits_MN = valid_rows(batch)
    slip_N = landing.doubt + 2.0 * float(scored(subject, logits_MN, batch.bias).biased.radius.max())
    tokens, num_experts = logits_MN.shape
    sides = []
    for reading in readings(path.rule, tokens, batch.top_k, num_experts):
        low_N = np.where(loads_N < reading.low, batch.bias, -np.inf)
        high_N = np.where(loads_N >= reading.high, batch.bias, np.inf)
        sides.append(Allowed(low_N, high_N, slip_N, slip_N))
    return sides


def require_subgradient(
    subject: Subject, batch: BatchInputs, chosen_MN: Array, elsewhere: dict[str, Array]
) -> None:
    """Require D(b') >= D(b) + <L - q, b' - b>, L being the loads of the choice, at all these b'.

    In D(b') - D(b) - <L - q, b' - b> the terms with q cancel, and what is left is, token by token,
    how much the choice falls short of the best at b' less how much it does at b.
    """
    biased = scored(subject, valid_rows(batch), batch.bias).biased
    radius_M = biased.radius.max(axis=1)
    swapped = min(batch.top_k, batch.bias.shape[0] - batch.top_k)
    short_M = _shortfall(biased.value, chosen_MN)
    scores_MN = biased.value - batch.bias
    for name, bias in elsewhere.items():
        there_M = _shortfall(scores_MN + bias, chosen_MN)
        size = np.abs(scores_MN).max() + np.abs(bias).max() + np.abs(batch.bias).max()
        own = len(short_M) * 8.0 * (batch.top_k + 1) ** 2 * 2.0**-53 * float(size)
        excess = math.fsum(short_M) - math.fsum(there_M)
        judged(
            subject,
            excess,
            2.0 * swapped * math.fsum(radius_M) + own,
            "the loads as a subgradient",
            f"D at {name} lies {excess!s} below what the loads of the present routing promise: "
            "they are no subgradient of the dual",
        )


def _shortfall(biased_MN: Array, chosen_MN: Array) -> Array:
    """Per token, the sum of the k largest less that of the chosen ones, (M,)."""
    top_k = int(chosen_MN[0].sum())
    best_M = np.sort(biased_MN, axis=1)[:, -top_k:].sum(axis=1)
    short: Array = best_M - np.where(chosen_MN, biased_MN, 0.0).sum(axis=1)
    return short


def require_least(subject: Subject, batch: BatchInputs, landing: Landing) -> None:
    """Require b + c, for the best constant c, to minimise the dual at the cutoffs in force.

    Up to a constant the dual is then the sum of max(0, b_j - r_ij) less q sum b_j. Along c its
    slope is the number of r_ij < b_j + c less m k: least at the (m k)-th smallest r_ij - b_j.
    """
    r_MN = required_biases(subject, valid_rows(batch), batch.bias, batch.top_k)
    tokens, num_experts = r_MN.shape
    edges = tokens * batch.top_k
    constant = np.partition((r_MN.value - landing.bias).ravel(), edges - 1)[edges - 1]
    load = edges / num_experts
    least_N, _ = reference.quantile_interval(r_MN.value, batch.top_k)
    here_N = landing.bias + constant
    hinges_MN = np.maximum(here_N - r_MN.value, 0.0) - np.maximum(least_N - r_MN.value, 0.0)
    excess = math.fsum(hinges_MN.ravel()) - load * math.fsum(here_N - least_N)
    size = np.abs(r_MN.value).max() + np.abs(landing.bias).max() + abs(constant)
    own = 16.0 * 2.0**-53 * r_MN.value.size * float(size)
    judged(
        subject,
        excess,
        max(load, tokens - load) * float(landing.doubt.sum()) + own,
        "the dual after the update",
        f"whatever constant is added, the dual at the present cutoffs is {excess!s} above its "
        "least value",
    )
