"""The exact update of Eq. 14 on hand-computed instances, and what defines its statistics."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reference_numpy.balancing import (
    expert_statistic,
    quantile_interval,
    quantile_update,
    required_bias,
    target_rank,
)

STATISTICS = ("q", "q+1", "linear", "midpoint")
# Scores of the smallest generic instance at which Eq. 14's corner jams, k = 1, q = 1.
S_MN = np.array([[3.0, 0.5, 4.0], [8.0, 6.0, 5.0], [2.0, 1.0, 7.0]]) / 10
LOGITS = np.log(S_MN / (1 - S_MN))


def test_required_bias_lifts_an_expert_exactly_to_the_cutoff() -> None:
    s_MN, alpha_M = np.array([[0.75, 0.25, 0.5]]), np.array([0.5])
    r_MN = required_bias(s_MN, alpha_M)
    np.testing.assert_array_equal(r_MN, [[-0.25, 0.25, 0.0]])
    np.testing.assert_array_equal(s_MN + r_MN, [[0.5, 0.5, 0.5]])


def test_statistics_of_an_integral_load() -> None:
    # m = 6, n = 3, k = 1: q = 2, and the linear quantile has rank 2 + 1 - 1/3.
    r_MN = np.array([6.0, 2.0, 4.0, 1.0, 3.0, 5.0])[:, None] * np.array([1.0, 10.0, -1.0])
    np.testing.assert_array_equal(expert_statistic(r_MN, 1, "q"), [2.0, 20.0, -5.0])
    np.testing.assert_array_equal(expert_statistic(r_MN, 1, "q+1"), [3.0, 30.0, -4.0])
    np.testing.assert_array_equal(expert_statistic(r_MN, 1, "midpoint"), [2.5, 25.0, -4.5])
    linear = [2 + 2 / 3, 20 + 20 / 3, -5 + 2 / 3]
    np.testing.assert_allclose(expert_statistic(r_MN, 1, "linear"), linear, rtol=1e-14)


def test_the_statistic_of_the_equation_is_the_default() -> None:
    r_MN = np.random.default_rng(9).normal(size=(7, 3))
    np.testing.assert_array_equal(expert_statistic(r_MN, 2), expert_statistic(r_MN, 2, "linear"))


def test_statistics_of_a_fractional_load() -> None:
    # m = 5, n = 3, k = 2: q = 10/3, so ranks 4 and 5; the linear rank 10/3 + 1 - 2/3 lies below.
    r_MN = np.array([3.0, 1.0, 5.0, 2.0, 4.0])[:, None] + np.zeros(3)
    lower_N, upper_N = quantile_interval(r_MN, 2)
    np.testing.assert_array_equal([lower_N, upper_N], [[4.0] * 3, [5.0] * 3])
    np.testing.assert_allclose(expert_statistic(r_MN, 2, "linear"), [11 / 3] * 3, rtol=1e-14)


def test_ranks_beyond_the_batch_read_its_largest_value() -> None:
    r_MN = np.array([[0.25, -1.0]])  # q = 1/2 of one token
    np.testing.assert_array_equal(quantile_interval(r_MN, 1), [r_MN[0], r_MN[0]])
    for statistic in STATISTICS:
        np.testing.assert_array_equal(expert_statistic(r_MN, 1, statistic), r_MN[0])


def test_an_update_computed_by_hand() -> None:
    # alpha = second largest = .3, .6, .2, so the columns of r are (0, -.2, 0), (.25, 0, .1) and
    # (-.1, .1, -.5); q = 1 and the linear rank is 5/3.
    by_hand = {
        "q": [-0.2, 0.0, -0.5],
        "q+1": [0.0, 0.1, -0.1],
        "midpoint": [-0.1, 0.05, -0.3],
        "linear": [-0.2 / 3, 0.2 / 3, -0.7 / 3],
    }
    for statistic, estimate in by_hand.items():
        got = quantile_update(LOGITS, np.zeros(3), top_k=1, statistic=statistic)
        np.testing.assert_allclose(got, np.array(estimate) - np.mean(estimate), atol=1e-15)


def test_the_cutoff_is_read_under_the_old_bias() -> None:
    # With b = (-.5, 0, 0) the cutoffs become .05, .5 and .1, so "q" reads -.25, -.1 and -.6.
    got = quantile_update(LOGITS, np.array([-0.5, 0.0, 0.0]), top_k=1, statistic="q")
    estimate = np.array([-0.3, -0.1, -0.6])
    np.testing.assert_allclose(got, estimate - estimate.mean(), atol=1e-15)


def test_masked_rows_are_as_if_absent() -> None:
    rng = np.random.default_rng(6)
    logits, bias = rng.normal(size=(9, 4)), 0.1 * rng.normal(size=4)
    mask = np.array([1, 0, 1, 1, 0, 1, 1, 0, 1], dtype=bool)
    got = quantile_update(logits, bias, top_k=2, mask=mask)
    np.testing.assert_array_equal(got, quantile_update(logits[mask], bias, top_k=2))
    assert (got != quantile_update(logits, bias, top_k=2)).any()


def test_without_a_cutoff_or_a_token_the_bias_stays() -> None:
    bias = np.array([0.5, 0.0, 0.25])
    for got in (
        quantile_update(LOGITS, bias, top_k=3),
        quantile_update(LOGITS[:0], bias, top_k=1),
        quantile_update(LOGITS, bias, top_k=1, mask=np.zeros(3, dtype=bool)),
    ):
        np.testing.assert_array_equal(got, bias)
        assert not np.shares_memory(got, bias)


@st.composite
def required_biases(draw: st.DrawFn) -> tuple[NDArray[np.float64], int]:
    """Lattice values, with ties on purpose: r (m, n) and k < n."""
    tokens, num_experts = draw(st.integers(1, 8)), draw(st.integers(2, 5))
    row = st.lists(st.integers(-4, 4), min_size=num_experts, max_size=num_experts)
    rows = draw(st.lists(row, min_size=tokens, max_size=tokens))
    return np.array(rows, dtype=np.float64), draw(st.integers(1, num_experts - 1))


def dual_in_one_bias(r_M: NDArray[np.float64], bias: float, q: Fraction) -> Fraction:
    """App. C's dual in beta_j = -b_j alone: q beta_j + sum max(0, s_ij - alpha_i - beta_j)."""
    return -q * Fraction(bias) + sum(max(Fraction(0), Fraction(bias - r)) for r in r_M)


