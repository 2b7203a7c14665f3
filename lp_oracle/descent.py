"""Alternating minimisation of the dual, with the point of each interval of minimisers named.

One round is a token step, alpha from beta, then an expert step, beta from alpha. Both take an order
statistic, so a round is monotone and commutes with adding a constant to beta: it is non-expansive,
and the *drift* (max - min of the increment of beta) never grows. Drift zero repeats for ever. The
rules differ only in the (fractional) rank they read, counted from the largest:

    token rule     "k+1": k + 1    "k": k    "midpoint": k + 1/2    "linear": k + 1 - k/n
    expert rule    "q+1": c + 1    "q": c    "midpoint": c + 1/2    "linear": q + 1 - k/n

with c = ceil(q).

("k+1", "q+1") is Eq. 14 and Algorithm 1 of arXiv 2607.24653 as written, ("k+1", "q") the rank that
its Appendix D reads, "linear" the quantile that NumPy and torch interpolate. For an integer q all
of them minimise. For a fractional q only rank c does: every other expert rule leaves the minimiser,
D may grow, and ``DescentTrace.minimises`` says so.

Legend of shapes: M tokens, N routed experts, R rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from lp_oracle.certificate import RoutingVerdict, routing_verdict
from lp_oracle.dual import dual_value, order_statistic
from lp_oracle.problem import Array, AssignmentProblem, Number

TokenRule: TypeAlias = Literal["k+1", "k", "midpoint", "linear"]
ExpertRule: TypeAlias = Literal["q+1", "q", "midpoint", "linear"]
Outcome: TypeAlias = Literal["certified", "jammed", "unfinished"]
Rank: TypeAlias = Callable[[AssignmentProblem], Fraction]

_HALF = Fraction(1, 2)

TOKEN_RULES: Mapping[TokenRule, Rank] = MappingProxyType(
    {
        "k+1": lambda problem: Fraction(problem.top_k + 1),
        "k": lambda problem: Fraction(problem.top_k),
        "midpoint": lambda problem: problem.top_k + _HALF,
        "linear": lambda problem: problem.top_k + 1 - Fraction(problem.top_k, problem.n),
    }
)

EXPERT_RULES: Mapping[ExpertRule, Rank] = MappingProxyType(
    {
        "q+1": lambda problem: Fraction(math.ceil(problem.load) + 1),
        "q": lambda problem: Fraction(math.ceil(problem.load)),
        "midpoint": lambda problem: math.ceil(problem.load) + _HALF,
        "linear": lambda problem: problem.load + 1 - Fraction(problem.top_k, problem.n),
    }
)


@dataclass(frozen=True, eq=False)
class DescentTrace:
    """What a descent did, and why it ended.

    ``expert_multipliers`` beta (N,) after the last round and ``token_multipliers`` alpha (M,), the
    token step at that beta. ``dual_values[t]`` is D at the beta of round t (0: the start) and the
    token step there; ``increments`` (R, N) is what each round added to beta before any centring;
    ``radius`` bounds the rounding in its drifts. ``verdict`` is the certificate of the routing that
    the last beta gives.

    ``outcome``: "certified": that routing is proved to be the optimum, so the dual has reached it
    too. "jammed": a round added the same to every expert, up to ``radius``, and there is no such
    proof. In exact arithmetic the descent then repeats itself for ever; the dual may still equal
    the optimum if scores tie. "unfinished": neither within the rounds allowed (a cycle, a price
    war, or just too few rounds).
    """

    problem: AssignmentProblem
    token_rule: TokenRule
    expert_rule: ExpertRule
    token_multipliers: Array
    expert_multipliers: Array
    dual_values: tuple[Number, ...]
    increments: Array
    radius: float
    verdict: RoutingVerdict
    outcome: Outcome

    @property
    def rounds(self) -> int:
        """Rounds taken."""
        return len(self.increments)

    @property
    def drifts(self) -> tuple[Number, ...]:
        """max - min over experts of each round's increment."""
        return tuple(increment.max() - increment.min() for increment in self.increments)

    @property
    def minimises(self) -> bool:
        """Whether both rules pick exact minimisers at this shape, so that D cannot grow."""
        rank = EXPERT_RULES[self.expert_rule](self.problem)
        return self.problem.is_integral or min(rank, self.problem.m) == math.ceil(self.problem.load)


def token_step(
    scores: ArrayLike, expert_multipliers: ArrayLike, top_k: int, *, rule: TokenRule
) -> Array:
    """alpha_M by this rule from beta_N, a minimiser of D. ValueError: unknown rule, or k = N."""
    problem = AssignmentProblem(np.asarray(scores), top_k)
    problem.require_choice()
    _check_rule(rule, TOKEN_RULES, "token_rule")
    return _token_step(
        problem, problem.expert_vector(expert_multipliers, "expert_multipliers"), rule
    )


