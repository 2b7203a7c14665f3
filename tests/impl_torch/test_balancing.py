from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import reference_numpy as reference
from impl_torch.balancing import (
    Statistic,
    expert_statistic,
    histogram_quantile,
    quantile_update,
)
from impl_torch.histogram import HistogramBalancer, QuantileHistogram
from impl_torch.routing import route, route_scores
from impl_torch.routing import scores as sigmoid_scores

SHAPES = [(1, 2, 1), (7, 3, 2), (12, 4, 1), (30, 5, 3), (56, 896, 16), (168, 896, 16), (64, 8, 7)]
INF = float("inf")
STATISTICS: tuple[Statistic, ...] = ("q", "q+1", "linear", "midpoint")


def batch(m: int, n: int, seed: int = 0, spread: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    skew = torch.randn(n, generator=generator)
    logits = torch.randn(m, n, generator=generator) + skew
    return logits, torch.randn(n, generator=generator) * spread


# The exact update ------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_statistics_by_sorting_and_counting(m: int, n: int, k: int) -> None:
    r = torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(m))
    ordered = np.sort(r.numpy(), axis=0)
    q = Fraction(m * k, n)
    first = ordered[math.ceil(q) - 1]
    second = ordered[min(math.ceil(q), m - 1)]
    expected = {
        "q": first,
        "q+1": second,
        "midpoint": (first + second) / 2,
        "linear": -np.quantile(-r.numpy(), 1 - k / n, axis=0),
    }
    for statistic in STATISTICS:
        got = expert_statistic(r, k, statistic).numpy()
        np.testing.assert_allclose(got, expected[statistic], rtol=0, atol=1e-12)
    if q.denominator == 1 and m > 1:
        assert (expert_statistic(r, k).numpy() > first).all()
        assert (expert_statistic(r, k).numpy() < second).all()


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_update_equals_the_reference(m: int, n: int, k: int, statistic: Statistic) -> None:
    logits, bias = (t.double() for t in batch(m, n))
    got = quantile_update(logits, bias, top_k=k, statistic=statistic)
    want = reference.quantile_update(logits.numpy(), bias.numpy(), top_k=k, statistic=statistic)
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-12)


def test_update_balances_every_load_at_the_cutoffs_it_used() -> None:
    logits, bias = (t.double() for t in batch(60, 6))
    cutoff = route(logits, bias, top_k=2).cutoff
    assert cutoff is not None
    required = cutoff[:, None] - sigmoid_scores(logits)
    new = quantile_update(logits, bias, top_k=2)
    # Centring shifts all experts alike; some required biases tie with the old bias exactly.
    estimate = new - new[0] + expert_statistic(required, 2)[0]
    assert ((required < estimate - 1e-12).sum(0) <= 20).all()
    assert ((required <= estimate + 1e-12).sum(0) >= 20).all()
    assert ((required < estimate - 1e-12).sum(0) == 20).sum() >= 4


def test_float32_update_is_centred_and_leaves_its_input_alone() -> None:
    logits, bias = batch(500, 896)
    before = bias.clone()
    new = quantile_update(logits, bias, top_k=16)
    assert new.dtype == torch.float32
    assert abs(float(new.double().mean())) < 2.0**-26
    assert torch.equal(bias, before)
    shifted = quantile_update(logits, bias + 8.0, top_k=16)
    assert (shifted - new).abs().max() < 3e-6


def test_masked_and_nan_tokens_are_left_out() -> None:
    logits, bias = batch(40, 7)
    mask = torch.arange(40) % 3 > 0
    expected = quantile_update(logits[mask], bias, top_k=2)
    assert torch.equal(quantile_update(logits, bias, top_k=2, mask=mask), expected)
    poisoned = logits.clone()
    poisoned[~mask, 4] = torch.nan
    assert torch.equal(quantile_update(poisoned, bias, top_k=2), expected)
    poisoned[1] = torch.nan
    mask[1] = True
    rest = mask & (torch.arange(40) != 1)
    both = quantile_update(poisoned, bias, top_k=2, mask=mask)
    assert torch.equal(both, quantile_update(logits[rest], bias, top_k=2))


