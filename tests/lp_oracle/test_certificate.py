"""The certificate of a primal-dual pair: what it accepts, and that each condition can fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from lp_oracle import (
    SOLVER_TOLERANCE,
    Certificate,
    LinearProgramSolution,
    certify,
    certify_solution,
    exact,
    solve_linprog,
)
from tests.lp_oracle.drawing import Array, drawn, integral_shapes

FRACTIONAL = [(2, 3, 1), (2, 5, 4), (3, 2, 1), (4, 3, 2), (5, 7, 3), (1, 6, 4)]

SCORES = np.array([[9, 2, 4], [3, 8, 1], [5, 6, 7]])
OPTIMUM = np.eye(3, dtype=int)
ALPHA = np.array([4, 3, 5])
BETA = np.array([2, 2, 1])


def tampered_entry(array: Array, amount: float) -> Array:
    copy = array.copy()
    copy[0, 0] += amount
    return copy


def test_accepts_what_the_solver_finds() -> None:
    for scores, top_k in drawn(0, 60, integral_shapes(9) + FRACTIONAL):
        certificate = certify_solution(scores, top_k, solve_linprog(scores, top_k))
        assert certificate.certified, str(certificate)
        assert certificate.failures == ()


def test_exact_pair_leaves_no_residual() -> None:
    certificate = certify(SCORES, 1, OPTIMUM, ALPHA, BETA)
    assert certificate.certified
    assert certificate.primal_value == certificate.dual_value == 24
    assert isinstance(certificate.primal_value, Fraction)
    assert all(residual.value == 0 for residual in certificate.residuals)
    assert all(residual.radius == residual.tolerance == 0 for residual in certificate.residuals)


def test_exact_arithmetic_sees_the_smallest_deviation() -> None:
    tiny = Fraction(1, 10**40)
    x = exact(OPTIMUM)
    x[0, 0] -= tiny
    assert certify(SCORES, 1, x, ALPHA, BETA).rows.value == tiny
    assert certify(SCORES, 1, x, ALPHA, BETA).failures[:2] == ("rows", "columns")
    w = exact(np.maximum(SCORES - ALPHA[:, None] - BETA, 0))
    w[1, 1] -= tiny
    assert (
        "dual feasibility" in certify(SCORES, 1, OPTIMUM, ALPHA, BETA, bound_multipliers=w).failures
    )


@pytest.mark.parametrize(
    ("x", "failure"),
    [
        ([[1, 0, 0], [1, 0, 0], [0, 0, 1]], "columns"),
        ([[1, 1, 0], [0, 0, 0], [0, 0, 1]], "rows"),
        ([[1, 1, -1], [0, 0, 1], [0, 0, 1]], "bounds"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 1]], "complementary slackness"),
    ],
)
def test_each_condition_on_x_can_fail_without_the_one_before_it(
    x: list[list[int]], failure: str
) -> None:
    assert certify(SCORES, 1, x, ALPHA, BETA).failures[0] == failure


def test_an_assignment_above_one_is_out_of_bounds() -> None:
    x = [[2, 0, 0], [0, 1, 1], [0, 1, 1]]
    certificate = certify(SCORES, 2, x, [0, 0, 0], [0, 0, 0])
    assert certificate.failures[0] == "bounds"
    assert certificate.bounds.value == 1


@pytest.mark.parametrize(
    ("entry", "change", "failures"),
    [
        ((0, 0), 1, ("complementary slackness", "gap")),  # x = 1: v = 1
        ((0, 1), 1, ("complementary slackness", "gap")),  # x = 0: w = 1
        ((0, 0), -1, ("dual feasibility", "complementary slackness", "gap")),  # w below the margin
        ((0, 1), -1, ("dual feasibility", "complementary slackness", "gap")),  # w below zero
    ],
)
def test_each_bound_multiplier_counts(
    entry: tuple[int, int], change: int, failures: tuple[str, ...]
) -> None:
    w = np.maximum(SCORES - ALPHA[:, None] - BETA, 0)
    w[entry] += change
    certificate = certify(SCORES, 1, OPTIMUM, ALPHA, BETA, bound_multipliers=w)
    assert certificate.failures == failures
    assert {certificate.dual_feasibility.value, certificate.gap.value} <= {0, 1}


def test_fractional_optimum_is_certified_exactly() -> None:
    """q = 2/5: no 0/1 assignment is feasible, the certificate does not ask for one."""
    scores = np.array([[1, 3, 5, 8, 9], [7, 4, 0, 2, 6]])
    fifths = np.array([[0, 0, 2, 2, 1], [2, 2, 0, 0, 1]])
    x = exact(fifths) * Fraction(1, 5)
    certificate = certify(scores, 1, x, [3, 0], [7, 4, 2, 5, 6])
    assert certificate.certified, str(certificate)
    assert certificate.primal_value == Fraction(63, 5)


@pytest.mark.parametrize("amount", [1e-3, -1e-3, 1.0])
@pytest.mark.parametrize(
    ("condition", "tamper"),
    [
        ("rows", lambda s, t: {"assignment": tampered_entry(s.assignment, t)}),
        ("columns", lambda s, t: {"assignment": tampered_entry(s.assignment, t)}),
        ("bounds", lambda s, t: {"assignment": s.assignment + abs(t) * (2 * s.assignment - 1)}),
        ("dual feasibility", lambda s, t: {"bound_multipliers": s.bound_multipliers - abs(t)}),
        (
            "complementary slackness",
            lambda s, t: {"bound_multipliers": s.bound_multipliers + abs(t)},
        ),
        ("complementary slackness", lambda s, t: {"assignment": s.assignment[::-1]}),
        ("gap", lambda s, t: {"bound_multipliers": s.bound_multipliers + abs(t)}),
        ("gap", lambda s, t: {"token_multipliers": s.token_multipliers + t}),
    ],
)
def test_rejects_a_tampered_solution(
    condition: str,
    tamper: Callable[[LinearProgramSolution, float], dict[str, Array]],
    amount: float,
) -> None:
    for scores, top_k in drawn(1, 10, integral_shapes(8, smallest=3)):
        solution = solve_linprog(scores, top_k)
        false = dataclasses.replace(solution, **tamper(solution, amount))  # type: ignore[arg-type]
        certificate = certify_solution(scores, top_k, false)
        assert not certificate.certified
        assert condition in certificate.failures, str(certificate)


def test_rejects_a_feasible_assignment_that_is_not_the_best() -> None:
    """Nothing but slackness and gap can tell."""
    certificate = certify(SCORES, 1, OPTIMUM[[1, 0, 2]], ALPHA, BETA)
    assert certificate.failures == ("complementary slackness", "gap")
    assert certificate.gap.value == 12


def test_tolerances_are_those_of_the_solver() -> None:
    """A solution that is off by one solver tolerance is still its best; by ten, it is not."""
    for scores, top_k in drawn(2, 10, integral_shapes(8)):
        solution = solve_linprog(scores, top_k)
        for factor, accepted in ((0.9, True), (10.0, False)):
            x = tampered_entry(solution.assignment, factor * SOLVER_TOLERANCE)
            near = dataclasses.replace(solution, assignment=x)
            assert certify_solution(scores, top_k, near).certified is accepted


def test_without_a_solver_tolerance_only_rounding_is_allowed() -> None:
    scores, x = SCORES / 10, OPTIMUM.astype(float)
    exactly = certify(scores, 1, x, ALPHA / 10, BETA / 10)
    assert exactly.certified, str(exactly)
    assert 0 < exactly.gap.radius < 1e-13
    assert not certify(scores, 1, tampered_entry(x, 1e-12), ALPHA / 10, BETA / 10).certified
    beyond = ALPHA / 10 + [0.3 + 1e-12, 0, 0]  # the margin of x_00 = 1 becomes -1e-12
    assert not certify(scores, 1, x, beyond, BETA / 10).certified


def test_radii_cover_the_rounding_of_every_residual() -> None:
    """Against the same residuals in exact arithmetic, for pairs that are wrong at random."""
    rng = np.random.default_rng(3)
    worst: dict[str, float] = {}
    for scores, top_k in drawn(4, 40, integral_shapes(7) + FRACTIONAL):
        x = rng.random(scores.shape) * 10.0 ** rng.integers(-3, 4)
        alpha, beta = rng.normal(size=scores.shape[0]), rng.normal(size=scores.shape[1])
        w = rng.normal(size=scores.shape)
        rounded = certify(scores, top_k, x, alpha, beta, bound_multipliers=w)
        true = certify(
            exact(scores), top_k, exact(x), exact(alpha), exact(beta), bound_multipliers=exact(w)
        )
        for near, far in zip(rounded.residuals, true.residuals, strict=True):
            error = abs(exact([near.value])[0] - far.value)
            assert error <= near.radius, near.name
            if error:
                worst[near.name] = max(worst.get(near.name, 0.0), float(error) / near.radius)
    # x - 1 is a multiple of the last place of x, and so exact wherever it is positive.
    assert set(worst) == {residual.name for residual in rounded.residuals} - {"bounds"}
    assert min(worst.values()) > 1e-3, worst


def test_radius_of_the_gap_covers_a_hinge_that_rounds_to_one_side() -> None:
    """All 400 hinges lose the same digits to alpha = -beta = 1e8."""
    scores, x = np.full((20, 20), 0.1), np.eye(20)
    alpha, beta = np.full(20, 1e8), np.full(20, -1e8)
    rounded = certify(scores, 1, x, alpha, beta)
    true = certify(exact(scores), 1, exact(x), exact(alpha), exact(beta))
    error = abs(float(exact([rounded.gap.value])[0] - true.gap.value))
    assert rounded.gap.radius / 20 < error <= rounded.gap.radius


def test_prints_every_condition() -> None:
    text = str(certify(SCORES, 1, OPTIMUM[[1, 0, 2]], ALPHA, BETA))
    assert text.startswith("primal 12, dual 24\n")
    assert "gap: 12 (tolerance 0, radius 0) FAILS" in text
    assert "rows: 0 (tolerance 0, radius 0) holds" in text
    names = [field.name for field in dataclasses.fields(Certificate)][:6]
    assert [line.split(":")[0].replace(" ", "_") for line in text.splitlines()[1:]] == names


def test_tolerances_are_those_of_the_rule() -> None:
    """t = 2^-4, sigma = 4, W = 3: an edge may be off by t (1 + 2t) (sigma + W) = 63 / 128.

    The largest multiplier of a bound is v = alpha + beta - s = 3 at the edge (0, 1).
    """
    t, edge = 2.0**-4, 63 / 128
    found = certify([[3, 1], [1, 3]], 1, np.eye(2), [1, -1], [0, 3], solver_tolerance=t, scale=4.0)
    assert [residual.tolerance for residual in found.residuals[:5]] == [t, t, t, 4 * t, edge]
    assert found.gap.tolerance == t * (2 + 3) + 4 * edge
    unscaled = certify([[3, 1], [1, 3]], 1, np.eye(2), [1, -1], [0, 3], solver_tolerance=t)
    assert unscaled.dual_feasibility.tolerance == t


def test_a_solution_is_judged_at_the_scale_it_was_solved_at() -> None:
    solution = solve_linprog([[9, 0], [0, 9]], 1)
    assert solution.scale == 16.0
    found = certify_solution([[9, 0], [0, 9]], 1, solution)
    assert found.dual_feasibility.tolerance == 16 * SOLVER_TOLERANCE


def test_radius_of_slackness_covers_products_of_large_multipliers() -> None:
    """v exceeds w, so that nothing of the radius of a margin is left for the products."""
    scores, x, alpha, beta = [[-0.3]], [[1 / 3]], [0.3], [0.3]
    w = [[1e8 / 3]]
    rounded = certify(scores, 1, x, alpha, beta, bound_multipliers=w)
    true = certify(
        exact(scores), 1, exact(x), exact(alpha), exact(beta), bound_multipliers=exact(w)
    )
    near, far = rounded.complementary_slackness, true.complementary_slackness
    error = abs(exact([near.value])[0] - far.value)
    assert near.radius / 100 < error <= near.radius