def expert_step(
    scores: ArrayLike, token_multipliers: ArrayLike, top_k: int, *, rule: ExpertRule
) -> Array:
    """beta_N by this rule from alpha_M, not centred. ValueError: unknown rule, or k = N."""
    problem = AssignmentProblem(np.asarray(scores), top_k)
    problem.require_choice()
    _check_rule(rule, EXPERT_RULES, "expert_rule")
    return _expert_step(problem, problem.token_vector(token_multipliers, "token_multipliers"), rule)


def coordinate_descent(
    scores: ArrayLike,
    top_k: int,
    *,
    token_rule: TokenRule = "k+1",
    expert_rule: ExpertRule = "q+1",
    rounds: int = 100,
    start: ArrayLike | None = None,
    centre: bool = False,
) -> DescentTrace:
    """Alternate token and expert steps until certified, jammed or out of rounds.

    It begins at beta = ``start``, by default zeros (b = 0). ``centre`` subtracts the mean of beta
    after each round, as Eq. 14 does to the bias; it moves alpha and beta by a constant and nothing
    else. Integer and ``Fraction`` scores are computed with exactly. Raises what
    ``AssignmentProblem`` raises, ValueError for top_k = N, an unknown rule or ``rounds`` below 0.
    """
    problem = AssignmentProblem(np.asarray(scores), top_k)
    problem.require_choice()
    _check_rule(token_rule, TOKEN_RULES, "token_rule")
    _check_rule(expert_rule, EXPERT_RULES, "expert_rule")
    if rounds < 0:
        raise ValueError(f"rounds = {rounds} must not be negative")
    beta_N = problem.expert_vector(
        np.zeros(problem.n, dtype=np.int64) if start is None else start, "start"
    )
    alpha_M = _token_step(problem, beta_N, token_rule)
    values = [dual_value(problem, alpha_M, beta_N)]
    increments: list[Array] = []
    radius = 0.0
    verdict = routing_verdict(problem, -beta_N)
    outcome: Outcome = "certified" if verdict.optimal else "unfinished"
    while outcome == "unfinished" and len(increments) < rounds:
        next_N = _expert_step(problem, alpha_M, expert_rule)
        radius = max(radius, _drift_radius(problem, alpha_M, beta_N, next_N))
        increments.append(next_N - beta_N)
        beta_N = _centred(problem, next_N) if centre else next_N
        alpha_M = _token_step(problem, beta_N, token_rule)
        values.append(dual_value(problem, alpha_M, beta_N))
        verdict = routing_verdict(problem, -beta_N)
        if verdict.optimal:
            outcome = "certified"
        elif increments[-1].max() - increments[-1].min() <= radius:
            outcome = "jammed"
    return DescentTrace(
        problem=problem,
        token_rule=token_rule,
        expert_rule=expert_rule,
        token_multipliers=alpha_M,
        expert_multipliers=beta_N,
        dual_values=tuple(values),
        increments=np.array(increments, dtype=problem.scores.dtype).reshape(-1, problem.n),
        radius=radius,
        verdict=verdict,
        outcome=outcome,
    )


def _token_step(problem: AssignmentProblem, beta_N: Array, rule: TokenRule) -> Array:
    return order_statistic(problem.scores - beta_N, TOKEN_RULES[rule](problem), axis=1)


def _expert_step(problem: AssignmentProblem, alpha_M: Array, rule: ExpertRule) -> Array:
    return order_statistic(problem.scores - alpha_M[:, None], EXPERT_RULES[rule](problem), axis=0)


def _centred(problem: AssignmentProblem, beta_N: Array) -> Array:
    centred: Array = beta_N - problem.number(Fraction(1, problem.n)) * beta_N.sum()
    return centred


def _drift_radius(
    problem: AssignmentProblem, alpha_M: Array, beta_N: Array, next_N: Array
) -> float:
    """Rounding error of a drift, with V = max |s| + max |alpha| + max |beta|, for both betas.

    A half step rounds a subtraction (u V) and an interpolation between values of size V: their
    difference (2 u V), the weight and the product (2 u V each) and the sum (u V). The statistic
    itself is non-expansive, so two half steps err by at most 16 u V. The increment rounds once,
    2 u V, and the drift is a difference of two.
    """
    size = sum(float(np.abs(values).max()) for values in (problem.scores, alpha_M, beta_N, next_N))
    return problem.rounding(40, size)


def _check_rule(
    rule: str, rules: Mapping[TokenRule, Rank] | Mapping[ExpertRule, Rank], name: str
) -> None:
    if rule not in rules:
        raise ValueError(f"{name} {rule!r} is unknown; use one of {', '.join(rules)}")