@settings(deadline=None, max_examples=60, database=None)
@given(case=required_biases())
def test_the_interval_minimises_the_dual(case: tuple[NDArray[np.float64], int]) -> None:
    r_MN, top_k = case
    num_tokens, num_experts = r_MN.shape
    q = Fraction(num_tokens * top_k, num_experts)
    for r_M, lower, upper in zip(r_MN.T, *quantile_interval(r_MN, top_k), strict=True):
        least = min(dual_in_one_bias(r_M, bias, q) for bias in r_M)
        assert dual_in_one_bias(r_M, lower, q) == least
        if q.denominator == 1:
            assert dual_in_one_bias(r_M, upper, q) == least
            assert dual_in_one_bias(r_M, upper + 1, q) > least
        assert dual_in_one_bias(r_M, lower - 1, q) > least


@settings(deadline=None, max_examples=60, database=None)
@given(case=required_biases(), statistic=st.sampled_from(STATISTICS))
def test_a_statistic_splits_its_column_at_the_load(
    case: tuple[NDArray[np.float64], int], statistic: str
) -> None:
    r_MN, top_k = case
    num_tokens, num_experts = r_MN.shape
    assume(num_tokens * top_k % num_experts == 0)
    q = num_tokens * top_k // num_experts
    estimate_N = expert_statistic(r_MN, top_k, statistic)
    # The lattice is 1 wide, so 1e-9 only absorbs the rounding of the interpolation.
    assert ((r_MN < estimate_N - 1e-9).sum(axis=0) <= q).all()
    at_most = (r_MN <= estimate_N + 1e-9).sum(axis=0)
    assert (at_most >= (q + 1 if statistic == "q+1" else q)).all()


