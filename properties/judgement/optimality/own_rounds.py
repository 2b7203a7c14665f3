"""An implementation's own ``quantile_update``, iterated on one batch, and what it did to the dual.

The batch is fixed, so the rounds descend the dual of one assignment problem, with s the float64
scores of the logits and beta = -b. Only differences of a centred bias are known: the constant that
a round adds stays hidden.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

import lp_oracle
import reference_numpy as reference
from properties.checks import note_ratio, require
from properties.errors import UnknownError, ViolationError
from properties.judgement.optimality.fixed_points import Tightness, inside_share, tightness
from properties.judgement.optimality.optimum import Optimum, bracket, written
from properties.protocol import Array
from properties.rounding import Ball
from properties.subject import Subject
from reference_numpy.balancing import Statistic

STATISTICS: tuple[Statistic, ...] = ("q", "q+1", "midpoint", "linear")

__all__ = ["STATISTICS", "Batch", "Rounds", "iterate"]


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of logits as the subject sees it, and the optimum for its scores."""

    subject: Subject
    logits: Array
    top_k: int
    scores: Any
    optimum: Optimum

    @classmethod
    def of(cls, subject: Subject, logits_MN: Array, top_k: int) -> Batch:
        """Raises UnknownError where the optimum is not known."""
        scores: Any = Ball.exact(logits_MN, subject.routing_arithmetic())
        if subject.conventions.score_domain == "sigmoid":
            scores = reference.scores(scores)
        return cls(subject, logits_MN, top_k, scores, bracket(scores.value, top_k))

    @property
    def name(self) -> str:
        """The problem as text."""
        return written(self.scores.value, self.top_k)

    def token_multipliers(self, bias_N: Array) -> Array:
        """alpha (M,): the (k+1)-th largest of s + b."""
        return reference.cutoff(self.scores.value + bias_N, self.top_k)

    def dual(self, bias_N: Array) -> tuple[float, float]:
        """D at this bias, and how far float64 may be from it."""
        point = self.scores.value, self.token_multipliers(bias_N), -bias_N, self.top_k
        return float(lp_oracle.dual_objective(*point)), lp_oracle.dual_radius(*point)

    def verdict(self, bias_N: Array) -> lp_oracle.RoutingVerdict:
        """Whether top-k of s + b is certified for all scores that the subject may have computed."""
        radius = float((self.scores + bias_N).radius.max())
        return lp_oracle.certify_routing(self.scores.value, bias_N, self.top_k, radius=radius)

    def require_own_choice(self, bias_N: Array, assignment_MN: Array) -> None:
        """Require ``route``, where offered, to choose a routing certified beyond rounding."""
        if "route" not in self.subject.offered:
            return
        ids = self.subject.route(self.logits, bias_N, top_k=self.top_k).expert_ids
        in_range = (ids >= 0) & (ids < bias_N.shape[0])
        require(in_range, f"route chooses {ids.tolist()} of {bias_N.shape[0]} experts")
        chosen_MN = np.zeros(self.logits.shape, dtype=np.int64)
        np.put_along_axis(chosen_MN, ids, 1, axis=1)
        require(
            np.array_equal(chosen_MN, assignment_MN),
            f"route chooses {ids.tolist()}, not the optimum, at b = {bias_N.tolist()}: {self.name}",
        )

    def update_error(self, bias_N: Array, after_N: Array) -> Array:
        """How far rounding may put each b_j of an exact update from an interval of minimisers.

        Up to the constant that centring subtracts from all of them. Order statistics enlarge no
        error: the cutoff errs by at most the largest error of its row, b̂_j by the largest of its
        column. Interpolating rounds a difference, its product with the share, and a sum: 2 + 2 + 1
        roundings of the column's largest number; centring rounds once. Second-order terms are less
        than what 6 and 2 leave over.
        """
        formats = self.subject.routing_arithmetic()
        biased: Any = self.scores + bias_N
        cutoff: Any = Ball(self.token_multipliers(bias_N), biased.radius.max(axis=1), formats)
        required: Any = reference.required_bias(self.scores, cutoff)
        rule = formats.rules["add"]
        sizes_N = 6.0 * np.abs(required.value).max(axis=0) + 2.0 * np.abs(after_N)
        error: Array = required.radius.max(axis=0) + rule.share * sizes_N + 4.0 * rule.underflow
        return error


