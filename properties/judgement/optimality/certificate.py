"""Certificates of optimality held against rational arithmetic and against what is not optimal.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

import lp_oracle
from properties.checks import require
from properties.judgement.optimality.descent import ROUNDOFF, load_of
from properties.judgement.optimality.optimum import (
    Optimum,
    exact_dual,
    on_one_grid,
    value_of,
    written,
)
from properties.protocol import Array
from properties.strategies.near_ties import NearTie

__all__ = [
    "ExactRouting",
    "candidate_biases",
    "exact_routing",
    "exchanges",
    "require_honest_certificate",
    "require_honest_near_tie",
    "require_kkt_certificates",
]


class ExactRouting(NamedTuple):
    """Top-k of s + b without rounding: its 0/1 matrix, least margin and whether loads are q."""

    assignment: Array
    margin: Fraction | None
    balanced: bool

    def is_certified(self, allowance: float = 0.0) -> bool:
        """Loads exactly q, and every margin above ``allowance``; None stands for k = N."""
        return self.balanced and (self.margin is None or self.margin > allowance)


def exact_routing(scores_MN: Array, bias_N: Array, top_k: int) -> ExactRouting:
    """Route without rounding; ties fall to the lowest expert and have margin 0."""
    (s_MN, bias), unit = on_one_grid(scores_MN, bias_N)
    m, n = scores_MN.shape
    assignment = np.zeros((m, n), dtype=np.int64)
    margins = []
    for i, row in enumerate((s_MN + bias).tolist()):
        order = sorted(range(n), key=lambda j: -row[j])
        assignment[i, order[:top_k]] = 1
        if top_k < n:
            margins.append(row[order[top_k - 1]] - row[order[top_k]])
    balanced = bool((assignment.sum(axis=0) == load_of(scores_MN, top_k)).all())
    return ExactRouting(assignment, Fraction(min(margins), unit) if margins else None, balanced)


def exchanges(assignment_MN: Array, share: Fraction, most: int) -> Iterator[Array]:
    """Up to ``most`` feasible neighbours: ``share`` moved around a rectangle with room for it."""
    return itertools.islice(_all_exchanges(assignment_MN, share), most)


def _all_exchanges(assignment_MN: Array, share: Fraction) -> Iterator[Array]:
    for first, second in itertools.permutations(range(assignment_MN.shape[0]), 2):
        x, y = assignment_MN[first], assignment_MN[second]
        for give, take in itertools.product(
            np.flatnonzero((x > 0) & (y < 1)), np.flatnonzero((y > 0) & (x < 1))
        ):
            if give != take:
                moved = assignment_MN.astype(object)
                moved[[first, second], [give, take]] -= share
                moved[[first, second], [take, give]] += share
                yield moved


def require_kkt_certificates(optimum: Optimum) -> None:
    """Require the certificates by residuals to accept the optimum and to reject what is not.

    With optimal multipliers complementary slackness holds for every optimal x and for no other.
    """
    told = written(optimum.scores, optimum.top_k)
    solved = lp_oracle.certify_solution(optimum.scores, optimum.top_k, optimum.solution)
    require(solved.certified, f"linprog's optimum is not certified:\n{solved}\n{told}")
    if optimum.is_exact:
        accepted = _exact_certificate(optimum, optimum.assignment)
        require(accepted.certified, f"an exact optimum is not certified:\n{accepted}\n{told}")
        _require_named_faults(optimum)
    share = Fraction(1, load_of(optimum.scores, optimum.top_k).denominator)
    for other in exchanges(optimum.assignment, share, 8):
        loss = optimum.lower - value_of(optimum.scores, other)
        if optimum.is_exact:
            judged = _exact_certificate(optimum, other)
            require(
                judged.certified == (loss == 0),
                f"certified is {judged.certified}, {float(loss):.6g} below the optimum:\n"
                f"{judged}\n{told}",
            )
        tampered = replace(optimum.solution, assignment=other.astype(np.float64))
        judged = lp_oracle.certify_solution(optimum.scores, optimum.top_k, tampered)
        allowed = judged.gap.tolerance + judged.gap.radius + optimum.tolerance
        require(
            not (judged.certified and loss > allowed),
            f"certified although {float(loss):.6g} below the optimum:\n{judged}\n{told}",
        )


def _exact_certificate(
    optimum: Optimum,
    assignment_MN: Array,
    *,
    alpha_M: Array | None = None,
    bound_multipliers_MN: Array | None = None,
) -> lp_oracle.Certificate:
    """``certify`` in rational arithmetic, with the optimal multipliers unless others are given."""
    return lp_oracle.certify(
        lp_oracle.exact(optimum.scores),
        optimum.top_k,
        assignment_MN,
        optimum.multipliers[0] if alpha_M is None else alpha_M,
        optimum.multipliers[1],
        bound_multipliers=bound_multipliers_MN,
    )


def _require_named_faults(optimum: Optimum) -> None:
    """Require each kind of fault in an exact optimum to be found under its own name."""
    alpha, beta = optimum.multipliers
    margins_MN = lp_oracle.exact(optimum.scores) - lp_oracle.exact(alpha)[:, None]
    margins_MN = margins_MN - lp_oracle.exact(beta)
    dropped = optimum.assignment.astype(object)
    place = tuple(np.argwhere(dropped > 0)[0])
    dropped[place] = 0
    too_low = np.maximum(margins_MN, 0)
    too_low[place] -= 1
    raised = lp_oracle.exact(alpha) + 1
    faults = {
        "rows": _exact_certificate(optimum, dropped),
        "columns": _exact_certificate(optimum, dropped),
        "bounds": _exact_certificate(optimum, optimum.assignment + 2),
        "dual feasibility": _exact_certificate(
            optimum, optimum.assignment, bound_multipliers_MN=too_low
        ),
    }
    if exact_dual(optimum.scores, raised, beta, optimum.top_k) > optimum.upper:
        faults["complementary slackness"] = _exact_certificate(
            optimum, optimum.assignment, alpha_M=raised
        )
        faults["gap"] = faults["complementary slackness"]
    for name, judged in faults.items():
        require(
            name in judged.failures,
            f"a fault in {name} is not found:\n{judged}\n{written(optimum.scores, optimum.top_k)}",
        )


def candidate_biases(optimum: Optimum) -> Iterator[Array]:
    """Biases of interest: none, one at the edge of optimality, and ones inside if there are any."""
    n = optimum.scores.shape[1]
    yield np.zeros(n, dtype=np.int64)
    yield -optimum.multipliers[1]
    if optimum.top_k < n:
        descent = lp_oracle.coordinate_descent(
            optimum.scores,
            optimum.top_k,
            token_rule="midpoint",
            expert_rule="midpoint",
            rounds=12,
        )
        yield -descent.expert_multipliers


def require_honest_certificate(optimum: Optimum, bias_N: Array) -> bool:
    """Require the verdict on a bias to be that of exact arithmetic; whether it is certified.

    Float64 may refuse what exact arithmetic certifies, where rounding made a tie.
    """
    s_MN, top_k = optimum.scores, optimum.top_k
    told = f"b = {bias_N.tolist()}, {written(s_MN, top_k)}"
    verdict = lp_oracle.certify_routing(s_MN, bias_N, top_k)
    truth = exact_routing(s_MN, bias_N, top_k)
    if s_MN.dtype.kind == "i":
        require(
            verdict.optimal == truth.is_certified(),
            f"certified is {verdict.optimal} ({verdict.reason}), with an exact margin of "
            f"{truth.margin} and loads {truth.assignment.sum(axis=0).tolist()}: {told}",
        )
    if verdict.optimal:
        require(truth.is_certified(), f"certified, but the exact margin is {truth.margin}: {told}")
        optimum.require_attained_by(verdict.assignment)
    return bool(verdict.optimal)


def require_honest_near_tie(case: NearTie) -> bool:
    """Require every certificate of a near tie to survive exact arithmetic; whether there was one.

    With a radius r, all scores may move by r: against the routing, chosen ones down and others up,
    which takes 2 r from every margin.
    """
    truth = exact_routing(case.scores, case.bias, case.top_k)
    size = float(np.abs(case.scores).max() + np.abs(case.bias).max())
    found = False
    for radius in (0.0, case.radius):
        told = f"radius {radius!r}, b = {case.bias.tolist()}, {written(case.scores, case.top_k)}"
        verdict = lp_oracle.certify_routing(case.scores, case.bias, case.top_k, radius=radius)
        if verdict.optimal:
            found = True
            same = np.array_equal(verdict.assignment, truth.assignment)
            require(
                same and truth.is_certified(2.0 * radius),
                f"certified, but the exact margin is {truth.margin} and its loads are "
                f"{truth.assignment.sum(axis=0).tolist()}: {told}",
            )
        # Two additions, a difference and the comparison's own allowance: far fewer than 64 u size.
        clear = truth.is_certified(2.0 * radius + 64.0 * ROUNDOFF * size)
        require(verdict.optimal or not clear, f"not certified ({verdict.reason}): {told}")
    return found