@pytest.mark.parametrize("statistic", STATISTICS)
def test_updates_are_centred_and_follow_a_relabelling(statistic: str) -> None:
    rng = np.random.default_rng(7)
    logits, bias = rng.normal(size=(12, 6)), rng.normal(size=6)
    order = rng.permutation(6)
    got = quantile_update(logits, bias, top_k=2, statistic=statistic)
    assert abs(got.mean()) < 1e-16
    relabelled = quantile_update(logits[:, order], bias[order], top_k=2, statistic=statistic)
    np.testing.assert_allclose(relabelled, got[order], atol=1e-15)
    shifted = quantile_update(logits, bias + 3.0, top_k=2, statistic=statistic)
    np.testing.assert_allclose(shifted, got, atol=1e-14)


def float32_rank(tokens: int, top_k: int, num_experts: int) -> int:
    """The rank that float32 arithmetic arrives at, as public implementations compute it."""
    return math.ceil(np.float32(tokens) * np.float32(top_k / num_experts))


def test_the_rank_is_exact_where_float32_rounds_up() -> None:
    totals = range(56, 1_000, 56)  # 16/896 = 1/56
    wrong = [m for m in totals if float32_rank(m, 16, 896) != m // 56]
    assert wrong[0] == 168
    assert float32_rank(168, 16, 896) == 4
    assert [target_rank(m, 16, 896) for m in totals] == [m // 56 for m in totals]


@pytest.mark.parametrize(
    ("arguments", "rank"),
    [
        ((0, 1, 2), 0),
        ((1, 1, 2), 1),
        ((5, 2, 3), 4),
        ((6, 2, 3), 4),
        ((2**24 + 1, 1, 2), 2**23 + 1),
    ],
)
def test_the_rank_is_the_ceiling(arguments: tuple[int, int, int], rank: int) -> None:
    assert target_rank(*arguments) == rank


def test_the_rank_does_not_overflow_narrow_integers() -> None:
    assert target_rank(np.int32(2**30), np.int32(16), np.int32(32)) == 2**29


def test_errors_name_what_was_wrong() -> None:
    with pytest.raises(ValueError, match="needs at least one valid token"):
        quantile_interval(np.zeros((0, 3)), 1)
    with pytest.raises(ValueError, match="needs at least one valid token"):
        expert_statistic(np.zeros((0, 3)), 1, "linear")
    with pytest.raises(ValueError, match="statistic is 'median', expected"):
        quantile_update(LOGITS, np.zeros(3), top_k=1, statistic="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mask must be boolean .* not int64"):
        quantile_update(LOGITS, np.zeros(3), top_k=1, mask=np.ones(3, dtype=np.int64))
    with pytest.raises(ValueError, match=r"mask has shape \(2,\), expected \(3\)"):
        quantile_update(LOGITS, np.zeros(3), top_k=1, mask=np.ones(2, dtype=bool))
    with pytest.raises(ValueError, match=r"bias has shape \(2,\), expected \(3\)"):
        quantile_update(LOGITS, np.zeros(2), top_k=1)
    with pytest.raises(ValueError, match=r"^logits has shape \(3,\)"):
        quantile_update(np.zeros(3), np.zeros(3), top_k=1)
    with pytest.raises(ValueError, match=r"^required bias has shape \(3,\)"):
        expert_statistic(np.zeros(3), 1)
    with pytest.raises(ValueError, match="valid_tokens = -1 must not be negative"):
        target_rank(-1, 1, 2)