@dataclass(eq=False)
class Rounds:
    """What happened so far: the present bias, its dual value, the drift of the last round.

    ``error`` bounds the rounding in each b_j of the last round.
    """

    batch: Batch
    bias: Array
    value: float
    radius: float
    taken: int = 0
    drift: float = np.inf
    error: float = 0.0
    agreeing: dict[str, bool] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """D - LP*, relative to the size of the optimum."""
        return self.batch.optimum.gap_of(self.value)

    @property
    def reached_dual(self) -> bool:
        """Whether D has reached LP*, up to the rounding of one round."""
        optimum = self.batch.optimum
        return self.value <= float(optimum.upper) + self.radius + self._rise(self.error)

    @property
    def at_rest(self) -> bool:
        """Whether the last round added one constant to every expert, up to rounding."""
        return self.drift <= 4.0 * self.error

    def advance(self) -> None:
        """One update. Raises ViolationError if the bias is not finite or the dual grew.

        An exact update lands in the interval of minimisers up to ``error`` per expert, and D has
        slopes between q - m and q in each beta_j.
        """
        batch = self.batch
        after = batch.subject.quantile_update(batch.logits, self.bias, top_k=batch.top_k)
        require(np.isfinite(after), f"round {self.taken + 1}: the bias is {after.tolist()}")
        if not self.agreeing:
            self.agreeing = _agreement(batch, self.bias, after)
        error_N = batch.update_error(self.bias, after)
        value, radius = batch.dual(after)
        allowance = self._rise(error_N) + radius + self.radius
        rise = value - self.value
        note_ratio(batch.subject, max(rise, 0.0) / allowance, "rise of the dual")
        require(
            rise <= allowance,
            f"round {self.taken + 1} raised the dual from {self.value!r} to {value!r}, by more "
            f"than its rounding {allowance:.3g}; linprog: {batch.optimum.solution.objective!r}; "
            f"{batch.name}",
        )
        increment = after - self.bias
        self.drift = float(increment.max() - increment.min())
        self.error = float(error_N.max())
        self.bias, self.value, self.radius = after, value, radius
        self.taken += 1

    def require_to_stay(self) -> None:
        """At the optimum: require the certified routing to be ``linprog``'s and ``route``'s own.

        One more update must leave D where it is. Raises ViolationError.
        """
        batch = self.batch
        verdict = batch.verdict(self.bias)
        if verdict.optimal:
            batch.optimum.require_attained_by(verdict.assignment)
            batch.require_own_choice(self.bias, verdict.assignment)
        self.advance()
        require(
            self.reached_dual,
            f"one more update at the optimum moves D to {self.value!r}, away from LP* = "
            f"{float(batch.optimum.upper)!r}: {batch.name}",
        )

    def explain_rest(self, rounds: int) -> NoReturn:
        """Not at the optimum: against the theorem, not generic enough to tell, or not at rest."""
        if not self.at_rest:
            raise UnknownError(f"not reached in {rounds} rounds")
        if self.tightness() == "forest":
            raise ViolationError(
                f"at rest after {self.taken} rounds at b = {self.bias.tolist()}, D = "
                f"{self.value!r}, LP* = {float(self.batch.optimum.upper)!r}, where no rule can "
                f"rest that is declared {self.batch.subject.conventions.expert_rank!r}: tight "
                f"edges form a forest, and {self.batch.verdict(self.bias).reason}; "
                f"{self.batch.name}"
            )
        raise UnknownError("not generic at this precision: the tight edges contain a cycle")

    def _rise(self, error_N: Array | float) -> float:
        m, n = self.batch.logits.shape
        load = m * self.batch.top_k / n
        return float(max(load, m - load) * np.sum(np.broadcast_to(error_N, n)))

    def tightness(self) -> Tightness:
        """The tight edges at rest, for a routing that is not certified.

        A round that adds a constant c certifies the routing once c exceeds the drift, four errors
        and two score radii; so here c is smaller, and experts see margins at most this ``slack``
        away from those that tokens see.
        """
        batch = self.batch
        margins = batch.scores.value - batch.token_multipliers(self.bias)[:, None] + self.bias
        slack = 2.0 * (self.drift + 4.0 * self.error + 2.0 * float(batch.scores.radius.max()))
        return tightness(margins, slack, inside_share(batch.top_k, margins.shape[1]) / 2.0)


def iterate(batch: Batch, rounds: int, *, until_certified: bool) -> tuple[Rounds, bool]:
    """Iterate from b = 0 until certified (or the dual is at LP*), at rest, or out of rounds.

    Also whether it got there. Weak duality is checked on the way.
    """
    bias = np.zeros(batch.logits.shape[1])
    state = Rounds(batch, bias, *batch.dual(bias))
    while True:
        least = float(batch.optimum.lower)
        require(
            state.value >= least - state.radius - abs(least) * 2.0**-52,
            f"D = {state.value!r} lies below LP* = {least!r}: {batch.name}",
        )
        there = batch.verdict(state.bias).optimal if until_certified else state.reached_dual
        if there or state.taken == rounds or (state.at_rest and state.taken > 1):
            return state, there
        state.advance()


def _agreement(batch: Batch, bias_N: Array, after_N: Array) -> dict[str, bool]:
    """Which of the four statistics the update equals up to rounding."""
    error = batch.update_error(bias_N, after_N)
    required = reference.required_bias(batch.scores.value, batch.token_multipliers(bias_N))
    agreement: dict[str, bool] = {}
    for statistic in STATISTICS:
        difference = after_N - reference.expert_statistic(required, batch.top_k, statistic)
        agreement[statistic] = bool((difference - error).max() <= (difference + error).min())
    return agreement
