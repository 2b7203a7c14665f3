"""``certified_optimum`` against enumeration, ``linprog`` and rational arithmetic.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lp_oracle
from lp_oracle import certified_optimum
from lp_oracle.at_scale import augmentation, optimum
from tests.lp_oracle.drawing import best_value

Array = NDArray[Any]

KINDS = ("uniform", "lattice", "heavy", "equal", "close", "float32", "duplicated", "masked")


def drawn_scores(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    if kind == "lattice":
        return rng.integers(0, 3, shape)
    if kind == "heavy":
        return np.exp(4.0 * rng.standard_normal(shape))
    if kind == "equal":
        return np.full(shape, 0.7)
    if kind == "close":
        return 1.0 + 1e-6 * rng.random(shape)
    if kind == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    if kind == "duplicated":
        return np.repeat(rng.random((-(-shape[0] // 2), shape[1])), 2, axis=0)[: shape[0]]
    if kind == "masked":
        return np.where(rng.random(shape) < 0.2, -1e3, rng.random(shape))
    return rng.random(shape)


def sizes(seed: int, largest: int) -> tuple[int, int, int]:
    rng = np.random.default_rng(seed)
    m, n = rng.integers(1, largest + 1, 2)
    return int(m), int(n), int(rng.integers(1, n + 1))


def exact_dual(scores: Array, found: lp_oracle.CertifiedOptimum, top_k: int) -> Fraction:
    return Fraction(
        lp_oracle.dual_objective(
            lp_oracle.exact(scores), found.token_multipliers, found.expert_multipliers, top_k
        )
    )


def exact_worth(scores: Array, found: lp_oracle.CertifiedOptimum, load: Fraction) -> Fraction:
    parts = load.denominator
    counts = np.rint(found.assignment * parts).astype(int)
    assert np.abs(found.assignment * parts - counts).max() < 1e-9
    assert (counts.sum(axis=0) == load.numerator).all()
    values = lp_oracle.exact(scores)[np.nonzero(counts)]
    return Fraction(sum(values * counts[np.nonzero(counts)]), parts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_every_class_has_the_gap_that_is_stated(kind: str, seed: int) -> None:
    """Weak duality in rationals, so that neither solver nor rounding has to be believed."""
    m, n, top_k = sizes(seed, 14)
    scores = drawn_scores(kind, np.random.default_rng(seed), (m, n))
    found = certified_optimum(scores, top_k)
    load = Fraction(m * top_k, n)
    worth = exact_worth(scores, found, load)
    assert found.certified
    assert (found.assignment.sum(axis=1).round(9) == top_k).all()
    assert found.objective == pytest.approx(float(worth), rel=1e-15 * n * m)
    if found.proof == "strict margins" or kind == "close":
        solved = lp_oracle.solve_linprog(scores, top_k)
        assert float(worth) == pytest.approx(solved.objective, rel=1e-6)
    if found.proof != "strict margins":
        # Multipliers of an exact proof are exact where floats hold them, as they do here.
        assert 0 <= exact_dual(scores, found, top_k) - worth <= Fraction(found.gap)


@pytest.mark.parametrize("seed", range(60))
def test_small_instances_are_worth_what_enumeration_finds(seed: int) -> None:
    m, n, top_k = sizes(seed, 4)
    scores = np.random.default_rng(seed).integers(-2, 4, (m, n))
    found = certified_optimum(scores, top_k)
    assert found.gap == 0.0
    assert found.objective == pytest.approx(float(best_value(scores, top_k)), rel=1e-15 * m * n)


@pytest.mark.parametrize("name", sorted(lp_oracle.INSTANCES))
def test_jams_are_solved(name: str) -> None:
    instance = lp_oracle.INSTANCES[name]
    found = certified_optimum(instance.scores, instance.top_k)
    assert found.gap == 0.0
    assert found.objective == pytest.approx(float(instance.optimum), rel=1e-14)


def test_strict_margins_make_minus_beta_a_bias_that_routes_to_the_optimum() -> None:
    scores = np.random.default_rng(3).random((240, 24))
    found = certified_optimum(scores, 5)
    assert found.proof == "strict margins"
    routed = lp_oracle.certify_routing(scores, -found.expert_multipliers, 5)
    assert routed.optimal
    assert np.array_equal(routed.assignment, found.assignment)


def test_a_second_optimum_rules_strict_margins_out() -> None:
    scores = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    found = certified_optimum(scores, 1)
    assert found.proof == "complementary slackness"


def test_fractions_beyond_floats_are_solved_exactly() -> None:
    third = Fraction(1, 3)
    scores = np.array([[third, 0, 1], [2 * third, third, 1]], dtype=object)
    found = certified_optimum(scores, 1)
    assert found.gap == 0.0
    assert found.objective == pytest.approx(float(best_value(scores, 1)), rel=1e-15)


BIG = 2**53
TINY = Fraction(1, 2**60)


@pytest.mark.parametrize(
    "scores",
    [
        np.array([[BIG, BIG + 1], [BIG + 1, BIG]]),
        np.array([[2**64 - 2, 2**64 - 1], [2**64 - 1, 2**64 - 2]], dtype=np.uint64),
        np.array([[1, 1 + TINY], [1 + TINY, 1]], dtype=object),
    ],
    ids=["int64", "uint64", "Fraction"],
)
def test_scores_that_float64_cannot_hold_are_not_proved_exactly(scores: Array) -> None:
    """They differ by less than its spacing, so both assignments look alike to the solver."""
    found = certified_optimum(scores, 1)
    lost = best_value(scores, 1) - exact_worth(scores, found, Fraction(1))
    assert found.proof == "gap"
    assert 0 <= lost <= found.gap


@pytest.mark.parametrize("seed", range(40))
def test_the_gap_covers_the_rounding_of_rationals(seed: int) -> None:
    """Thirds and numbers of 60 bits, whose rounding can exceed that of the margins."""
    rng = np.random.default_rng(seed)
    m, n, top_k = sizes(seed, 4)
    integers = rng.integers(-(2**62), 2**62, (m, n))
    units = [Fraction(1, 2**58), Fraction(1, 3 * 2**40), Fraction(1, 2**54)]
    scores = np.array(
        [[int(x) * units[rng.integers(3)] for x in row] for row in integers], dtype=object
    )
    found = certified_optimum(scores, top_k)
    lost = best_value(scores, top_k) - exact_worth(scores, found, Fraction(m * top_k, n))
    assert found.certified
    assert 0 <= lost <= found.gap


def test_subnormal_scores_are_proved_by_what_float64_holds() -> None:
    scores = np.array([[42, 31], [25, 13], [15, 2], [3, 0]]) * 5e-324
    found = certified_optimum(scores, 1)
    assert exact_worth(scores, found, Fraction(2)) == best_value(scores, 1)
    if found.proof == "strict margins":
        assert lp_oracle.certify_routing(scores, -found.expert_multipliers, 1).optimal


@pytest.mark.parametrize("power", [-1000, 0, 1000])
def test_any_power_of_two_is_the_same_problem(power: int) -> None:
    scores = np.random.default_rng(7).integers(0, 2**13, (36, 8)) / 2.0**13
    one = certified_optimum(scores, 2)
    other = certified_optimum(np.ldexp(scores, power), 2)
    assert np.array_equal(one.assignment, other.assignment)
    assert one.proof == other.proof == "strict margins"


@pytest.mark.parametrize("mask", [-1e3, -1e9, -1e30])
def test_masked_experts_cost_no_precision(mask: float) -> None:
    rng = np.random.default_rng(4)
    scores = rng.random((96, 12))
    scores[rng.random(scores.shape) < 0.3] = mask
    found = certified_optimum(scores, 3)
    assert found.proof == "strict margins"
    mild = lp_oracle.solve_linprog(np.maximum(scores, -100.0), 3)
    assert found.objective == pytest.approx(mild.objective, rel=1e-7)


def test_masks_that_have_to_be_used_decide() -> None:
    """A column of masks alone: q tokens must take it."""
    scores = np.random.default_rng(4).random((12, 3))
    scores[:, 1] = -1e6
    told: list[str] = []
    found = certified_optimum(scores, 1, progress=told.append)
    assert any("do decide" in line for line in told)
    assert found.certified
    assert found.objective == pytest.approx(lp_oracle.solve_linprog(scores, 1).objective, rel=1e-12)


def test_scores_too_far_apart_for_the_grid_are_not_called_optimal() -> None:
    """One expert decides at 1e30, so that the others vanish beside it, and is chosen for 0."""
    scores = np.random.default_rng(0).random((6, 3))
    scores[:5, 0] = -1e30
    scores[5, 0], scores[0, 0] = 0.0, 0.0
    scores[1:3, 1:] = [[-1e30, 0.3], [0.2, -1e30]]
    found = certified_optimum(scores, 1)
    best = lp_oracle.solve_linprog(np.maximum(scores, -100.0), 1).objective
    assert found.objective <= best + 1e-9
    assert best <= found.objective + found.gap
    assert found.certified == (found.gap <= 1e-9)


def test_multipliers_that_outgrow_the_integers_are_computed_more_coarsely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(augmentation, "LARGEST", 2**40)
    scores = np.random.default_rng(5).random((60, 12))
    told: list[str] = []
    found = certified_optimum(scores, 3, progress=told.append)
    assert any("coarser" in line for line in told)
    assert found.objective == pytest.approx(lp_oracle.solve_linprog(scores, 3).objective, rel=1e-7)


def test_near_ties_that_creep_are_solved_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One direction of disagreement: every token ranks the experts alike, or in reverse."""
    monkeypatch.setattr(augmentation, "PATIENCE", 8)
    rng = np.random.default_rng(1)
    scores = 1.0 / (1.0 + np.exp(-rng.standard_normal((560, 1)) * rng.standard_normal(56)))
    told: list[str] = []
    found = certified_optimum(scores, 8, progress=told.append)
    assert any("leading bits" in line for line in told)
    assert found.proof == "strict margins"
    assert lp_oracle.certify_routing(scores, -found.expert_multipliers, 8).optimal


