"""The gap after every round, at growing sizes, for the rules that people use.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

from dataclasses import dataclass

import lp_oracle
from properties.study.gaps import Pair, gaps_of, known_at_scale
from properties.study.instances import router_scores
from properties.study.workers import Workers

Shape = tuple[int, int, int]

ROUNDS = 100
SHAPES: tuple[Shape, ...] = ((64, 16, 2), (512, 64, 4), (2240, 224, 4))
QUICK_SHAPES: tuple[Shape, ...] = ((16, 4, 1), (32, 8, 2), (48, 12, 2))
SPREAD = 1.0

PAIRS: tuple[Pair, ...] = (
    ("k+1", "q+1"),
    ("k+1", "q"),
    ("k+1", "linear"),
    ("midpoint", "midpoint"),
)
NAMES = {
    ("k+1", "q+1"): "Eq. 14 and Alg. 1 as written",
    ("k+1", "q"): "the rank of App. D",
    ("k+1", "linear"): "Eq. 14 with a linear quantile",
    ("midpoint", "midpoint"): "interior on both sides",
}

__all__ = ["NAMES", "PAIRS", "QUICK_SHAPES", "ROUNDS", "SHAPES", "SPREAD", "Curve", "measure"]


@dataclass(frozen=True)
class Curve:
    """The relative gap of one descent after every round; 0 from the round that ``reached`` LP*.

    ``outcome`` is that of the descent: "certified", "jammed" or "unfinished".
    """

    m: int
    n: int
    top_k: int
    token_rule: str
    expert_rule: str
    outcome: str
    reached: int | None
    allowed: float
    gaps: list[float]


def measure(seed: int, shapes: tuple[Shape, ...], workers: Workers) -> list[Curve]:
    """A curve for each shape and each of ``PAIRS``, on one instance per shape."""
    items = [(seed, shape, pair) for shape in shapes for pair in PAIRS]
    # The largest first, or one worker ends up alone with it.
    curves = workers.map(_curve, items[::-1], "rounds")
    return curves[::-1]


def _curve(item: tuple[int, Shape, Pair]) -> Curve:
    seed, (m, n, top_k), (token_rule, expert_rule) = item
    scores_MN = router_scores((seed, m, n, top_k), (m, n), SPREAD)
    trace = lp_oracle.coordinate_descent(
        scores_MN, top_k, token_rule=token_rule, expert_rule=expert_rule, rounds=ROUNDS
    )
    gaps = gaps_of(trace, known_at_scale(scores_MN, top_k))
    return Curve(
        m=m,
        n=n,
        top_k=top_k,
        token_rule=token_rule,
        expert_rule=expert_rule,
        outcome=trace.outcome,
        reached=gaps.reached,
        allowed=gaps.allowed,
        gaps=list(gaps.relative),
    )
