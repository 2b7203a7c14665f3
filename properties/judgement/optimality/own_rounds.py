"""An implementation's own ``quantile_update``, iterated on one batch, and what it did to the dual.

The batch is fixed, so the rounds descend the dual of one assignment problem, with s the float64
scores of the logits and beta = -b. Only differences of a centred bias are known: the constant that
a round adds stays hidden.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from properties.checks import note_figure, note_ratio, require
from properties.errors import UnknownError, ViolationError
from properties.figures import Spread
from properties.judgement.optimality.behaviour import Behaviour, Evidence, Stopped, evidence_of
from properties.judgement.optimality.fixed_points import Tightness, inside_share, tightness
from properties.judgement.optimality.own_batch import Batch
from properties.protocol import Array

# Updates of each batch whose rule is looked for; later ones hardly differ.
IDENTIFIED = 4

# Roundoff up to which the drawn batches are generic: that of float32 and finer.
FINE = 2.0**-20

__all__ = ["Rounds", "iterate"]


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
    evidence: Evidence | None = None

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
        if self.taken < IDENTIFIED:
            self.evidence = evidence_of(batch, self.bias, after).joined(self.evidence)
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

    def report(self, rounds: int) -> None:
        """Note what the batch came to, in so many rounds: the rule, the gap, the loads."""
        batch, reached = self.batch, self.reached_dual
        subject, load = batch.subject, batch.logits.shape[0] * batch.top_k / self.bias.shape[0]
        loads = batch.loads(self.bias)
        if self.evidence is not None:
            declared = subject.conventions.expert_rank
            note_figure(subject, "rule", Behaviour.of(self.evidence, self._stopped, declared))
        note_figure(subject, "dual reaches LP*", reached)
        note_figure(subject, "routing certified optimal", batch.verdict(self.bias).optimal)
        note_figure(subject, "relative gap to LP*", Spread((0.0 if reached else self.gap,)))
        note_figure(subject, "largest load / q", Spread((float(loads.max()) / load,), 1.0))
        note_figure(subject, "largest |load - q|", Spread((float(np.abs(loads - load).max()),)))
        note_figure(subject, "rounds", rounds)

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

    def settle(self, rounds: int) -> None:
        """Up to so many more updates, until the routing is certified.

        Where D is at LP* and scores still tie at some cutoff, the next updates may part them.
        """
        for _ in range(rounds):
            if self.batch.verdict(self.bias).optimal:
                return
            self.advance()

    def explain_rest(self, rounds: int) -> None:
        """Not at the optimum: against the theorem, not generic enough to tell, or not at rest.

        Scores of 16 bits cancel along cycles on most batches, which are then outside the
        hypotheses: counted, and neither passed nor unknown.
        """
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
        if self.batch.subject.routing_arithmetic().rules["add"].share <= FINE:
            raise UnknownError("not generic at this precision: the tight edges contain a cycle")
        note_figure(self.batch.subject, "outside the hypotheses, scores cancel in 16 bits", True)

    @property
    def _stopped(self) -> Stopped:
        if self.reached_dual:
            return "at LP*"
        return "at rest above" if self.at_rest else "moving above"

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
