"""QB-HIST-ERROR's bounds, by brute force in rationals: none is exceeded, and each is reached.

Values on a fine grid in few bins of width 1, in every multiset; k/n = q/m, so that q is integral.

Legend: M tokens, N routed experts, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import pytest
import torch

import reference_numpy as reference
from impl_torch.balancing import histogram_quantile
from reference_numpy.balancing import bin_counts, histogram_range, histogram_statistic

NUM_BINS = 3
FINE = 4  # places per bin

# A quotient below 1 and a sum below 4, rounded once each.
ROUNDED = 2.0**-54 + 2.0**-52


class Case(NamedTuple):
    """Ascending values, and the estimates that read the first bin to reach q, or to pass it."""

    values: tuple[Fraction, ...]
    reaching: Fraction
    passing: Fraction


def bin_of(value: Fraction) -> int:
    return min(int(value), NUM_BINS - 1)


def read(values: tuple[Fraction, ...], rank: int, load: int) -> Fraction:
    """Appendix D by its words: the first bin whose count reaches the rank, then q inside it."""
    before = 0
    for number in range(NUM_BINS):
        inside = sum(bin_of(value) == number for value in values)
        if before + inside >= rank:
            return number + Fraction(load - before, inside)
        before += inside
    raise AssertionError("there are fewer values than the rank")


@cache
def cases(tokens: int, load: int) -> tuple[Case, ...]:
    places = [Fraction(place, FINE) for place in range(NUM_BINS * FINE + 1)]
    return tuple(
        Case(values, read(values, load, load), read(values, load + 1, load))
        for values in combinations_with_replacement(places, tokens)
    )


SIZES = [(m, q) for m in (2, 3, 4) for q in range(1, m)] + [(5, 1), (5, 3)]
sizes = pytest.mark.parametrize(("tokens", "load"), SIZES)


@sizes
def test_the_qth_is_met_within_one_bin_and_both_ends_are_reached(tokens: int, load: int) -> None:
    errors = [case.reaching - case.values[load - 1] for case in cases(tokens, load)]
    assert max(errors) == 1
    assert min(errors) == Fraction(1, tokens - load + 1) - 1


@sizes
def test_below_the_end_of_the_range_the_lower_end_is_approached(tokens: int, load: int) -> None:
    errors = [
        case.reaching - case.values[load - 1]
        for case in cases(tokens, load)
        if case.values[load - 1] < NUM_BINS
    ]
    assert min(errors) == Fraction(1, tokens - load + 1) - 1 + Fraction(1, FINE)


@sizes
def test_the_next_is_met_within_one_bin_and_both_ends_are_reached(tokens: int, load: int) -> None:
    errors = [case.passing - case.values[load] for case in cases(tokens, load)]
    assert max(errors) == 1 - Fraction(1, load + 1)
    assert min(errors) == -1


@sizes
def test_one_for_the_other_misses_by_all_bins_but_one(tokens: int, load: int) -> None:
    """With an edge between the two statistics, the estimate is the end of the lower one's bin."""
    errors = []
    for case in cases(tokens, load):
        lower, upper = case.values[load - 1 : load + 1]
        errors.append(case.reaching - upper)
        if bin_of(lower) < bin_of(upper):
            assert case.reaching == bin_of(lower) + 1 <= upper
    assert min(errors) == 1 - NUM_BINS
    assert max(errors) <= 1


@sizes
def test_both_implementations_read_what_the_words_say(tokens: int, load: int) -> None:
    for case in cases(tokens, load)[::17]:
        r_MN = np.repeat(np.array(case.values, dtype=float)[:, None], tokens, axis=1)
        counts_NB = bin_counts(r_MN, 0.0, float(NUM_BINS), NUM_BINS)
        ours = histogram_statistic(counts_NB, 0.0, float(NUM_BINS), load)
        ends = torch.tensor(0.0), torch.tensor(float(NUM_BINS))
        torchs = histogram_quantile(torch.from_numpy(counts_NB), *ends, load).numpy()
        for got in (ours, torchs):
            assert np.abs(got - float(case.reaching)).max() <= ROUNDED


# With scores that exist ----------------------------------------------------------------------


def test_a_scored_instance_misses_the_next_by_all_bins_but_one() -> None:
    """The instance of the docstring; logits of 1e4 have scores of exactly 0 and 1."""
    logits = np.where([[1, 0, 0, 0], *[[0, 1, 1, 0]] * 3], 1e4, -1e4)
    balancer = reference.HistogramBalancer(4, 1)
    balancer.observe(logits)
    low, high = histogram_range(balancer.bias)
    width = (high - low) / balancer.num_bins
    estimate = histogram_statistic(balancer.histogram, low, high, 1)[0]
    s_MN = reference.scores(logits)
    r_MN = reference.required_bias(s_MN, reference.cutoff(s_MN, 1))
    assert sorted(r_MN[:, 0]) == [-1, 1, 1, 1]
    assert (estimate, 1 - estimate) == pytest.approx((-1 + width, 999 * width), abs=1e-12)


def test_a_difference_of_biases_errs_by_nearly_two_bins() -> None:
    """Expert 0's q-th is just past an edge and alone, expert 1's first of 49 just short of one.

    Experts 2 and 3 score 1/2, so that the cutoff of a top-1 is 1/2 and r = 1/2 - s is free.
    """
    tokens, load, num_bins, slip = 64, 16, 64, 1e-6
    width = 2.0 / num_bins
    alone, crowded = 0.25 + slip, 0.25 + width - slip
    r_MN = np.zeros((tokens, 4))
    r_MN[:, 0] = np.where(np.arange(tokens) < load, alone, 0.45)
    r_MN[: load - 1, 0] = 0.01
    r_MN[:, 1] = crowded
    r_MN[: load - 1, 1] = 0.01
    scores = 0.5 - r_MN
    logits = np.log(scores / (1.0 - scores))
    balancer = reference.HistogramBalancer(4, 1, num_bins)
    balancer.observe(logits)
    balancer.update()
    exact = reference.quantile_update(logits, np.zeros(4), top_k=1, statistic="q")
    error = (balancer.bias[0] - balancer.bias[1]) - (exact[0] - exact[1])
    assert 1.9 * width < error < 2.0 * width
    assert error == pytest.approx((2.0 - 1.0 / 49) * width - 2.0 * slip, abs=1e-12)
