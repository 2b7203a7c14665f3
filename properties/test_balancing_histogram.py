"""Quantile Balancing: the histogram of App. D, in one process.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = valid tokens, n = N,
q = m k / n the target load; r_ij = alpha_i - s_ij the required bias, alpha_i the cutoff of token i.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.judgement.balancing import (
    Allowed,
    Bins,
    exactly,
    require_some_constant,
)
from properties.judgement.balancing_bins import require_bins
from properties.judgement.balancing_ranks import require_same_statistic
from properties.judgement.balancing_runs import (
    choices_for,
    fresh_balancer,
    histogram_of,
    histogram_rule,
    micro_batches,
    number_of_bins,
    observed,
    require_centred,
    require_range,
    require_routed_by,
    require_totals,
    rounded,
    valid_rows,
)
from properties.registry import specification
from properties.strategies import balancing, ranks
from properties.strategies.balancing import BatchInputs, HistogramInputs
from properties.strategies.ranks import CountInputs
from properties.subject import Subject


@specification(
    "QB-RANK",
    source="App. D",
    needs=("balancer", "balancer.load_state_dict"),
    examples=30,
    inputs=ranks.counts(),
)
def test_qb_rank(subject: Subject, inputs: CountInputs) -> None:
    """The histogram reads the same statistic at every m with integral q, up to the largest counts.

    Counts are injected through ``load_state_dict``. Each expert has q - 1, q or q + 1 tokens up to
    bin a and the rest in a bin far above. All rules read a for q + 1 and the far bin for q - 1;
    for q the q-th smallest is in a, the (q+1)-th far above. What is read for q has to be the same
    at every m, within two bin widths, and in the declared bin where a rank is declared.

    Hypotheses: integral q from 1 to the first beyond 2^24 that no float32 holds; m < 2^31, so that
    an int32 holds the counts. Bias 0, so the range is [-1, 1]; at least 16 bins, of whatever number
    the implementation has.

    Source and proof: App. D reads the first bin whose cumulative count reaches ceil(q); q is an
    integer here. Computed otherwise than in integers of 64 bits, the rank is off for some m, by
    every formula in its own way: the float32 product m (k/n) exceeds q for 55.7 % of all q below
    2^24 with 16/896, first at m = 168; int32 products m k wrap from 2^31 on; float32 counts cannot
    tell 2^24 from 2^24 + 1. docs/rank-arithmetic.md has them all. Two of the loads of each case
    are such that one of these mistakes shows there.

    Legal freedoms: interpolation inside a bin, or none; any fixed point between the two statistics
    where no rank is declared. A bias that is subtracted has its histogram mirrored.

    If it fails: the rank depends on the batch size, or one part in 16 million tokens decides.
    """
    require_range(subject)
    require_same_statistic(subject, inputs)


@specification(
    "QB-RANK-SIZES",
    source="App. D",
    needs=("balancer", "balancer.load_state_dict"),
    examples=5,
    inputs=ranks.published_counts(),
)
def test_qb_rank_sizes(subject: Subject, inputs: tuple[CountInputs, ...]) -> None:
    """QB-RANK at the sizes of published models, wherever a known mistake shows.

    k/n = 6/64, 8/256, 8/384, 10/512, 22/512 and 16/896, all in every case: the least integral q,
    the last below 2^24, the first odd one beyond it, and for each of 16 wrong formulas a q below
    2^24 at which it does not give q, if there is any at that k/n.

    Hypotheses, source and legal freedoms: those of QB-RANK.

    How it is known which q those are: all of them were tried. With 8/256, 6/64, 22/512 and 10/512,
    float32 ratios are never wrong below 2^24, as k/n has few bits; 16/896 and 8/384 find them.

    If it fails: see QB-RANK; the message names k/n, q and m.
    """
    require_range(subject)
    for one in inputs:
        require_same_statistic(subject, one)


@specification(
    "QB-DEFER",
    source="Eq. 14, App. D",
    needs=("balancer",),
    examples=36,
    inputs=balancing.histograms((64,)),
)
def test_qb_defer(subject: Subject, inputs: HistogramInputs) -> None:
    """Observing never changes the bias that a batch is routed by: only ``update`` does.

    The bias is bit for bit what it was after each micro-batch; every micro-batch is routed by it,
    and so is, after the update, the first one by the new bias.

    Hypotheses: k < n, finite logits and bias, any masks, micro-batches without tokens included.

    Source: Eq. 14's bias acts on the next batch. A token that helped to choose the bias it is
    routed by sees the future of its batch, which is not there at inference.

    Legal freedoms: ids of scores that rounding may exchange.

    If it fails: training leaks information across tokens, and its loss cannot be reached at
    inference.
    """
    batch = rounded(subject, inputs.batch)
    balancer = fresh_balancer(subject, batch, inputs.num_bins)
    parts = micro_batches(batch, inputs.cuts)
    for part in parts:
        require_routed_by(subject, balancer, part, batch.bias)
    balancer.update()
    require_routed_by(subject, balancer, replace(parts[0], mask=None), balancer.bias)


@specification(
    "QB-HIST-TOTAL",
    source="App. D",
    needs=("balancer",),
    examples=48,
    inputs=balancing.histograms(),
)
def test_qb_hist_total(subject: Subject, inputs: HistogramInputs) -> None:
    """Each expert's bins sum to the number of valid tokens observed since the last update.

    Hypotheses: k < n, finite logits and bias, training, any masks and micro-batches. An
    implementation that keeps no histogram does not offer this.

    Source and proof: every valid token requires one bias of every expert, and the closed range
    holds them all: alpha_i is between min b and max b + 1.

    Legal freedoms: what bin a value at an edge falls in.

    If it fails: quantiles do not see it when all tokens are counted twice, so it stays hidden until
    something reads the counts; a value lost at the top edge moves one expert only.
    """
    batch = rounded(subject, inputs.batch)
    balancer = fresh_balancer(subject, batch, inputs.num_bins)
    parts, seen = micro_batches(batch, inputs.cuts), 0
    require_totals(balancer, 0, "before any batch")
    for part in parts:
        balancer.observe(part.logits, mask=part.mask)
        seen += valid_rows(part).shape[0]
        require_totals(balancer, seen, f"after {seen} valid tokens")
    balancer.update()
    require_totals(balancer, 0, "after the update")
    balancer.observe(parts[-1].logits, mask=parts[-1].mask)
    require_totals(balancer, valid_rows(parts[-1]).shape[0], "after the update and a batch")


@specification(
    "QB-HIST-BINS",
    source="App. D",
    needs=("balancer",),
    examples=40,
    inputs=balancing.histograms((64, 16, 3, 2)),
)
def test_qb_hist_bins(subject: Subject, inputs: HistogramInputs) -> None:
    """Bin t of expert j counts the tokens with r_ij in the t-th part of [min b - 1, max b + 1].

    Cumulative counts are held between those of the r that certainly and those that possibly lie
    below each inner edge.

    Hypotheses: sigmoid scores, k < n, finite logits and bias, B equal bins of the bias in force.

    Source: App. D. A shift of all bins by one changes no difference between experts, so that the
    bias does not show it.

    Legal freedoms: values within rounding of an edge fall to either side: with b = 0 and even B the
    many r that equal 0 are such. A bias that is subtracted has its histogram mirrored.

    If it fails: values near one end of the range share a bin that is not theirs, counts of ranks
    with another edge rule do not add up, and a bias that hits the range's end comes out wrong.
    """
    require_range(subject)
    batch, balancer = observed(subject, inputs)
    logits = valid_rows(batch)
    if not logits.shape[0] and balancer.histogram is None:
        logits = np.zeros((1, batch.bias.shape[0]))  # counts may be made for the first token
        balancer.observe(logits)
    require_bins(subject, histogram_of(balancer), logits, batch.bias, batch.top_k)


@specification(
    "QB-HIST-ERROR",
    source="App. D",
    needs=("balancer",),
    examples=100,
    inputs=balancing.histograms(),
)
def test_qb_hist_error(subject: Subject, inputs: HistogramInputs) -> None:
    """Some constant c puts every b_j + c within one bin width of the exact statistic's interval.

    So differences between experts are those of the exact update within two bin widths w, where
    w = (max b - min b + 2) / B. The interval and the declared ranks (``histogram_rank``) are those
    of QB-VALUE.

    Hypotheses: sigmoid scores, k < n, finite logits and bias, B >= 2, any micro-batches and masks;
    without valid tokens the bias keeps its differences.

    Source and proof: let r_1 <= r_2 <= … <= r_m be one expert's required biases, bin t be
    [e_t, e_t + w), the last one closed, C_t the count of bins 0 … t, and c = C_t - C_(t-1) that of
    bin t. Say rank p is read: from the first bin t with C_t >= p. C_(t-1) < p values lie below e_t,
    so r_p >= e_t; C_t >= p lie in bins up to t, so r_p < e_t + w (<= in the last bin). The estimate
    b̂ = e_t + f w, 0 <= f <= 1, lies in the same bin: |b̂ - r_p| <= w, wherever in it f is. Let q be
    integral, and f = (q - C_(t-1)) / c as in App. D.

    *The q-th*, p = q, which App. D reads. With C = C_(t-1) <= q - 1 and c <= m - C,
    1/(m - q + 1) <= (q - C)/(m - C) <= f <= 1: w (1/(m - q + 1) - 1) <= b̂ - r_q <= w. The upper end
    is reached by an r_q = e_t alone in its bin, the lower one by r_q = … = r_m at the end of the
    range; at other edges it is approached.

    *The (q+1)-th*, p = q + 1, read from the first bin whose count passes q. With C <= q and
    c >= q + 1 - C, 0 <= f <= (q - C)/(q + 1 - C) <= q/(q + 1): -w <= b̂ - r_(q+1) <=
    w (1 - 1/(q + 1)), both again reached.

    *One for the other* has no bound in w: where the q-th is read, b̂ - r_(q+1) is lower than
    b̂ - r_q by r_(q+1) - r_q, and with an edge between the two, b̂ = e_t + w <= r_(q+1), as f = 1.
    For small q that is many bins: with m = n = 4, k = 1, q = 1, scores 1, 0, 0, 0 of one token and
    0, 1, 1, 0 of the others, the first expert has r = -1, 1, 1, 1, and b̂ misses its (q+1)-th by
    B - 1 of the B bins. A histogram is therefore held to the rank it declares, and to the interval
    from r_q - w to r_(q+1) + w if it declares none.

    Two experts' errors may have opposite signs, so that a difference of biases errs by less than
    2w; more than 1.9 w occurs. Values near an edge may be counted beyond it, and the estimate is
    then off by that much more.

    Legal freedoms: those of QB-VALUE; interpolation inside the bin, its middle or its edge.

    If it fails: micro-batches are lost, the range does not hold all values, or the counts are read
    with another range than they were made with.
    """
    require_range(subject)
    batch, balancer = observed(subject, inputs)
    num_bins = number_of_bins(balancer, inputs)
    balancer.update()
    if valid_rows(batch).shape[0]:
        choices = _estimates(subject, batch, num_bins)
    else:
        choices = [exactly(batch.bias)]
    require_some_constant(subject, balancer.bias, choices, "the bias after update")


@specification(
    "QB-HIST-CENTRE",
    source="Eq. 14, App. D",
    needs=("balancer",),
    examples=40,
    inputs=balancing.histograms(),
)
def test_qb_hist_centre(subject: Subject, inputs: HistogramInputs) -> None:
    """After the balancer's update the mean of the bias is 0.

    Hypotheses: sigmoid scores, k < n, a finite old bias, at least one valid token. 0 within the
    rounding of a mean of n numbers as large as the estimates, and of n differences.

    Source: App. D ends with the centring of Eq. 14; see QB-CENTRE, also for what breaks.

    Legal freedoms: the sum in any order, in the routing format or a finer one.

    If it fails: each update moves the range of the next histogram along with the common offset.
    """
    require_range(subject)
    batch, balancer = observed(subject, inputs)
    if valid_rows(batch).shape[0]:
        choices = _estimates(subject, batch, number_of_bins(balancer, inputs))
        balancer.update()
        require_centred(subject, balancer.bias, choices, "the bias after update")


def _estimates(subject: Subject, batch: BatchInputs, num_bins: int) -> list[Allowed]:
    bins = Bins.of(batch.bias, num_bins, subject.routing_arithmetic())
    exact = choices_for(subject, batch, histogram_rule(subject))
    return [choice.widened(bins.width, bins.slip) for choice in exact]