def test_without_cutoff_or_tokens_the_bias_stays() -> None:
    logits, bias = batch(4, 5)
    nobody = torch.zeros(4, dtype=torch.bool)
    for same in (
        quantile_update(logits, bias, top_k=5),
        quantile_update(logits[:0], bias, top_k=2),
        quantile_update(logits, bias, top_k=2, mask=nobody),
    ):
        assert torch.equal(same, bias)
        assert same.data_ptr() != bias.data_ptr()


def test_wrong_arguments_are_named() -> None:
    logits, bias = batch(4, 5)
    with pytest.raises(TypeError, match="mask must be boolean"):
        quantile_update(logits, bias, top_k=2, mask=torch.ones(4))
    with pytest.raises(ValueError, match=r"mask has shape \(3,\); expected \(4,\)"):
        quantile_update(logits, bias, top_k=2, mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="statistic must be one of"):
        quantile_update(logits, bias, top_k=2, statistic="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no token"):
        expert_statistic(torch.zeros(0, 3), 1)
    with pytest.raises(ValueError, match="num_bins must be at least 2"):
        QuantileHistogram(4, 2, 1)
    with pytest.raises(ValueError, match=r"top_k must be in 1 … 4"):
        HistogramBalancer(4, 5)
    with pytest.raises(ValueError, match=r"bias has shape \(3,\); expected \(4,\)"):
        HistogramBalancer(4, 2, bias=torch.zeros(3))


# Counting --------------------------------------------------------------------------------------


def naive_counts(
    logits: torch.Tensor, bias: torch.Tensor, k: int, bins: int, keep: torch.Tensor
) -> np.ndarray:
    """App. D's counts in exact arithmetic on the scores and cutoffs that the router computed."""
    scores = sigmoid_scores(logits)
    cutoff = route_scores(scores, bias, top_k=k).cutoff
    low, high = (Fraction(float(b)) for b in (bias.min() - 1, bias.max() + 1))
    counts = np.zeros((bias.numel(), bins), dtype=np.int64)
    for i, j in itertools.product(range(logits.shape[0]), range(bias.numel())):
        r = Fraction(float(cutoff[i])) - Fraction(float(scores[i, j]))
        if keep[i]:
            counts[j, min(max(math.floor((r - low) * bins / (high - low)), 0), bins - 1)] += 1
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [2, 3, 64, 1000])
def test_counts_equal_exact_ones_up_to_values_on_an_edge(bins: int, dtype: torch.dtype) -> None:
    logits, bias = (t.to(dtype) for t in batch(50, 7))
    mask = torch.arange(50) % 4 != 1
    balancer = HistogramBalancer(7, 2, bins, bias=bias, dtype=dtype)
    routing = balancer.observe(logits, mask=mask)
    assert torch.equal(routing.expert_ids, route(logits, bias, top_k=2).expert_ids)
    exact = naive_counts(logits, bias, 2, bins, mask)
    assert (balancer.histogram.sum(1) == mask.sum()).all()
    moved = np.abs(np.cumsum(balancer.histogram.numpy() - exact, axis=1)).sum()
    assert moved <= (3 if dtype == torch.float32 else 0)


def test_nothing_falls_outside_the_range_and_its_top_edge_is_inside() -> None:
    bias = torch.tensor([-6.0, 0.0, 4.0, 4.0])
    logits = torch.tensor([[INF, INF, -INF, -INF], [-INF, -INF, INF, INF], [0.0, 1.0, 2.0, 3.0]])
    balancer = HistogramBalancer(4, 1, 1200, bias=bias)
    balancer.observe(logits)
    assert (balancer.histogram.sum(1) == 3).all()
    # r = max b + 1 for the second token: cutoff 5 from an expert of score 1, and a score of 0.
    assert balancer.histogram[0, -1] == 1
    assert balancer.histogram[1, -1] == 1


def test_nan_tokens_are_not_counted() -> None:
    logits, bias = batch(20, 6)
    logits[3, 2] = torch.nan
    logits[9] = torch.nan
    balancer = HistogramBalancer(6, 2, 50, bias=bias)
    balancer.observe(logits)
    clean = HistogramBalancer(6, 2, 50, bias=bias)
    clean.observe(logits[~torch.isnan(logits).any(1)])
    assert torch.equal(balancer.histogram, clean.histogram)


def test_an_expert_switched_off_does_not_spoil_the_range() -> None:
    logits, bias = batch(20, 6)
    bias[2] = -INF
    balancer = HistogramBalancer(6, 2, 50, bias=bias)
    balancer.observe(logits)
    assert (balancer.histogram.sum(1) == 20).all()
    balancer.update()
    assert torch.isfinite(balancer.bias).all()


