"""Coordinate descent that reaches the optimum of every input: any load, any ties.

Midpoint descent finds the optimum of generic scores with an integer load in finitely many rounds
(docs/optimality.md has the proofs); ties and fractional loads stop it, near-ties slow it down. Four
steps remove both.

1. *Copies.* With g = n / gcd(m k, n) every token is replaced by g copies, so that the load is the
   integer g q. Averaging the copies of an assignment gives one of the original with 1/g of its
   value, copying the rows leads back: the optimum is g times the original one.
2. *Grid.* All scores are rationals, floats too; shifted and scaled they are integers L, exactly.
3. *Perturbations that halve.* Midpoint descent runs on L Q + w 2^j, Q = 2^(B + bits of n), w drawn
   from 0 … 2^B - 1 for every edge, j going down to 0, each phase from where the last one ended. One
   small perturbation alone would do, but near a jam of L beta moves by its size in a round, and
   would take 1 / size rounds; halving it keeps speed and distance in proportion. Should the last
   phase come to nothing, w Q' + 2^e with different e for all edges is certainly generic.
4. *Back to the scores.* An alternating cycle takes and gives r <= n edges. If x is optimal for
   L Q + w, its loss on a cycle in L is an integer times Q, above -r 2^B > -Q: so it is at least 0,
   and x is optimal for L. Multipliers of L are then shortest paths: starting near beta / Q, beta_j
   is lowered to the least L_ij - alpha_i over x_ij > 0, alpha_i being the largest L_ij - beta_j
   over x_ij < 1, until nothing changes. Without a losing cycle that takes at most n sweeps.

Every phase tries step 4, for larger perturbations, too, leave an optimum of L alone if it is clear.
Only complementary slackness in exact arithmetic counts.

Legend of shapes: M tokens, N routed experts, C = g M copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lp_oracle.certificate import Certificate, certify
from lp_oracle.dual import dual_value, order_statistic
from lp_oracle.problem import Array, AssignmentProblem, exact

# With weights of so many bits more than there are edges, a second assignment is as good as the best
# with a probability below 2^-SPARE_BITS (isolation lemma); the next phase draws other weights.
SPARE_BITS = 10
# Hundreds of rounds are rare; whoever needs more is served better by the next phase's weights.
PATIENCE = 500


@dataclass(frozen=True, eq=False)
class PerturbedDescent:
    """What ``perturbed_descent`` found, all of it rational numbers for the scores as given.

    ``outcome``: "certified" means that ``assignment`` x (M, N) is optimal, with entries that are
    multiples of 1 / ``copies``, and that the multipliers alpha (M,) and beta (N,) have the same
    value: ``certificate.gap.value`` is 0. "unfinished" means that the rounds did not suffice; then
    ``assignment`` and ``certificate`` are None, and the multipliers only bound the optimum by
    ``dual_value``. ``rounds_per_phase`` starts with the largest perturbation.
    """

    problem: AssignmentProblem
    outcome: Literal["certified", "unfinished"]
    assignment: Array | None
    token_multipliers: Array
    expert_multipliers: Array
    certificate: Certificate | None
    copies: int
    rounds_per_phase: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """Rounds taken, in all phases together."""
        return sum(self.rounds_per_phase)

    @property
    def dual_value(self) -> Fraction:
        """D at the multipliers: the optimum if certified, else an upper bound of it."""
        value = dual_value(self.problem, self.token_multipliers, self.expert_multipliers)
        return Fraction(value)


def perturbed_descent(
    scores: ArrayLike, top_k: int, *, rounds: int = 20_000, seed: int = 0
) -> PerturbedDescent:
    """Find and certify an optimum by coordinate descent, whatever the load and the ties.

    ``scores`` (M, N) of any real dtype, taken for the rationals they are; ``rounds`` bounds the
    rounds of all phases together, ``seed`` draws the perturbations. Exact arithmetic on Python
    integers: meant for up to some 10^4 edges, copies counted. Raises what ``AssignmentProblem``
    raises, and ValueError for ``rounds`` below 0.
    """
    if rounds < 0:
        raise ValueError(f"rounds = {rounds} must not be negative")
    problem = AssignmentProblem(exact(scores), top_k)
    if problem.top_k == problem.n:
        return _everything(problem)
    copied = _Copied.of(problem)
    beta_N = exact(np.zeros(problem.n, dtype=np.int64))
    taken: list[int] = []
    for phase in copied.phases(np.random.default_rng(seed)):
        left = rounds - sum(taken)
        limit = left if phase.is_last else min(PATIENCE, left)
        found = _descend(phase.scores, beta_N * phase.finer, copied.top_k, copied.load, limit)
        taken.append(found.rounds)
        beta_N = found.beta >> found.shift
        if found.chosen is not None:
            counts_MN = copied.counts(found.chosen)
            multipliers_N = copied.multipliers(counts_MN, beta_N // phase.unit)
            if multipliers_N is not None:
                return copied.result(multipliers_N, tuple(taken), counts_MN)
        if found.rounds == left:
            break
    return copied.result(beta_N // phase.unit, tuple(taken))


def _everything(problem: AssignmentProblem) -> PerturbedDescent:
    """k = N leaves no choice; beta = 0 with alpha the least score of a row leaves no edge below."""
    assignment_MN = exact(np.ones((problem.m, problem.n), dtype=np.int64))
    alpha_M = problem.scores.min(axis=1)
    beta_N = exact(np.zeros(problem.n, dtype=np.int64))
    certificate = certify(problem.scores, problem.top_k, assignment_MN, alpha_M, beta_N)
    return PerturbedDescent(
        problem, "certified", assignment_MN, alpha_M, beta_N, certificate, 1, ()
    )


class _Phase(NamedTuple):
    """Perturbed scores S (C, N): L times ``unit``, plus weights; all integers.

    ``finer`` is how many units of S make one of the phase before.
    """

    scores: Array
    unit: int
    finer: int
    is_last: bool


@dataclass(frozen=True, eq=False)
class _Copied:
    """The problem on integers: scores are a constant plus ``step`` L, tokens ``copies`` times."""

    problem: AssignmentProblem
    levels: Array
    step: Fraction
    copies: int

    @classmethod
    def of(cls, problem: AssignmentProblem) -> _Copied:
        differences_MN = problem.scores - problem.scores.min()
        common = math.lcm(*(Fraction(value).denominator for value in differences_MN.flat))
        numerators_MN = exact(differences_MN * common)
        divisor = math.gcd(*numerators_MN.flat) or 1
        step = Fraction(divisor, common)
        return cls(problem, numerators_MN // divisor, step, problem.load.denominator)

    @property
    def top_k(self) -> int:
        return self.problem.top_k

    @property
    def load(self) -> int:
        """Tokens per expert, copies counted."""
        return self.problem.load.numerator

    def phases(self, rng: np.random.Generator) -> Iterator[_Phase]:
        """Perturbations from the size of a row's spread down to where no optimum can change.

        The last phase adds different powers of two below all others: on no alternating cycle can
        these cancel, for the least of them properly divides the rest.
        """
        levels_CN = np.repeat(self.levels, self.copies, axis=0)
        edges = levels_CN.size
        bits, room = edges.bit_length() + SPARE_BITS, self.problem.n.bit_length()
        spread = int((self.levels.max(axis=1) - self.levels.min(axis=1)).max())
        unit = 1 << (bits + room)

        def weights_CN() -> Array:
            return exact(rng.integers(0, 1 << bits, levels_CN.shape))

        for j in range(spread.bit_length() + room, -1, -1):
            yield _Phase(levels_CN * unit + (weights_CN() << j), unit, 1, False)
        exponents_CN = exact(rng.permutation(edges).reshape(levels_CN.shape))
        generic_CN = (weights_CN() << edges) + (1 << exponents_CN)
        unit <<= edges
        yield _Phase(levels_CN * unit + generic_CN, unit, 1 << edges, True)

    def counts(self, chosen_CN: Array) -> Array:
        """How many copies of each token choose each expert, (M, N)."""
        shape = (self.problem.m, self.copies, self.problem.n)
        counts_MN: Array = chosen_CN.reshape(shape).sum(axis=1)
        return counts_MN

    def multipliers(self, counts_MN: Array, start_N: Array) -> Array | None:
        """beta (N,) at most ``start_N`` that proves this assignment optimal for L, if any does.

        Shortest paths by sweeps (Bellman and Ford): what is not settled after N of them never is.
        """
        beta_N = start_N
        may_rise_MN, may_fall_MN = counts_MN < self.copies, counts_MN > 0
        for _ in range(self.problem.n):
            reduced_MN = self.levels - beta_N
            alpha_M = np.where(may_rise_MN, reduced_MN, reduced_MN.min()).max(axis=1)
            reduced_MN = self.levels - alpha_M[:, None]
            room_N = np.where(may_fall_MN, reduced_MN, reduced_MN.max()).min(axis=0)
            if (room_N >= beta_N).all():
                return beta_N
            beta_N = np.minimum(beta_N, room_N)
        return None

    def result(
        self, beta_N: Array, rounds_per_phase: tuple[int, ...], counts_MN: Array | None = None
    ) -> PerturbedDescent:
        """In the original scores; for tokens any alpha from the (k+1)-th to the k-th is best."""
        scores_MN, top_k = self.problem.scores, self.top_k
        expert_N = exact(beta_N * self.step)
        alpha_M = order_statistic(scores_MN - expert_N, Fraction(top_k + 1), 1)
        assignment_MN = certificate = None
        if counts_MN is not None:
            assignment_MN = exact(counts_MN * Fraction(1, self.copies))
            certificate = certify(scores_MN, top_k, assignment_MN, alpha_M, expert_N)
        return PerturbedDescent(
            problem=self.problem,
            outcome="unfinished" if counts_MN is None else "certified",
            assignment=assignment_MN,
            token_multipliers=alpha_M,
            expert_multipliers=expert_N,
            certificate=certificate,
            copies=self.copies,
            rounds_per_phase=rounds_per_phase,
        )


class _Found(NamedTuple):
    """beta (N,) in units of 2^-``shift``, and the assignment (C, N) that it certifies, if any."""

    beta: Array
    shift: int
    chosen: Array | None
    rounds: int


def _descend(scores_CN: Array, beta_N: Array, top_k: int, load: int, limit: int) -> _Found:
    """Midpoint rounds on integers until a routing is certified, at most ``limit`` of them.

    A midpoint needs half a unit more, so every half step halves the unit of all numbers.
    """
    for taken in range(limit + 1):
        reduced_CN = scores_CN - beta_N
        last_in_C, first_out_C = _ranks(reduced_CN, top_k, axis=1)
        chosen_CN = np.asarray(reduced_CN >= last_in_C[:, None], dtype=bool)
        if (first_out_C < last_in_C).all() and (chosen_CN.sum(axis=0) == load).all():
            return _Found(beta_N, 2 * taken, chosen_CN, taken)
        if taken == limit:
            break
        alpha_C = last_in_C + first_out_C
        upper_N, lower_N = _ranks(2 * scores_CN - alpha_C[:, None], load, axis=0)
        beta_N = upper_N + lower_N
        beta_N = beta_N - beta_N.min()
        scores_CN = 4 * scores_CN
    return _Found(beta_N, 2 * limit, None, limit)


def _ranks(values: Array, rank: int, axis: int) -> tuple[Array, Array]:
    """The ``rank``-th and the next largest along ``axis``."""
    place = values.shape[axis] - rank
    ascending = np.partition(values, (place - 1, place), axis=axis)
    return ascending.take(place, axis=axis), ascending.take(place - 1, axis=axis)
