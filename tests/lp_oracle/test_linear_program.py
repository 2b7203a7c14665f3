"""The LP solver against enumeration, and the signs and sizes of what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

from lp_oracle import certify, certify_solution, exact, solve_linprog
from lp_oracle.linear_program import METHODS
from tests.lp_oracle.drawing import best_value, drawn, integral_shapes

TINY = [
    (2, 2, 1),
    (2, 3, 1),
    (3, 2, 1),
    (3, 3, 1),
    (3, 3, 2),
    (2, 4, 2),
    (4, 2, 1),
    (4, 4, 1),
    (6, 3, 1),
]
FRACTIONAL = [(2, 3, 1), (2, 5, 1), (3, 2, 1), (3, 4, 3), (4, 3, 2), (5, 3, 1), (1, 4, 2)]


@pytest.mark.parametrize(("m", "n", "top_k"), sorted({*TINY, *FRACTIONAL}))
def test_equals_the_best_of_all_assignments(m: int, n: int, top_k: int) -> None:
    rng = np.random.default_rng([m, n, top_k])
    for scores in (rng.integers(-9, 10, (m, n)), rng.integers(0, 2, (m, n))):
        solution = solve_linprog(scores, top_k)
        certificate = certify_solution(scores, top_k, solution)
        assert certificate.certified, str(certificate)
        assert abs(solution.objective - best_value(scores, top_k)) <= certificate.gap.tolerance


def test_rounding_an_integer_instance_certifies_exactly() -> None:
    """Basic solutions are integral here, so that nothing of the tolerance needs to stay."""
    rng = np.random.default_rng(3)
    for m, n, top_k in integral_shapes(7):
        scores = rng.integers(-50, 51, (m, n))
        solution = solve_linprog(scores, top_k)
        certificate = certify(
            scores,
            top_k,
            np.rint(solution.assignment).astype(int),
            np.rint(solution.token_multipliers).astype(int),
            np.rint(solution.expert_multipliers).astype(int),
        )
        assert certificate.certified, str(certificate)
        assert certificate.gap.value == 0
        assert certificate.primal_value == round(solution.objective)


def test_what_is_found_too_late_is_not_a_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        x, status, message = np.eye(2).ravel(), 1, "Time limit reached."

    monkeypatch.setattr(scipy.optimize, "linprog", lambda *_, **__: Late())
    solution = solve_linprog([[2, 1], [1, 2]], 1)
    assert (solution.status, solution.is_optimal) == ("Time limit reached.", False)
    assert np.isnan(solution.assignment).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_method_is_handed_on(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    asked: list[str] = []
    linprog = scipy.optimize.linprog

    def recorded(*arguments: Any, **options: Any) -> Any:
        asked.append(options["method"])
        return linprog(*arguments, **options)

    monkeypatch.setattr(scipy.optimize, "linprog", recorded)
    assert solve_linprog([[2, 1], [1, 2]], 1, method=method).is_optimal  # type: ignore[arg-type]
    assert asked == [method]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_certifies(method: str) -> None:
    for scores, top_k in drawn(5, 10, integral_shapes(9)):
        solution = solve_linprog(scores, top_k, method=method)  # type: ignore[arg-type]
        assert certify_solution(scores, top_k, solution).certified


def test_multipliers_carry_the_signs_of_the_dual() -> None:
    """Both tokens want expert 0: its price exceeds expert 1's by what token 1 would pay."""
    solution = solve_linprog([[9, 0], [5, 0]], 1)
    assert solution.objective == 9
    price = solution.expert_multipliers[0] - solution.expert_multipliers[1]
    assert 5 - 1e-6 <= price <= 9 + 1e-6
    assert (solution.bound_multipliers >= -1e-6).all()


@pytest.mark.parametrize("exponent", [-120, -30, 0, 30, 120])
def test_solves_alike_at_every_scale(exponent: int) -> None:
    """The solver's absolute tolerances would call every tiny score optimal."""
    for scores, top_k in drawn(7, 6, integral_shapes(8)):
        plain = solve_linprog(scores, top_k)
        scaled = solve_linprog(scores * 2.0**exponent, top_k)
        np.testing.assert_array_equal(scaled.assignment, plain.assignment)
        assert scaled.objective == plain.objective * 2.0**exponent
        assert scaled.scale == plain.scale * 2.0**exponent


def test_all_zero_scores_and_top_k_of_all_experts() -> None:
    assert solve_linprog(np.zeros((2, 4)), 2).objective == 0.0
    assert solve_linprog(np.zeros((2, 4)), 2).scale == 1.0
    assert solve_linprog([[3, -5], [1, 2]], 1).scale == 8.0
    everything = solve_linprog([[1, 2], [3, 4], [5, 6]], 2)
    np.testing.assert_allclose(everything.assignment, 1.0, rtol=0, atol=1e-7)
    assert certify_solution([[1, 2], [3, 4], [5, 6]], 2, everything).certified


def test_sums_of_scores_have_to_stay_within_float64() -> None:
    scores = np.full((8, 2), float(np.nextafter(2.0**1016, np.inf)))
    with pytest.raises(ValueError, match="16 scores of this size add up beyond float64"):
        solve_linprog(scores, 2)


def test_rational_scores_are_accepted() -> None:
    scores = exact([[0.5, 0.25], [0.125, 1.0]])
    assert solve_linprog(scores, 1).objective == 1.5


def test_giving_up_is_reported_and_never_certified() -> None:
    scores = np.random.default_rng(1).random((40, 20))
    solution = solve_linprog(scores, 3, time_limit=0.0)
    assert not solution.is_optimal
    assert "ime limit" in solution.status
    assert solution.scale == 1.0
    assert np.isnan(solution.objective)
    for values, shape in (
        (solution.assignment, (40, 20)),
        (solution.token_multipliers, (40,)),
        (solution.expert_multipliers, (20,)),
        (solution.bound_multipliers, (40, 20)),
    ):
        assert values.shape == shape
        assert np.isnan(values).all()
    with pytest.raises(ValueError, match="nothing to certify: the solver reports"):
        certify_solution(scores, 3, solution)