def test_a_wrong_assignment_does_not_pass_the_last_check(monkeypatch: pytest.MonkeyPatch) -> None:
    original = optimum.Augmentation.assignment

    def swapped(self: Any) -> Array:
        x_MN = original(self)
        first = int(np.argmax(x_MN[0] != x_MN[1]))
        second = int(np.argmax((x_MN[0] != x_MN[1]) & (x_MN[0] != x_MN[0, first])))
        x_MN[:2, [first, second]] = ~x_MN[:2, [first, second]]
        return x_MN

    monkeypatch.setattr(optimum.Augmentation, "assignment", swapped)
    found = certified_optimum(np.random.default_rng(2).random((24, 6)), 2)
    assert found.proof == "none"
    assert found.gap > 0.0


def test_the_gap_of_integers_is_in_their_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """x is exchanged for its reverse, which is feasible here and far from optimal."""
    scores = np.arange(18).reshape(6, 3) ** 2 % 7
    original = optimum.Augmentation.assignment
    monkeypatch.setattr(
        optimum.Augmentation, "assignment", lambda self: np.array(original(self)[::-1])
    )
    found = certified_optimum(scores, 1)
    gap = exact_dual(scores, found, 1) - exact_worth(scores, found, Fraction(2))
    assert gap > 0
    assert found.gap == pytest.approx(float(gap), rel=1e-12)
    assert found.proof == "none"


