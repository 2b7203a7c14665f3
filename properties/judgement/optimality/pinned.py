"""The pinned instances, judged: optimum by two independent ways, dual in rationals, one more round.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

import lp_oracle
from lp_oracle.behaviours import OffMinimiser
from properties.checks import require
from properties.judgement.optimality.fixed_points import Pair
from properties.judgement.optimality.optimum import bracket, exact_dual, value_of, written
from properties.protocol import Array

ROUNDS = 60
GENERIC_BITS = 16

__all__ = [
    "best_value",
    "pinned_jams_named",
    "require_alternation",
    "require_jam_above",
    "require_off_minimiser",
    "require_optimum",
    "require_price_war",
    "unmet_demand",
]


def best_value(scores_MN: Array, top_k: int) -> Fraction:
    """LP* for any load, by dynamic programming over the column sums that the rows so far can have.

    Row and column sums are multiples of 1/g, g the denominator of q, and the constraint matrix is
    totally unimodular, so some optimum has entries in {0, 1/g, ..., 1}.
    """
    m, n = scores_MN.shape
    load = Fraction(m * top_k, n)
    parts = load.denominator
    shares = [r for r in itertools.product(range(parts + 1), repeat=n) if sum(r) == top_k * parts]
    best: dict[tuple[int, ...], int] = {(0,) * n: 0}
    for row in scores_MN.tolist():
        gains = [sum(s * x for s, x in zip(row, share, strict=True)) for share in shares]
        reached: dict[tuple[int, ...], int] = {}
        for sums, value in best.items():
            for share, gain in zip(shares, gains, strict=True):
                total = tuple(a + b for a, b in zip(sums, share, strict=True))
                if max(total) <= load.numerator:
                    reached[total] = max(reached.get(total, value + gain), value + gain)
        best = reached
    return Fraction(best[(load.numerator,) * n], parts)


def require_optimum(scores_MN: Array, top_k: int, pinned: Fraction) -> None:
    """Require LP* to be the pinned value, by enumeration and by ``linprog`` with exact bounds."""
    told = written(scores_MN, top_k)
    best = best_value(scores_MN, top_k)
    require(best == pinned, f"LP* is {best}, not {pinned}: {told}")
    optimum = bracket(scores_MN, top_k)
    require(optimum.lower == best == optimum.upper, f"linprog does not find LP* = {best}: {told}")


def pinned_jams_named(prefix: str) -> Iterator[tuple[str, Pair]]:
    """The names of the jams that begin so, with every pair that they are pinned for."""
    for name, instance in lp_oracle.INSTANCES.items():
        if name.startswith(prefix) and instance.outcome == "jammed":
            for pair in instance.pairs:
                yield name, pair


def require_jam_above(name: str, pair: Pair) -> str:
    """Require the pair to stop above LP* on that instance, for ever; the facts as text.

    The tight edges where it stops must leave some demand unmet (``unmet_demand``), or else a
    feasible x would satisfy complementary slackness there and D would be LP*.
    """
    instance = lp_oracle.INSTANCES[name]
    s_MN, top_k = instance.scores, instance.top_k
    told = f"{pair[0]}/{pair[1]} on {written(s_MN, top_k)}"
    require_optimum(s_MN, top_k, instance.optimum)
    trace = lp_oracle.coordinate_descent(
        s_MN, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=ROUNDS
    )
    require(trace.outcome == "jammed", f"ends {trace.outcome}, not jammed: {told}")
    alpha, beta = trace.token_multipliers, trace.expert_multipliers
    dual = exact_dual(s_MN, alpha, beta, top_k)
    require(dual == instance.dual_value, f"D is {dual}, not {instance.dual_value}: {told}")
    require(dual == trace.dual_values[-1], f"the trace says {trace.dual_values[-1]}: {told}")
    require(dual > instance.optimum, f"D = {dual} is not above LP*: {told}")
    again = lp_oracle.expert_step(s_MN, alpha, top_k, rule=pair[1])
    require(len(set(again - beta)) == 1, f"goes on after it stopped: {told}")
    later = lp_oracle.token_step(s_MN, again, top_k, rule=pair[0])
    require(len(set(later - alpha)) == 1, f"its tokens go on after it stopped: {told}")
    require(exact_dual(s_MN, later, again, top_k) == dual, f"D moves after it stopped: {told}")
    require(unmet_demand(s_MN, alpha, beta, top_k) > 0, f"all demands can be met: {told}")
    return f"{told}: LP {instance.optimum}, dual {dual}"


def unmet_demand(scores_MN: Array, alpha_M: Array, beta_N: Array, top_k: int) -> Fraction:
    """How much of the tokens' demand the tight edges cannot carry: by min-cut, over all token sets.

    A token demands k, an expert q, each minus its edges of positive margin. Tokens A can place at
    most sum_j min(demand of j, tight edges from A to j).
    """
    m, n = scores_MN.shape
    margins_MN = scores_MN - alpha_M[:, None] - beta_N
    tight_MN, chosen_MN = margins_MN == 0, margins_MN > 0
    demand_M = [top_k - int(row.sum()) for row in chosen_MN]
    demand_N = [Fraction(m * top_k, n) - int(column.sum()) for column in chosen_MN.T]
    unmet = Fraction(0)
    for size in range(m + 1):
        for tokens in itertools.combinations(range(m), size):
            edges_N = tight_MN[np.array(tokens, dtype=np.int64)].sum(axis=0)
            room = sum(
                (min(d, Fraction(int(e))) for d, e in zip(demand_N, edges_N, strict=True)),
                Fraction(0),
            )
            unmet = max(unmet, sum(demand_M[i] for i in tokens) - room)
    return unmet


def require_off_minimiser(name: str, instance: OffMinimiser) -> str:
    """Require every pair without the ceil(q)-th statistic to end at the pinned dual above LP*."""
    s_MN, top_k = instance.scores, instance.top_k
    told = written(s_MN, top_k)
    require_optimum(s_MN, top_k, instance.optimum)
    for (expert_rule, end), token_rule in itertools.product(
        instance.ends.items(), lp_oracle.TOKEN_RULES
    ):
        trace = lp_oracle.coordinate_descent(
            s_MN, top_k, token_rule=token_rule, expert_rule=expert_rule, rounds=ROUNDS
        )
        pair = f"{token_rule}/{expert_rule}"
        dual = exact_dual(s_MN, trace.token_multipliers, trace.expert_multipliers, top_k)
        first = trace.dual_values[0]
        require(first == instance.start, f"{pair} starts at {first}, not {instance.start}: {told}")
        require(trace.outcome == "jammed", f"{pair} ends {trace.outcome}, not jammed: {told}")
        require(dual == end, f"{pair} ends at D = {dual}, not {end}: {told}")
        require(dual > instance.optimum, f"{pair} ends at D = {dual}, not above LP*: {told}")
    ends = ", ".join(f"{rule} {end}" for rule, end in instance.ends.items())
    return f"{name}, {told}: LP {instance.optimum}, starts at {instance.start}, ends at {ends}"


def require_price_war(size: int) -> str:
    """Require the member of that size to take exactly ``size`` rounds, one unit at a time."""
    war = lp_oracle.PRICE_WAR
    s_MN, top_k = war.scores(size), war.top_k
    told = written(s_MN, top_k)
    require_optimum(s_MN, top_k, Fraction(war.optimum(size)))
    require_margin_one(s_MN, top_k)
    trace = lp_oracle.coordinate_descent(
        s_MN, top_k, token_rule=war.token_rule, expert_rule=war.expert_rule, rounds=size
    )
    falls = [war.optimum(size) + size - taken for taken in range(size + 1)]
    require(list(trace.dual_values) == falls, f"D is {trace.dual_values}, not {falls}: {told}")
    wanted = np.array([[1, 1, 0, size]] + [[1, 1, 0, 0]] * (size - 1))
    require(np.array_equal(trace.increments, wanted), f"increments {trace.increments}: {told}")
    # Scores without a cancelling cycle, closer to these than to each other (strategies.optimality).
    exponents = np.arange(GENERIC_BITS)[::-1].reshape(s_MN.shape)
    generic = lp_oracle.coordinate_descent(
        s_MN * 2**GENERIC_BITS + 2**exponents,
        top_k,
        token_rule=war.token_rule,
        expert_rule=war.expert_rule,
        rounds=2 * size,
    )
    require(generic.outcome == "certified", f"the generic copy ends {generic.outcome}: {told}")
    require(generic.rounds >= size, f"the generic copy takes {generic.rounds} rounds: {told}")
    return f"dual at LP* in round {size}, generic copy certified in round {generic.rounds}"


def require_margin_one(scores_MN: Array, top_k: int) -> None:
    """Require the second best 0/1 assignment to be worth 1 less than the best: tiny, q = k = 1."""
    n = scores_MN.shape[1]
    values = []
    for permutation in itertools.permutations(range(n)):
        x_MN = np.eye(n, dtype=np.int64)[list(permutation)]
        values.append(value_of(scores_MN, x_MN))
    best, second = sorted(values)[:-3:-1]
    require(best - second == 1, f"margin {best - second}, not 1: {written(scores_MN, top_k)}")


def require_alternation(name: str, rounds: int) -> str:
    """Require increments that repeat with period two and are never constant, the dual at LP*."""
    instance = lp_oracle.INSTANCES[name]
    s_MN, top_k = instance.scores, instance.top_k
    told = written(s_MN, top_k)
    require_optimum(s_MN, top_k, instance.optimum)
    trace = lp_oracle.coordinate_descent(
        s_MN,
        top_k,
        token_rule=instance.token_rule,
        expert_rule=instance.expert_rule,
        rounds=rounds,
    )
    require(trace.outcome == "unfinished", f"ends {trace.outcome}: {told}")
    dual = exact_dual(s_MN, trace.token_multipliers, trace.expert_multipliers, top_k)
    require(dual == instance.optimum, f"D is {dual}, not LP* = {instance.optimum}: {told}")
    settled = trace.increments[1:]
    require((settled[2:] == settled[:-2]).all(), f"the increments have another period: {told}")
    require((settled[1:] != settled[:-1]).any(axis=1), f"the increments do not alternate: {told}")
    one, other = ([int(x) for x in increment] for increment in settled[:2])
    return f"{told}: increments {one} and {other} in turn"
