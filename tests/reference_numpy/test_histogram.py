"""App. D's histogram: bins, reading, error, and the balancer that accumulates it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_numpy.balancing import (
    HistogramBalancer,
    bin_counts,
    expert_statistic,
    histogram_range,
    histogram_statistic,
    quantile_update,
    required_bias,
    target_rank,
)
from reference_numpy.routing import cutoff, route, scores


def test_bins_close_the_range_at_both_ends() -> None:
    r_MN = np.array([[-2.0, 2.0], [-1.0, 1.999], [0.0, 0.5], [2.0, -1.001]])
    counts = bin_counts(r_MN, -2.0, 2.0, 4)
    np.testing.assert_array_equal(counts, [[1, 1, 1, 1], [1, 0, 1, 2]])
    assert counts.dtype == np.int64


def test_values_outside_the_range_count_at_its_ends() -> None:
    counts = bin_counts(np.array([[-7.0], [7.0], [9.0]]), -2.0, 2.0, 4)
    np.testing.assert_array_equal(counts, [[1, 0, 0, 2]])


def test_the_range_reaches_one_beyond_the_bias() -> None:
    assert histogram_range(np.array([0.5, -2.0, 7.5])) == (-3.0, 8.5)


def test_interpolation_inside_the_bin_that_reaches_the_rank() -> None:
    # m = 6, n = 2, k = 1: q = 3. Expert 0 has 2 below and 4 in bin 2; expert 1 ends bin 0 at 3.
    counts = np.array([[1, 1, 4, 0], [3, 3, 0, 0]])
    np.testing.assert_array_equal(histogram_statistic(counts, 0.0, 4.0, 1), [2.25, 1.0])


def test_a_fractional_load_is_rounded_for_the_bin_but_not_inside_it() -> None:
    # m = 5: q = 5/2, rank 3. Expert 0: (5/2 - 2)/3 into bin 1; expert 1: (5/2 - 0)/5 into bin 3.
    counts = np.array([[2, 3, 0, 0], [0, 0, 0, 5]])
    got = histogram_statistic(counts, -4.0, 4.0, 1)
    np.testing.assert_allclose(got, [-4 + 2 * (1 + 1 / 6), -4 + 2 * 3.5], rtol=1e-15)


@pytest.mark.parametrize("tokens", [168, 56 * 3001, 2**24 // 56 * 56])
def test_large_counts_read_exactly_the_target_rank(tokens: int) -> None:
    rank = target_rank(tokens, 16, 896)
    assert rank == tokens // 56
    counts = np.zeros((896, 4), dtype=np.int64)
    counts[:, 1], counts[:, 3] = rank, tokens - rank  # rank q + 1 would read bin 3
    np.testing.assert_array_equal(histogram_statistic(counts, 0.0, 4.0, 16), np.full(896, 2.0))


@settings(deadline=None, max_examples=60, database=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    tokens=st.integers(1, 40),
    num_experts=st.integers(2, 9),
    num_bins=st.sampled_from([1, 2, 7, 100, 1000]),
    spread=st.sampled_from([0.0, 0.3, 10.0]),
    data=st.data(),
)
def test_the_estimate_lies_in_the_bin_of_the_exact_order_statistic(
    seed: int, tokens: int, num_experts: int, num_bins: int, spread: float, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, num_experts - 1))
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(tokens, num_experts))
    bias = spread * rng.normal(size=num_experts)
    s_MN = scores(logits)
    r_MN = required_bias(s_MN, cutoff(s_MN + bias, top_k))
    low, high = histogram_range(bias)
    rounding = 1e-15 * (high - low)
    assert (r_MN >= low - rounding).all()
    assert (r_MN <= high + rounding).all()

    counts = bin_counts(r_MN, low, high, num_bins)
    assert (counts.sum(axis=1) == tokens).all()
    error = histogram_statistic(counts, low, high, top_k) - expert_statistic(r_MN, top_k, "q")
    width = (high - low) / num_bins
    assert np.abs(error).max() <= width + 4 * rounding

    balancer = HistogramBalancer(num_experts, top_k, num_bins, bias=bias)
    balancer.observe(logits)
    balancer.update()
    exact = quantile_update(logits, bias, top_k=top_k, statistic="q")
    drift = balancer.bias - exact
    assert drift.max() - drift.min() <= 2 * width + 8 * rounding
    assert abs(balancer.bias.mean()) <= 4 * rounding


def small_batch(tokens: int = 24) -> np.ndarray:
    return np.random.default_rng(8).normal(size=(tokens, 6))


def state(balancer: HistogramBalancer) -> list[bytes]:
    return [value.tobytes() for _, value in sorted(balancer.state_dict().items())]


def test_observing_routes_with_the_present_bias_and_leaves_it() -> None:
    bias = np.array([0.5, 0.0, -0.5, 0.0, 0.25, 0.0])
    balancer = HistogramBalancer(6, 2, 50, bias=bias)
    for _ in range(2):
        got, want = balancer.observe(small_batch()), route(small_batch(), bias, top_k=2)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(balancer.bias, bias)
    np.testing.assert_array_equal(balancer.histogram.sum(axis=1), np.full(6, 48))


def test_evaluation_and_a_disabled_balancer_change_nothing() -> None:
    balancer = HistogramBalancer(6, 2, 50)
    balancer.observe(small_batch())
    before = state(balancer)
    balancer.observe(2 * small_batch(), training=False)
    assert state(balancer) == before
    balancer.set_enabled(False)
    balancer.observe(2 * small_batch())
    balancer.update()
    assert state(balancer) == before
    balancer.set_enabled(True)
    balancer.update()
    assert state(balancer) != before


def test_any_split_into_micro_batches_counts_the_same() -> None:
    whole, split = HistogramBalancer(6, 2, 50), HistogramBalancer(6, 2, 50)
    whole.observe(small_batch())
    for part in np.split(small_batch(), [0, 1, 9, 23]):
        split.observe(part)
    assert state(whole) == state(split)


def test_masked_rows_are_routed_but_not_counted() -> None:
    mask = np.arange(24) % 3 != 0
    masked, reduced = HistogramBalancer(6, 2, 50), HistogramBalancer(6, 2, 50)
    assert masked.observe(small_batch(), mask=mask).expert_ids.shape == (24, 2)
    reduced.observe(small_batch()[mask])
    assert state(masked) == state(reduced)


def test_an_update_starts_the_next_batch_from_empty_counts() -> None:
    balancer = HistogramBalancer(6, 2, 50)
    balancer.observe(small_batch())
    balancer.update()
    assert balancer.histogram.sum() == 0
    assert np.abs(balancer.bias).max() > 0.01
    after = state(balancer)
    balancer.update()  # nothing observed
    balancer.observe(small_batch(0))
    balancer.update()
    assert state(balancer) == after


def test_all_experts_chosen_means_nothing_to_balance() -> None:
    bias = np.array([0.5, 0.0, -0.25])
    balancer = HistogramBalancer(3, 3, 50, bias=bias)
    balancer.observe(small_batch()[:, :3])
    balancer.update()
    np.testing.assert_array_equal(balancer.bias, bias)


def test_the_balancer_keeps_its_own_copies() -> None:
    bias = np.zeros(6)
    balancer = HistogramBalancer(6, 2, 50, bias=bias)
    bias += 7
    balancer.state_dict()["bias"][:] = 7
    np.testing.assert_array_equal(balancer.bias, np.zeros(6))


def test_the_bias_is_float64_whatever_it_came_as() -> None:
    bias = np.arange(6, dtype=np.float32) / 10
    balancer = HistogramBalancer(6, 2, 50, bias=bias)
    assert balancer.bias.dtype == np.float64
    balancer.load_state_dict({"bias": bias, "histogram": np.zeros((6, 50), dtype=np.int32)})
    assert (balancer.bias.dtype, balancer.histogram.dtype) == (np.float64, np.int64)


def test_a_single_expert_has_nothing_to_balance() -> None:
    balancer = HistogramBalancer(1, 1, 50, bias=np.array([0.25]))
    balancer.observe(np.ones((4, 1)))
    balancer.update()
    np.testing.assert_array_equal(balancer.bias, [0.25])


def test_a_saved_state_resumes_with_pending_counts() -> None:
    first, second = HistogramBalancer(6, 2, 50, bias=np.arange(6) / 10), HistogramBalancer(6, 2, 50)
    first.observe(small_batch())
    second.load_state_dict(first.state_dict())
    assert state(first) == state(second)
    first.update()
    second.update()
    assert state(first) == state(second)


def test_a_state_that_does_not_fit_is_rejected_and_changes_nothing() -> None:
    balancer = HistogramBalancer(2, 1, 3)
    bias, counts = np.zeros(2), np.array([[1, 0, 2], [3, 0, 0]])
    for bad, message in [
        ({"histogram": counts}, "state has no 'bias'"),
        ({"bias": bias}, "state has no 'histogram'"),
        ({"bias": np.zeros(3), "histogram": counts}, "bias has shape"),
        ({"bias": bias, "histogram": counts[:, :2]}, "histogram has shape"),
        ({"bias": bias, "histogram": counts + 0.5}, "integer counts"),
        ({"bias": bias, "histogram": -counts}, "integer counts of at least 0"),
        ({"bias": bias, "histogram": counts * [[1], [2]]}, "between 3 and 6 tokens"),
    ]:
        before = state(balancer)
        with pytest.raises(ValueError, match=message):
            balancer.load_state_dict(bad)
        assert state(balancer) == before


def test_errors_name_what_was_wrong() -> None:
    with pytest.raises(ValueError, match="top_k = 3 must lie in"):
        HistogramBalancer(2, 3)
    with pytest.raises(ValueError, match="num_bins = 0"):
        HistogramBalancer(2, 1, 0)
    with pytest.raises(ValueError, match=r"bias has shape \(3,\)"):
        HistogramBalancer(2, 1, bias=np.zeros(3))
    with pytest.raises(ValueError, match="the histogram is empty"):
        histogram_statistic(np.zeros((2, 4), dtype=np.int64), 0.0, 1.0, 1)
    balancer = HistogramBalancer(2, 1, 3)
    with pytest.raises(ValueError, match="mask must be boolean"):
        balancer.observe(np.zeros((2, 2)), mask=np.ones(2))
    with pytest.raises(ValueError, match=r"mask has shape \(3,\), expected \(2\)"):
        balancer.observe(np.zeros((2, 2)), mask=np.ones(3, dtype=bool))
    with pytest.raises(ValueError, match="required biases are not finite"):
        balancer.observe(np.array([[0.0, np.nan]]))
    assert balancer.histogram.sum() == 0