def test_a_lost_unit_does_not_pass_the_last_check(monkeypatch: pytest.MonkeyPatch) -> None:
    original = optimum.Augmentation.assignment

    def dropped(self: Any) -> Array:
        x_MN = original(self)
        x_MN[0, np.argmax(x_MN[0])] = 0
        return x_MN

    monkeypatch.setattr(optimum.Augmentation, "assignment", dropped)
    with pytest.raises(AssertionError, match="wrong sums"):
        certified_optimum(np.random.default_rng(2).random((24, 6)), 2)


@pytest.mark.parametrize(
    ("scores", "top_k", "message"),
    [
        (np.ones(3), 1, "matrix"),
        (np.ones((0, 3)), 1, "at least one token"),
        (np.array([[1.0, np.nan]]), 1, r"scores\[\(0, 1\)\] is nan"),
        (np.ones((2, 3)), 4, "top_k = 4 must lie in 1..3"),
        (np.ones((2, 3)), 0, "top_k = 0 must lie in 1..3"),
        (np.full((12, 6), 1.7e308), 2, "add up beyond float64"),
        (np.ma.masked_equal(np.arange(6.0).reshape(2, 3), 2.0), 1, "masked array"),
    ],
)
def test_bad_input_is_refused(scores: Array, top_k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certified_optimum(scores, top_k)


def test_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^scores has dtype <U1; real numbers"):
        certified_optimum(np.array([["a", "b"]]), 1)
