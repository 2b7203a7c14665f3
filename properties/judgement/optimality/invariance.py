"""What must not change when offsets are added to scores, or tokens and experts trade places.

Legend: M tokens, N routed experts; q = M top_k / N = a/g in lowest terms is the target load.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import lp_oracle
from properties.checks import require
from properties.judgement.optimality.certificate import exchanges
from properties.judgement.optimality.descent import load_of
from properties.judgement.optimality.exchange import ExactOptimum, is_optimal, optimum_by_exchange
from properties.judgement.optimality.fixed_points import Pair
from properties.judgement.optimality.optimum import value_of, written
from properties.judgement.optimality.program import require_value, solved
from properties.strategies.optimality import ShiftInputs

ROUNDS = 6
NEIGHBOURS = 12

__all__ = ["require_complement", "require_same_descent", "require_same_optima", "require_transpose"]


def _movement(inputs: ShiftInputs) -> Fraction:
    """k sum u + q sum v."""
    top_k = inputs.problem.top_k
    load = load_of(inputs.problem.scores, top_k)
    return top_k * int(inputs.token_shift.sum()) + load * int(inputs.expert_shift.sum())


def require_same_optima(inputs: ShiftInputs, best: ExactOptimum) -> bool:
    """Require optima of s and of s + u + v to be each other's; whether there are several.

    ``best`` is the optimum of s by exchange.
    """
    s_MN, moved_MN, top_k = inputs.problem.scores, inputs.shifted, inputs.problem.top_k
    told = _told(inputs)
    shifted = optimum_by_exchange(moved_MN, top_k)
    require(
        shifted.value == best.value + _movement(inputs),
        f"LP* goes from {best.value} to {shifted.value}, not by {_movement(inputs)}: {told}",
    )
    require(is_optimal(moved_MN, best.assignment, top_k), f"an optimum of s only: {told}")
    require(is_optimal(s_MN, shifted.assignment, top_k), f"an optimum of s + u + v only: {told}")
    several = False
    share = Fraction(1, load_of(s_MN, top_k).denominator)
    for other in exchanges(best.assignment, share, NEIGHBOURS):
        loss = best.value - value_of(s_MN, other)
        moved_loss = shifted.value - value_of(moved_MN, other)
        require(loss == moved_loss, f"an exchange costs {loss}, then {moved_loss}: {told}")
        require(
            is_optimal(moved_MN, other, top_k) == (loss == 0),
            f"an exchange that costs {loss} is judged otherwise after the shift: {told}",
        )
        several = several or loss == 0
    require_value(shifted, solved(moved_MN, top_k), "linprog, shifted")
    require_value(best, solved(s_MN, top_k), "linprog")
    return several


def require_same_descent(inputs: ShiftInputs, pair: Pair) -> None:
    """Require the oracle's descent from v on s + u + v to be that from 0 on s, moved by u and v."""
    top_k = inputs.problem.top_k
    plain, moved = (
        lp_oracle.coordinate_descent(
            lp_oracle.exact(scores_MN),
            top_k,
            token_rule=pair[0],
            expert_rule=pair[1],
            rounds=ROUNDS,
            start=start,
        )
        for scores_MN, start in (
            (inputs.problem.scores, None),
            (inputs.shifted, inputs.expert_shift),
        )
    )
    told = f"{pair[0]}/{pair[1]}, {_told(inputs)}"
    same_rounds = plain.rounds == moved.rounds and (plain.increments == moved.increments).all()
    require(same_rounds, f"other increments after the shift: {told}")
    for name, before, after, shift in (
        ("alpha", plain.token_multipliers, moved.token_multipliers, inputs.token_shift),
        ("beta", plain.expert_multipliers, moved.expert_multipliers, inputs.expert_shift),
    ):
        require((after - before == shift).all(), f"{name} does not move by the shift: {told}")
    for value, moved_value in zip(plain.dual_values, moved.dual_values, strict=True):
        require(
            Fraction(moved_value) - Fraction(value) == _movement(inputs),
            f"D goes from {value} to {moved_value}, not by {_movement(inputs)}: {told}",
        )
    require(plain.outcome == moved.outcome, f"{plain.outcome}, then {moved.outcome}: {told}")
    same_routing = np.array_equal(plain.verdict.assignment, moved.verdict.assignment)
    require(same_routing, f"another routing after the shift: {told}")
    require(plain.verdict.margin == moved.verdict.margin, f"another margin: {told}")


def require_complement(best: ExactOptimum) -> None:
    """Require 1 - x to be optimal for -s and n - k experts per token, with LP* - sum s."""
    s_MN, top_k = best.scores, best.top_k
    rest = s_MN.shape[1] - top_k
    told = written(s_MN, top_k)
    require(is_optimal(-s_MN, 1 - best.assignment, rest), f"1 - x is not optimal for -s: {told}")
    other = optimum_by_exchange(-s_MN, rest)
    everything = value_of(s_MN, np.ones(s_MN.shape, dtype=np.int64))
    require(other.value == best.value - everything, f"-s has the optimum {other.value}: {told}")
    require_value(other, solved(-s_MN, rest), "linprog, complement")


def require_transpose(best: ExactOptimum) -> None:
    """Require the transpose, with q for k, to have the same optimum. q must be an integer."""
    s_NM, load = best.scores.T, int(load_of(best.scores, best.top_k))
    told = written(best.scores, best.top_k)
    require(is_optimal(s_NM, best.assignment.T, load), f"x^T is not optimal for s^T: {told}")
    other = optimum_by_exchange(s_NM, load)
    require(other.value == best.value, f"LP* is {best.value}, transposed {other.value}: {told}")
    require_value(other, solved(s_NM, load), "linprog, transposed")


def _told(inputs: ShiftInputs) -> str:
    u, v = inputs.token_shift.tolist(), inputs.expert_shift.tolist()
    return f"u = {u}, v = {v}, {written(inputs.problem.scores, inputs.problem.top_k)}"