def test_any_split_into_micro_batches_counts_the_same() -> None:
    logits, bias = batch(97, 9)
    whole = HistogramBalancer(9, 3, bias=bias)
    whole.observe(logits)
    parts = HistogramBalancer(9, 3, bias=bias)
    for part in torch.split(logits, [1, 40, 0, 56]):
        parts.observe(part)
    assert torch.equal(whole.histogram, parts.histogram)
    whole.update()
    parts.update()
    assert torch.equal(whole.bias, parts.bias)


def test_evaluation_and_disabling_change_nothing() -> None:
    logits, bias = batch(30, 6)
    balancer = HistogramBalancer(6, 2, 40, bias=bias)
    balancer.observe(logits)
    before = {key: value.clone() for key, value in balancer.state_dict().items()}
    balancer.observe(logits, training=False)
    balancer.eval()
    balancer.observe(logits)
    balancer.enabled = False
    balancer.observe(logits, training=True)
    balancer.update()
    assert all(torch.equal(value, before[key]) for key, value in balancer.state_dict().items())
    balancer.enabled = True
    balancer.train()
    balancer.observe(logits)
    assert torch.equal(balancer.histogram, 2 * before["histogram"])


def test_all_experts_chosen_means_nothing_to_balance() -> None:
    logits, bias = batch(8, 3)
    balancer = HistogramBalancer(3, 3, bias=bias)
    assert balancer.observe(logits).cutoff is None
    balancer.update()
    assert torch.equal(balancer.bias, bias)
    assert not balancer.histogram.any()


# Reading the counts ----------------------------------------------------------------------------


def exact_quantile(counts: list[int], low: Fraction, width: Fraction, k: int, n: int) -> Fraction:
    q = Fraction(sum(counts) * k, n)
    before = 0
    for index, count in enumerate(counts):
        if before + count >= math.ceil(q):
            part = min(max((q - before) / count, Fraction(0)), Fraction(1))
            return low + (index + part) * width
        before += count
    raise AssertionError("the counts end before their own quantile")


