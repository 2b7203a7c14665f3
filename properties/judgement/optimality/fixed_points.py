"""Fixed points of the dual descent, and what a fixed point with rounding errors still proves.

One round takes beta to alpha by the token rule and to beta' by the expert rule. A *fixed point
modulo a constant* has beta' = beta + c for all experts. Let p = s - alpha - beta and let Z be the
*tight* edges, p = 0. The theorem (its proof is in OPT-FIXED) says for generic scores, an integer q
and all pairs of rules but the two jamming ones: the routing is certified. It rests on two facts.

* If c is not 0, counting edges alone certifies the routing, with margins of at least abs(c).
* If c = 0, counting along Z is contradictory whenever Z is a non-empty forest. Generic scores admit
  no cycle in Z, for on a cycle the scores would cancel.

In floating point c and p are known up to some ``slack``, so "tight" needs a scale. A scale is clear
if no edge lies between it and (scale + 2 slack) / inside + slack, where ``inside`` is the least
share of an interval that an interior rule keeps from both ends. At a clear scale the second
argument holds word for word: a vertex with an edge that near has both ends of its interval that
near, so again its demand lies strictly between 0 and its number of tight edges. A forest at a clear
scale therefore cannot be explained by rounding; a cycle can, because then the scores cancel up to
rounding, and the instance is not generic at this precision.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

import numpy as np

import lp_oracle
from properties.errors import UnknownError, ViolationError
from properties.judgement.optimality.optimum import Optimum, written
from properties.protocol import Array
from properties.strategies.arrays import normal
from properties.strategies.optimality import FixedPointInputs

Tightness: TypeAlias = Literal["forest", "cycle"]
Pair: TypeAlias = tuple[lp_oracle.TokenRule, lp_oracle.ExpertRule]

INTERIOR = ("midpoint", "linear")

# Every pair of rules but ("k+1", "q+1") and ("k", "q").
PAIRS: tuple[Pair, ...] = (
    ("midpoint", "midpoint"),
    ("linear", "linear"),
    ("midpoint", "linear"),
    ("linear", "midpoint"),
    ("k+1", "midpoint"),
    ("k+1", "linear"),
    ("k", "midpoint"),
    ("k", "linear"),
    ("midpoint", "q+1"),
    ("linear", "q+1"),
    ("midpoint", "q"),
    ("linear", "q"),
    ("k+1", "q"),
    ("k", "q+1"),
)
INTERIOR_PAIRS = tuple(pair for pair in PAIRS if pair[0] in INTERIOR and pair[1] in INTERIOR)
JAMMING: tuple[Pair, ...] = (("k+1", "q+1"), ("k", "q"))
EVERY_PAIR = (*PAIRS, *JAMMING)

ROUNDOFF = 2.0**-53

__all__ = [
    "EVERY_PAIR",
    "INTERIOR",
    "INTERIOR_PAIRS",
    "JAMMING",
    "PAIRS",
    "FixedPoint",
    "Pair",
    "Tightness",
    "explain_rest",
    "inside_share",
    "is_forest",
    "rest_of",
    "settle",
    "start_of",
    "tightness",
]


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """beta with its round: alpha, and the constant c that the round adds up to ``slack``.

    ``rounds`` is how many it took to get here.
    """

    alpha: Array
    beta: Array
    constant: float
    slack: float
    rounds: int

    def tightness(self, scores_MN: Array, top_k: int) -> Tightness:
        """The tight edges here, for a routing that is not certified.

        A constant beyond twice the slack would have certified it, so experts see margins at most
        three times the slack away from those that tokens see.
        """
        margins_MN = (scores_MN - self.alpha[:, None] - self.beta).astype(np.float64)
        return tightness(margins_MN, 3.0 * self.slack, inside_share(top_k, scores_MN.shape[1]))


def start_of(inputs: FixedPointInputs, optimum: Optimum) -> Array:
    """beta to start from, (N,): 0, random of the scores' size, or optimal multipliers."""
    multipliers = optimum.multipliers[1]
    if inputs.start == "multipliers":
        return multipliers
    size = float(np.abs(inputs.instance.floats).max()) if inputs.start == "random" else 0.0
    return normal(inputs.seed, multipliers.shape, size)


