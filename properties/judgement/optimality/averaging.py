"""The drift of the pair ("k+1", "q"): what bounds it, what it proves, and its averaged rounds.

All scores are integers and all rounds exact. The drift constant of a problem with an integer load
is the price of its cheapest exchange: an optimal assignment x gives r of its edges, takes r others
along an alternating cycle, and loses something per edge; the least such loss per edge is c.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import lp_oracle
from properties.checks import require
from properties.errors import UnknownError
from properties.judgement.optimality.certificate import exact_routing
from properties.judgement.optimality.descent import load_of
from properties.judgement.optimality.optimum import (
    Optimum,
    bracket,
    exact_dual,
    value_of,
    written,
)
from properties.protocol import Array

__all__ = [
    "Increment",
    "cheapest_exchange",
    "exact_optimum",
    "most_rounds",
    "require_certified",
    "require_exact_optimum",
    "round_of",
    "row_spread",
]


class Increment(NamedTuple):
    """What a round adds to beta: (N,), and its extremes."""

    added: Array
    least: int
    most: int


def round_of(scores_MN: Array, beta_N: Array, top_k: int) -> Increment:
    """One round of ("k+1", "q") from integers."""
    alpha_M = lp_oracle.token_step(scores_MN, beta_N, top_k, rule="k+1")
    added = lp_oracle.expert_step(scores_MN, alpha_M, top_k, rule="q") - beta_N
    return Increment(added, int(added.min()), int(added.max()))


def exact_optimum(scores_MN: Array, top_k: int) -> Optimum:
    """``bracket`` for integers, where the bounds must meet; UnknownError if they do not."""
    optimum = bracket(scores_MN, top_k)
    if not optimum.is_exact:
        raise UnknownError("linprog's multipliers, rounded, do not prove its assignment optimal")
    return optimum


def cheapest_exchange(scores_MN: Array, assignment_MN: Array) -> Fraction:
    """The least mean loss per edge over all alternating cycles of a 0/1 assignment with k < N.

    A step of a cycle gives an edge (i, j) with x = 1 and takes (i, l) with x = 0, at the best token
    for that. Over walks of a given number of steps that end at an expert the losses follow by
    dynamic programming, and Karp's formula turns them into the least mean of a cycle.
    """
    experts = range(scores_MN.shape[1])
    last_walk = len(experts)
    steps = [[_step_loss(scores_MN, assignment_MN, j, to) for to in experts] for j in experts]
    walks: list[list[float]] = [[0] * last_walk]
    for _ in experts:
        losses = walks[-1]
        walks.append([min(losses[j] + steps[j][to] for j in experts) for to in experts])
    return min(
        max(
            Fraction(int(walks[last_walk][to] - walks[taken][to]), last_walk - taken)
            for taken in range(last_walk)
            if walks[taken][to] < math.inf
        )
        for to in experts
        if walks[last_walk][to] < math.inf
    )


def _step_loss(scores_MN: Array, assignment_MN: Array, give: int, take: int) -> float:
    able = (assignment_MN[:, give] == 1) & (assignment_MN[:, take] == 0)
    losses = (scores_MN[:, give] - scores_MN[:, take])[able]
    return int(losses.min()) if losses.size else math.inf


def require_certified(optimum: Optimum, beta_N: Array, least: int, unit: int = 1) -> None:
    """Require the routing at beta / unit to be the optimum, with margins of ``least`` / unit."""
    scores_MN, top_k = optimum.scores, optimum.top_k
    told = f"beta = {beta_N.tolist()} / {unit}, {written(scores_MN, top_k)}"
    scaled_MN = lp_oracle.exact(scores_MN) * unit
    verdict = lp_oracle.certify_routing(scaled_MN, -beta_N, top_k)
    truth = exact_routing(scaled_MN, -beta_N, top_k)
    require(
        truth.is_certified(), f"every expert rose by {least} or more, but not certified: {told}"
    )
    require(verdict.optimal, f"the oracle refuses a certificate ({verdict.reason}): {told}")
    require(
        verdict.margin >= least,
        f"every expert rose by {least} or more, but the margin is {verdict.margin}: {told}",
    )
    optimum.require_attained_by(verdict.assignment)


def row_spread(scores_MN: Array) -> int:
    """R: the largest difference between two scores of one token."""
    return int((scores_MN.max(axis=1) - scores_MN.min(axis=1)).max())


def most_rounds(scores_MN: Array, price: Fraction) -> int:
    """The number of averaged rounds from beta = 0 after which every expert must rise.

    Baillon and Bruck: after t averaged rounds the spread of an increment is at most
    4 R / sqrt(pi t), and below the price c every increment is positive.
    """
    return math.floor(16 * (Fraction(row_spread(scores_MN)) / price) ** 2 / Fraction(math.pi)) + 1


def require_exact_optimum(found: lp_oracle.PerturbedDescent, optimum: Optimum) -> None:
    """Require a certified result to be feasible, without a gap, and linprog's optimum."""
    scores_MN, top_k = optimum.scores, optimum.top_k
    told = written(scores_MN, top_k)
    load = load_of(scores_MN, top_k)
    x_MN = found.assignment
    if x_MN is None:
        raise UnknownError(f"unfinished after {found.rounds} rounds")
    feasible = (
        (x_MN.sum(axis=1) == top_k).all()
        and (x_MN.sum(axis=0) == load).all()
        and ((x_MN >= 0) & (x_MN <= 1)).all()
    )
    require(feasible, f"certified, but {x_MN.tolist()} is not feasible: {told}")
    value = value_of(scores_MN, x_MN)
    multipliers = found.token_multipliers, found.expert_multipliers
    dual = exact_dual(scores_MN, *multipliers, top_k)
    require(value == dual, f"certified with a gap of {float(dual - value)!r}: {told}")
    require(
        optimum.lower <= value <= optimum.upper,
        f"worth {float(value)!r}, but LP* lies between {float(optimum.lower)!r} and "
        f"{float(optimum.upper)!r}: {told}",
    )
    certified = found.certificate is not None and found.certificate.certified
    require(certified, f"its own certificate fails:\n{found.certificate}\n{told}")