@pytest.mark.parametrize("total", [1, 55, 56, 168, 1680, 2**24 + 1, 2**24 + 56, 2**31 + 168])
def test_ranks_are_exact_at_any_total(total: int) -> None:
    rng = np.random.default_rng(total % 1000)
    counts = np.zeros((896, 32), dtype=np.int64)
    for row in counts:
        cuts = np.sort(rng.integers(0, total + 1, 31))
        row[:] = np.diff(np.concatenate(([0], cuts, [total])))
        # The rank is reached exactly at the end of a bin, where an off-by-one rank moves on.
        rank = -(-total * 16 // 896)
        row[:] = [rank, 0, 0, total - rank, *[0] * 28] if rng.random() < 0.5 else row
    low, high = torch.tensor(-1.0), torch.tensor(1.0)
    got = histogram_quantile(torch.from_numpy(counts), low, high, 16)
    for j in range(896):
        want = exact_quantile(counts[j].tolist(), Fraction(-1), Fraction(1, 16), 16, 896)
        assert abs(float(got[j]) - want) < 1e-12


@pytest.mark.parametrize("bins", [2, 10, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_estimate_lies_within_a_bin_of_the_exact_statistic(seed: int, bins: int) -> None:
    logits, bias = (t.double() for t in batch(120, 8, seed, spread=2.0))
    balancer = HistogramBalancer(8, 3, bins, bias=bias, dtype=torch.float64)
    balancer.observe(logits)
    width = float(bias.max() - bias.min() + 2) / bins
    balancer.update()
    exact = quantile_update(logits, bias, top_k=3, statistic="q")
    difference = balancer.bias - exact
    assert float(difference.max() - difference.min()) <= 2 * width
    assert abs(float(balancer.bias.mean())) < 1e-15


def test_equals_the_reference_balancer_over_steps() -> None:
    ours = HistogramBalancer(9, 2, 200, dtype=torch.float64)
    theirs = reference.HistogramBalancer(9, 2, 200)
    for step in range(5):
        for part in range(2):
            logits = batch(40, 9, seed=10 * step + part)[0].double()
            ours.observe(logits)
            theirs.observe(logits.numpy())
        np.testing.assert_array_equal(ours.histogram.numpy(), theirs.histogram)
        ours.update()
        theirs.update()
        np.testing.assert_allclose(ours.bias.numpy(), theirs.bias, rtol=0, atol=1e-14)


def test_update_is_deferred_in_place_and_clears_the_counts() -> None:
    logits, bias = batch(64, 6)
    balancer = HistogramBalancer(6, 2, bias=bias)
    storage = balancer.bias
    for _ in range(2):
        balancer.observe(logits)
        assert torch.equal(storage, bias)
    balancer.update()
    assert balancer.bias is storage
    assert not torch.equal(storage, bias)
    assert not balancer.histogram.any()
    updated = storage.clone()
    balancer.update()
    assert torch.equal(balancer.bias, updated)


def test_balancing_evens_out_the_loads_of_a_batch() -> None:
    logits, _ = batch(1024, 32)
    balancer = HistogramBalancer(32, 4)
    loads = []
    for _ in range(8):
        ids = balancer.observe(logits).expert_ids
        loads.append(torch.bincount(ids.flatten(), minlength=32).max().item())
        balancer.update()
    assert loads[0] > 2 * 128
    assert loads[-1] <= 1.05 * 128


def test_the_reports_size() -> None:
    logits, _ = batch(512, 896)
    balancer = HistogramBalancer(896, 16)
    balancer.observe(logits)
    balancer.update()
    exact = quantile_update(logits, torch.zeros(896), top_k=16, statistic="q")
    difference = balancer.bias - exact
    assert float(difference.max() - difference.min()) <= 2 * 2 / 1000 + 1e-6


# State -----------------------------------------------------------------------------------------


def test_counts_are_exact_past_two_to_the_24_and_through_casts() -> None:
    balancer = HistogramBalancer(3, 1, 4)
    balancer.histogram.fill_(2**24 + 1)
    balancer.bias.copy_(torch.tensor([34.5, 34.5001, 34.5002]))
    before = balancer.bias.clone()
    balancer.to(torch.bfloat16)
    balancer.type(torch.float16)
    assert balancer.histogram.dtype == torch.int64
    assert balancer.bias.dtype == balancer.extremes.dtype == torch.float32
    assert torch.equal(balancer.bias, before)
    balancer.observe(torch.zeros(5, 3))
    assert (balancer.histogram.sum(1) == 4 * (2**24 + 1) + 5).all()


def test_pending_counts_survive_a_checkpoint() -> None:
    logits, bias = batch(30, 6)
    balancer = HistogramBalancer(6, 2, bias=bias)
    balancer.observe(logits)
    twin = HistogramBalancer(6, 2)
    twin.load_state_dict(balancer.state_dict())
    for one in (balancer, twin):
        one.observe(logits[:7])
        one.update()
    assert torch.equal(twin.bias, balancer.bias)
    assert set(balancer.state_dict()) == {"bias", "histogram", "extremes"}


def test_counts_keep_their_range_when_the_bias_changes_under_them() -> None:
    logits, bias = batch(30, 6)
    changed, kept = (HistogramBalancer(6, 2, bias=bias) for _ in range(2))
    changed.observe(logits)
    kept.observe(logits)
    changed.bias.copy_(torch.linspace(-5, 5, 6))
    changed.update()
    kept.update()
    assert torch.equal(changed.bias, kept.bias)


def test_a_state_without_extremes_reads_its_counts_over_its_own_bias() -> None:
    logits, bias = batch(30, 6)
    source, target = HistogramBalancer(6, 2, bias=bias), HistogramBalancer(6, 2, bias=bias + 1)
    source.observe(logits)
    target.observe(logits)
    state = {key: source.state_dict()[key] for key in ("bias", "histogram")}
    target.load_state_dict(state)
    source.update()
    target.update()
    assert torch.equal(source.bias, target.bias)


@pytest.mark.parametrize("missing", ["bias", "histogram"])
def test_a_state_without_bias_or_counts_is_refused(missing: str) -> None:
    state = HistogramBalancer(6, 2).state_dict()
    del state[missing]
    with pytest.raises(RuntimeError, match=missing):
        HistogramBalancer(6, 2).load_state_dict(state)


def test_repr_names_the_sizes() -> None:
    assert "6, top_k=2, num_bins=1000, enabled=True" in repr(HistogramBalancer(6, 2))
