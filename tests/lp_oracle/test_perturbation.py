"""Perturbed descent: every class of scores and loads against enumeration and HiGHS, no misses."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd

import numpy as np
import pytest

from lp_oracle import (
    INSTANCES,
    AssignmentProblem,
    certify,
    coordinate_descent,
    exact,
    perturbation,
    perturbed_descent,
)
from lp_oracle.instances import FRACTION_CORNER_JAM, FRACTION_JAM, TIES_JAM, PinnedInstance
from lp_oracle.perturbation import _Copied, _descend
from properties.judgement.optimality.optimum import bracket
from tests.lp_oracle.drawing import Array, best_value, is_generic

Draw = Callable[[np.random.Generator, tuple[int, int]], Array]


def duplicated(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.integers(0, 50, (2, shape[1]))[rng.integers(0, 2, shape[0])]


CLASSES: dict[str, Draw] = {
    "levels 0 and 1": lambda rng, shape: rng.integers(0, 2, shape),
    "small integers": lambda rng, shape: rng.integers(-3, 4, shape),
    "all equal": lambda rng, shape: np.full(shape, rng.integers(-2, 3)),
    "duplicated tokens": duplicated,
    "constant rows": lambda rng, shape: np.tile(rng.random((shape[0], 1)), (1, shape[1])),
    "constant columns": lambda rng, shape: np.tile(rng.random(shape[1]), (shape[0], 1)),
    "near ties": lambda rng, shape: rng.integers(0, 2, shape) + 1e-9 * rng.integers(0, 3, shape),
    "last bits": lambda rng, shape: 1.0 + 2.0**-52 * rng.integers(0, 3, shape),
    "heavy tails": lambda rng, shape: np.exp(12.0 * rng.standard_normal(shape)),
    "one expert wins": lambda rng, shape: rng.random(shape) + 5.0 * (np.arange(shape[1]) == 0),
    "uniform": lambda rng, shape: rng.random(shape),
    "exact thirds": lambda rng, shape: exact(rng.integers(0, 4, shape)) * Fraction(1, 3),
}

# (m, n, k): integral and fractional loads, q below 1 and q = 1, k = 1, k = n - 1 and k = n.
SHAPES = [
    *((4, 2, 1), (3, 3, 1), (6, 3, 2), (4, 4, 3), (5, 5, 1), (6, 4, 2)),
    *((2, 5, 1), (3, 4, 1), (1, 4, 3), (5, 2, 1), (3, 5, 4), (6, 5, 2), (7, 3, 2)),
    *((3, 4, 4), (1, 1, 1), (1, 3, 1), (4, 1, 1)),
]
TINY = [(2, 2, 1), (3, 3, 2), (4, 3, 1), (2, 3, 1), (2, 3, 2), (3, 2, 1), (2, 5, 1), (3, 3, 3)]


@pytest.mark.parametrize("draw", CLASSES.values(), ids=CLASSES)
def test_finds_the_best_of_all_assignments(draw: Draw) -> None:
    rng = np.random.default_rng(0)
    for shape in TINY * 2:
        scores, top_k = draw(rng, shape[:2]), shape[2]
        found = perturbed_descent(scores, top_k)
        assert found.outcome == "certified"
        assert found.dual_value == best_value(scores, top_k)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_finds_what_highs_finds(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    m, n, top_k = shape
    for draw in CLASSES.values():
        scores = draw(rng, (m, n))
        if scores.dtype == object:  # not what the solver would see
            scores = scores.astype(np.float64)
        found = perturbed_descent(scores, top_k)
        assert found.outcome == "certified"
        assert found.copies == n // gcd(m * top_k, n)
        optimum = bracket(scores, top_k)
        assert optimum.lower <= found.dual_value <= optimum.upper


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_certificate_is_exact(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(2)
    m, n, top_k = shape
    for draw in CLASSES.values():
        scores = draw(rng, (m, n))
        found = perturbed_descent(scores, top_k)
        x, load = found.assignment, Fraction(m * top_k, n)
        assert x is not None
        assert (x.sum(axis=1) == top_k).all()
        assert (x.sum(axis=0) == load).all()
        assert ((x >= 0) & (x <= 1)).all()
        assert all(Fraction(share * found.copies).denominator == 1 for share in x.flat)
        multipliers = found.token_multipliers, found.expert_multipliers
        certificate = certify(exact(scores), top_k, x, *multipliers)
        assert certificate.certified
        assert certificate.gap.value == 0
        assert found.certificate == certificate
        assert found.dual_value == (exact(scores) * x).sum()


@pytest.mark.parametrize("name", INSTANCES)
def test_reaches_the_optimum_where_other_rules_stop(name: str) -> None:
    instance = INSTANCES[name]
    found = perturbed_descent(instance.scores, instance.top_k)
    assert found.outcome == "certified"
    assert found.dual_value == instance.optimum


@pytest.mark.parametrize("instance", [TIES_JAM, FRACTION_JAM, FRACTION_CORNER_JAM])
def test_any_seed_gives_the_same_value(instance: PinnedInstance) -> None:
    values = {
        perturbed_descent(instance.scores, instance.top_k, seed=s).dual_value for s in range(9)
    }
    assert values == {instance.optimum}


def test_scores_are_taken_for_the_numbers_they_are() -> None:
    """Two assignments whose values differ by the last bit of one score."""
    scores = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-52]])
    found = perturbed_descent(scores, 1)
    assert found.assignment is not None
    assert found.assignment.tolist() == [[1, 0], [0, 1]]
    assert found.dual_value == 2 + Fraction(1, 2**52)
    tiny = perturbed_descent(np.array([[1e300, 5e-324], [0.0, 1e300]]), 1)
    assert tiny.dual_value == 2 * Fraction(1e300)


def test_powers_of_two_finish_what_weights_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of 0 bits break no tie: every phase but the last jams."""
    edges = TIES_JAM.scores.size
    monkeypatch.setattr(perturbation, "SPARE_BITS", -edges.bit_length())
    monkeypatch.setattr(perturbation, "PATIENCE", 3)
    found = perturbed_descent(TIES_JAM.scores, TIES_JAM.top_k)
    assert found.outcome == "certified"
    assert found.dual_value == TIES_JAM.optimum
    assert set(found.rounds_per_phase[:-1]) == {3}
    assert found.rounds_per_phase[-1] > 3


