"""How often two corner rules stop above the optimum, and the smallest instances on which they do.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import lp_oracle
from properties.checks import require
from properties.judgement.optimality.fixed_points import JAMMING, Pair, inside_share, tightness
from properties.judgement.optimality.optimum import best_of_all, bracket, exact_dual, written
from properties.strategies.optimality import SHAPES, drawn_scores

ROUNDS = 100

PINNED_JAMS: dict[str, Pair] = {
    "CORNER_JAM_TOP1": ("k+1", "q+1"),
    "CORNER_JAM_TOP2": ("k+1", "q+1"),
    "MIRROR_JAM_TOP1": ("k", "q"),
    "MIRROR_JAM_TOP2": ("k", "q"),
}

__all__ = ["jamming_frequencies", "jamming_frequency", "pinned_jams", "require_jam"]


def pinned_jams() -> Iterator[tuple[str, str]]:
    """Each pinned instance with its pair of rules: a name, and the facts. Raises ViolationError."""
    for name, pair in PINNED_JAMS.items():
        yield f"{pair[0]}/{pair[1]} {name}", require_jam(name, pair)


def jamming_frequencies(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Both jamming pairs: a name, and how often they reach LP* on generic instances."""
    for pair in JAMMING:
        yield f"{pair[0]}/{pair[1]} frequency", jamming_frequency(pair, seed, count)


def require_jam(name: str, pair: Pair) -> str:
    """Require this pair of rules to stop above LP* on that instance, for ever; the facts as text.

    LP* comes from trying all assignments and from ``linprog``; D is summed in rationals. The tight
    edges must form a forest, so that the scores are generic where the descent stops; and the rule
    that is interior on both sides must find the optimum.
    """
    instance = lp_oracle.INSTANCES[name]
    s_MN, top_k = instance.scores, instance.top_k
    told = written(s_MN, top_k)
    best = best_of_all(s_MN, top_k)
    optimum = bracket(s_MN, top_k)
    require(optimum.lower == best == optimum.upper, f"linprog does not find LP* = {best}: {told}")
    stopped = lp_oracle.coordinate_descent(
        s_MN, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=ROUNDS
    )
    alpha, beta = stopped.token_multipliers, stopped.expert_multipliers
    dual = exact_dual(s_MN, alpha, beta, top_k)
    require(stopped.outcome == "jammed", f"{pair} ends {stopped.outcome}, not jammed: {told}")
    require(dual == stopped.dual_values[-1], f"D is {dual}, not {stopped.dual_values[-1]}: {told}")
    require(dual > best, f"{pair} stops at D = {dual}, not above LP* = {best}: {told}")
    again = lp_oracle.expert_step(s_MN, alpha, top_k, rule=pair[1])
    require(len(set(again - beta)) == 1, f"{pair} goes on after it stopped: {told}")
    margins = (s_MN - alpha[:, None] - beta).astype(np.float64)
    tight = tightness(margins, 0.0, inside_share(top_k, s_MN.shape[1]))
    require(tight == "forest", f"the tight edges contain a cycle: {told}")
    interior = lp_oracle.coordinate_descent(
        s_MN, top_k, token_rule="midpoint", expert_rule="midpoint", rounds=ROUNDS
    )
    require(interior.outcome == "certified", f"midpoints end {interior.outcome}: {told}")
    optimum.require_attained_by(interior.verdict.assignment)
    return f"{told}: LP {best}, dual {dual}"


def jamming_frequency(pair: Pair, seed: int, count: int) -> str:
    """How often the pair reaches LP*, and certifies its routing, on generic instances, as a text.

    Uniform scores, all shapes up to 24 x 12 with an integer q equally likely. Raises UnknownError
    where ``linprog`` does not confirm an optimum.
    """
    rng = np.random.default_rng(seed)
    reached = certified = jammed = 0
    for _ in range(count):
        m, n, top_k = SHAPES[rng.integers(len(SHAPES))]
        s_MN = drawn_scores("uniform", rng, (m, n))
        trace = lp_oracle.coordinate_descent(
            s_MN, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=ROUNDS
        )
        multipliers = trace.token_multipliers, trace.expert_multipliers
        gap = exact_dual(s_MN, *multipliers, top_k) - bracket(s_MN, top_k).upper
        reached += gap <= lp_oracle.dual_radius(s_MN, *multipliers, top_k)
        certified += trace.outcome == "certified"
        jammed += trace.outcome == "jammed"
    return (
        f"of {count} generic instances (uniform scores, seed {seed}) the dual reaches LP* on "
        f"{reached / count:.0%}, the routing is the optimum on {certified / count:.0%}; "
        f"{jammed / count:.0%} repeat themselves for ever"
    )