def settle(
    scores_MN: Array, top_k: int, pair: Pair, start_N: Array, rounds: int
) -> FixedPoint | None:
    """Iterate float64 scores from ``start_N`` until a round adds one constant, or give up.

    The opposite corners need not converge by themselves, for their increments can alternate; they
    go half of each step, which has the same fixed points (Krasnoselskii and Mann; the map of a
    round is non-expansive). How a fixed point is found does not matter to what holds there.
    """
    token_rule, expert_rule = pair
    share = 1.0 if token_rule in INTERIOR or expert_rule in INTERIOR else 0.5
    beta = np.array(start_N, dtype=np.float64)
    largest = float(np.abs(scores_MN).max())
    for taken in range(1, rounds + 1):
        alpha = lp_oracle.token_step(scores_MN, beta, top_k, rule=token_rule)
        after = lp_oracle.expert_step(scores_MN, alpha, top_k, rule=expert_rule)
        increment = after - beta
        drift = float(increment.max() - increment.min())
        # Half steps interpolate differences of numbers of this size: 8 roundings each, and the
        # statistics themselves enlarge nothing; the drift is a difference of two increments.
        size = largest + float(np.abs(alpha).max()) + float(np.abs(beta).max())
        rounding = 64.0 * ROUNDOFF * size
        if drift <= rounding:
            constant = float(increment.max() + increment.min()) / 2.0
            return FixedPoint(alpha, beta, constant, drift / 2.0 + rounding, taken)
        beta = beta + share * increment
        beta = beta - beta.mean()
    return None


def rest_of(trace: lp_oracle.DescentTrace) -> FixedPoint:
    """Where a jammed descent stopped."""
    last = trace.increments[-1]
    most, least = float(last.max()), float(last.min())
    return FixedPoint(
        alpha=trace.token_multipliers,
        beta=trace.expert_multipliers,
        constant=(most + least) / 2.0,
        slack=(most - least) / 2.0 + trace.radius,
        rounds=trace.rounds,
    )


def explain_rest(found: FixedPoint, scores_MN: Array, top_k: int, pair: Pair) -> NoReturn:
    """At rest without a certificate, for generic scores, an integer q and one of ``PAIRS``.

    Raises ViolationError where that contradicts the theorem, and UnknownError where the scores are
    not generic enough to tell.
    """
    told = (
        f"the fixed point beta = {found.beta.tolist()} of {pair[0]}/{pair[1]} has no certificate; "
        f"{written(scores_MN, top_k)}"
    )
    if abs(found.constant) > 2.0 * found.slack:
        raise ViolationError(f"a round adds {found.constant!r} to every expert, but {told}")
    if found.tightness(scores_MN, top_k) == "forest":
        raise ViolationError(f"its tight edges form a forest, but {told}")
    raise UnknownError("not generic at this precision: the tight edges contain a cycle")


def inside_share(top_k: int, num_experts: int) -> float:
    """What midpoint and linear rule keep from both ends: at least min(k, n - k) / n."""
    return min(top_k, num_experts - top_k) / num_experts


def tightness(margins_MN: Array, slack: float, inside: float) -> Tightness:
    """Whether the edges that are tight at the least clear scale form a forest; maybe an empty one.

    Where no smaller scale is clear, all edges are tight, and with two rows and columns form cycles.
    """
    sizes = np.sort(np.abs(margins_MN), axis=None)
    scales = np.maximum(np.append(0.0, sizes), slack)
    clear = np.append(sizes, np.inf) > (scales + 2.0 * slack) / inside + slack
    tight_MN = np.abs(margins_MN) <= scales[np.argmax(clear)]
    return "forest" if is_forest(tight_MN) else "cycle"


def is_forest(edges_MN: Array) -> bool:
    """Whether the bipartite graph of these edges has no cycle: no edge joins a tree to itself."""
    m, n = edges_MN.shape
    tree = np.arange(m + n)
    for i, j in np.argwhere(edges_MN):
        first, second = tree[i], tree[m + j]
        if first == second:
            return False
        tree[tree == second] = first
    return True