@pytest.mark.parametrize("rounds", [0, 1, 2, 7])
def test_too_few_rounds_are_unfinished_and_still_a_bound(rounds: int) -> None:
    scores = np.random.default_rng(3).integers(0, 3, (12, 6))
    found = perturbed_descent(scores, 2, rounds=rounds)
    assert found.outcome == "unfinished"
    assert found.assignment is None
    assert found.certificate is None
    assert found.rounds == rounds
    # Integer scores have whole multipliers: no float has come between.
    assert all(Fraction(beta).denominator == 1 for beta in found.expert_multipliers)
    assert found.dual_value >= perturbed_descent(scores, 2).dual_value


def test_no_round_is_needed_where_every_expert_is_chosen_or_nothing_competes() -> None:
    every = perturbed_descent([[1, 2], [5, 3]], 2, rounds=0)
    assert (every.outcome, every.rounds_per_phase, every.rounds) == ("certified", (), 0)
    found = perturbed_descent([[1000, 0], [0, 1000]], 1, rounds=0)
    assert found.outcome == "certified"
    assert found.rounds_per_phase == (0,)


# TIES_JAM times 2^b plus these is generic, and midpoints leave its jam at a speed of 2^-b.
BREAKS = np.array(
    [
        [188, 125, 136, 179, 115],
        [155, 166, 45, 11, 60],
        [57, 174, 182, 1, 99],
        [164, 26, 159, 23, 93],
        [163, 60, 68, 55, 143],
    ]
)


def test_near_ties_cost_midpoints_rounds_but_not_perturbations_that_halve() -> None:
    midpoints, perturbed = {}, {}
    for bits in (10, 12, 14):
        scores = TIES_JAM.scores * 2**bits + BREAKS
        assert bits > 10 or is_generic(scores)
        trace = coordinate_descent(
            scores.astype(np.float64),
            1,
            token_rule="midpoint",
            expert_rule="midpoint",
            rounds=1000,
        )
        assert trace.outcome == "certified"
        midpoints[bits] = trace.rounds
        found = perturbed_descent(scores, 1)
        assert found.dual_value == trace.dual_values[-1]
        perturbed[bits] = found.rounds
    assert midpoints == {10: 26, 12: 103, 14: 409}
    assert max(perturbed.values()) <= 20


def test_scores_become_integers_without_a_common_part() -> None:
    copied = _Copied.of(AssignmentProblem(exact([[5, 6], [Fraction(19, 2), 9]]), 1))
    assert copied.levels.tolist() == [[0, 2], [9, 8]]
    assert copied.step == Fraction(1, 2)
    level = _Copied.of(AssignmentProblem(exact([[5, 5]]), 1))
    assert (level.levels.tolist(), level.step, level.copies) == ([[0, 0]], 1, 2)


def test_phases_halve_the_perturbation_and_the_last_is_generic() -> None:
    """Row spreads 2 and 1 have 2 bits, n = 2 has 2: from w 2^4 down to w."""
    levels = np.array([[0, 2], [9, 8]])
    copied = _Copied.of(AssignmentProblem(levels, 1))
    *weighted, last = copied.phases(np.random.default_rng(0))
    assert len(weighted) == 5
    for j, phase in zip((4, 3, 2, 1, 0), weighted, strict=True):
        perturbation_MN = phase.scores - levels * phase.unit
        assert all(w % 2**j == 0 and 0 <= w < phase.unit // 4 << j for w in perturbation_MN.flat)
        assert (phase.unit, phase.finer, phase.is_last) == (weighted[0].unit, 1, False)
    # Below 2^4, for 4 edges, each edge has a power of two of its own.
    perturbation_MN = last.scores - levels * last.unit
    assert sorted(w % 2**4 for w in perturbation_MN.flat) == [1, 2, 4, 8]
    assert all(0 < w < last.unit // 4 for w in perturbation_MN.flat)
    assert (last.unit, last.finer, last.is_last) == (weighted[0].unit * 2**4, 2**4, True)


def test_each_round_halves_the_unit_twice_and_takes_the_least_beta_off() -> None:
    scores = exact(TIES_JAM.scores)
    found = _descend(scores, exact([0] * scores.shape[1]), TIES_JAM.top_k, 1, 3)
    assert (found.chosen, found.rounds, found.shift) == (None, 3, 6)
    assert found.beta.min() == 0
    # alpha 9 and 5, twice; then 2 s - alpha is 9 -9 and 5 -5, whose sums are 14 and -14.
    scores = exact([[9, 0], [5, 0]])
    assert _descend(scores, exact([0, 0]), 1, 1, 1).beta.tolist() == [28, 0]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rounds = -1 must not be negative"):
        perturbed_descent([[1, 2]], 1, rounds=-1)
    with pytest.raises(ValueError, match=r"top_k = 3 must lie in 1\.\.2"):
        perturbed_descent([[1, 2]], 3)
    with pytest.raises(ValueError, match="has no exact value"):
        perturbed_descent([[1.0, np.nan]], 1)
