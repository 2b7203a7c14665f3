"""Legal updates pass the properties of one update, and the instances in their docstrings hold.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference_numpy as reference
from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Array, Conventions, Precision
from properties.reference import Reference
from properties.registry import find
from reference_numpy.balancing import bin_counts, histogram_range, histogram_statistic
from tests.mutants.balancing import ExactUpdate
from tests.mutants.histogram import Balanced, Histogram

PROPERTIES = (
    *("QB-SPAN", "QB-DIRECTION", "QB-SIGN", "QB-MONOTONE"),
    *("QB-NONEXPANSIVE", "QB-EQUIVARIANT", "QB-DUPLICATE"),
)


class Exact(ExactUpdate):
    """The exact update alone, with any statistic under any declaration."""

    balancer = None  # type: ignore[assignment]

    def __init__(self, statistic: Any, rank: Any) -> None:
        super().__init__()
        self.read = statistic
        self.conventions = Conventions(expert_rank=rank)

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        return reference.expert_statistic(r_MN, top_k, self.read)


class AnyPoint(Exact):
    """Another point of the interval at every call and for every expert: declares nothing."""

    def __init__(self) -> None:
        super().__init__("q", "between")
        self.rng = np.random.default_rng(1)

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        lower, upper = reference.quantile_interval(r_MN, top_k)
        return np.asarray(lower + self.rng.random(lower.shape) * (upper - lower))


class OwnPointPerExpert(Exact):
    """Each expert stops at its own share of the interval, the same one every time."""

    def __init__(self) -> None:
        super().__init__("linear", "interior")

    def statistic(self, r_MN: Array, top_k: int) -> Array:
        lower, upper = reference.quantile_interval(r_MN, top_k)
        if len(r_MN) * top_k % r_MN.shape[1]:
            return reference.expert_statistic(r_MN, top_k)
        return np.asarray(lower + np.linspace(0.3, 0.7, lower.size) * (upper - lower))


class Negated(Exact):
    """Experts are chosen by s - b."""

    def __init__(self) -> None:
        super().__init__("q", "q")
        self.conventions = Conventions(expert_rank="q", bias_sign=-1)

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        return -super().quantile_update(logits, -bias, **options)

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Any:
        return reference.route(logits, -bias, top_k=top_k)


class LogitScores(Exact):
    """The bias is added to logits; nothing but the update is offered."""

    route = route_vjp = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("linear", "interior")
        self.conventions = Conventions(expert_rank="interior", score_domain="logit")

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        mask, top_k = options.get("mask"), options["top_k"]
        valid = logits if mask is None else logits[mask]
        r_MN = reference.required_bias(valid, reference.cutoff(valid + bias, top_k))
        return self.finished(bias, self.statistic(r_MN, top_k))


class Float32(Reference):
    """NumPy in float32, without a mask or a histogram."""

    precision = Precision()
    conventions = Conventions(expert_rank="interior", padding="unsupported")
    balancer = None  # type: ignore[assignment]

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        s_MN = reference.scores(logits)
        r_MN = reference.required_bias(s_MN, reference.cutoff(s_MN + bias, options["top_k"]))
        estimate = reference.expert_statistic(r_MN, options["top_k"], "midpoint")
        return np.asarray(estimate - estimate.mean())


class Centres(Balanced):
    """Histograms alone, each estimate in the middle of its bin."""

    quantile_update = None  # type: ignore[assignment]


class UpperEdges(Balanced):
    """Histograms alone, each estimate at the upper edge of its bin."""

    quantile_update = None  # type: ignore[assignment]
    conventions = Conventions(histogram_rank="q")

    class balancer_class(Histogram):  # noqa: N801
        def finished(self, estimate: Array) -> Array:
            low, high = self.range()
            return super().finished(estimate + (high - low) / (2 * self.num_bins))


LEGAL = {
    "q-th": Exact("q", "q"),
    "(q+1)-th": Exact("q+1", "q+1"),
    "(q+1)-th, declares nothing": Exact("q+1", "between"),
    "midpoint": Exact("midpoint", "interior"),
    "any point": AnyPoint(),
    "own point per expert": OwnPointPerExpert(),
    "negated bias": Negated(),
    "logits as scores": LogitScores(),
    "float32": Float32(),
    "middle of the bin": Centres(),
    "upper edge of the bin": UpperEdges(),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_updates_pass(name: str) -> None:
    for property_id in PROPERTIES:
        outcome = judge(find(property_id), subject_of(LEGAL[name]), LANES["quick"])
        exact_only = "quantile_update" in find(property_id).needs
        expected = "not offered" if exact_only and "bin" in name else "passed"
        assert outcome.verdict == expected, f"{property_id}: {outcome.message}"


def test_nothing_is_judged_where_nothing_is_offered() -> None:
    class Neither(Balanced):
        quantile_update = balancer = None  # type: ignore[assignment]

    for property_id in ("QB-SPAN", "QB-SIGN"):
        outcome = judge(find(property_id), subject_of(Neither()), LANES["quick"])
        assert outcome.verdict == "not offered"


# What the docstrings say -----------------------------------------------------------------------


def required(scores: Any, bias: Any, top_k: int) -> Array:
    s_MN = np.array(scores, dtype=float)
    return np.asarray(reference.required_bias(s_MN, reference.cutoff(s_MN + bias, top_k)))


def test_different_points_of_the_interval_can_span_two() -> None:
    r_MN = required([[1, 0, 1], [0, 1, 0], [0, 1, 0]], np.array([9, 5, 0]), 1)
    lower, upper = reference.quantile_interval(r_MN, 1)
    assert sorted(r_MN[:, 0]) == sorted(r_MN[:, 2]) == [4, 6, 6]
    assert upper[0] - lower[2] == 2.0


def test_a_fractional_load_lets_an_overloaded_expert_rise_above_an_empty_one() -> None:
    scores, bias = np.array([[1.0, 0.0, 5.0], [3.0, 4.0, 2.0]]), np.array([-1.8, -1.9, 0.0])
    loads = np.bincount(reference.top_k_ids(scores + bias, 1).ravel(), minlength=3)
    assert loads.tolist() == [0, 1, 1]
    r_MN = required(scores, bias, 1)
    linear = reference.expert_statistic(r_MN, 1) - bias
    np.testing.assert_allclose(linear[:2], [0.8 / 3, 0.3])
    exact = reference.expert_statistic(r_MN, 1, "q") - bias
    assert exact[loads > 2 / 3].max() <= exact[loads < 2 / 3].min()


@pytest.mark.parametrize(("statistic", "stays"), [("linear", False), ("q", True)])
def test_repeating_the_batch_of_qb_fraction_moves_the_linear_quantile(
    statistic: Any, stays: bool
) -> None:
    logits = np.array([[2.0, -2.0, -2.0], [-5.0, 2.0, 2.0]])
    once, again = (
        reference.quantile_update(batch, np.zeros(3), top_k=2, statistic=statistic)
        for batch in (logits, np.tile(logits, (2, 1)))
    )
    assert np.allclose(once, again) == stays


@pytest.mark.parametrize(("statistic", "stays"), [("midpoint", False), ("q+1", False), ("q", True)])
def test_repeating_three_tokens_of_two_experts_moves_all_but_the_least_rank(
    statistic: Any, stays: bool
) -> None:
    r_MN = required([[0, 1], [3, 0], [0, 7]], np.zeros(2), 1)  # q = 3/2: ranks 2 and 3, then 3, 4
    once = reference.expert_statistic(r_MN, 1, statistic)
    again = reference.expert_statistic(np.tile(r_MN, (2, 1)), 1, statistic)
    assert np.array_equal(once, again) == stays


def test_only_a_cycle_of_three_tells_a_reversed_order() -> None:
    biases = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0]])

    def worst(updated: Array, cycle: tuple[int, ...]) -> int:
        edges = [(t, cycle[i - 1]) for i, t in enumerate(cycle)]
        growth = [np.max(updated[t] - updated[u]) - np.max(biases[t] - biases[u]) for t, u in edges]
        return int(sum(growth))

    pairs, threes = [(0, 1), (0, 2), (1, 2)], [(0, 1, 2), (0, 2, 1)]
    assert [worst(-biases, cycle) for cycle in pairs] == [0, 0, 0]
    assert [worst(-biases, cycle) for cycle in threes] == [-1, 1]
    assert [worst(biases, cycle) for cycle in threes] == [0, 0]


def test_interpolated_estimates_part_by_no_more_than_the_wider_bins() -> None:
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(1500):
        num_experts, top_k = ((3, 1), (4, 2), (5, 2), (4, 3))[rng.integers(4)]
        s_MN = rng.random((num_experts * int(rng.integers(1, 7)), num_experts))
        num_bins = int(rng.integers(2, 9))
        bias = rng.standard_normal(num_experts)
        biases = bias, bias + rng.standard_normal(num_experts) * rng.choice([0.1, 0.5])
        ranges = [histogram_range(b) for b in biases]
        first, second = (
            histogram_statistic(
                bin_counts(required(s_MN, b, top_k), low, high, num_bins), low, high, top_k
            )
            for b, (low, high) in zip(biases, ranges, strict=True)
        )
        growth = np.ptp(second - first) - np.ptp(biases[1] - biases[0])
        widest = max(high - low for low, high in ranges) / num_bins
        assert growth <= 2.0 * widest + 1e-12
        worst = max(worst, growth / widest)
    assert worst > 0.5
