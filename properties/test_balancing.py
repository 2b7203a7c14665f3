"""Quantile Balancing: the exact update of Eq. 14, and the histogram of App. D in one process.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = valid tokens, n = N,
q = m k / n the target load; r_ij = alpha_i - s_ij the required bias, alpha_i the cutoff of token i.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import reference_numpy as reference
from properties.checks import note_figure, require, within
from properties.errors import ViolationError
from properties.judgement.balancing import (
    Allowed,
    Bins,
    allowed,
    exactly,
    interpolation_rounding,
    mean_rounding,
    one_rounding,
    rank_rounding,
    readings,
    require_some_constant,
    required_biases,
)
from properties.judgement.balancing_runs import (
    ascending,
    fresh_balancer,
    histogram_of,
    histogram_rule,
    micro_batches,
    number_of_bins,
    observed,
    read_counts,
    require_range,
    require_routed_by,
    require_totals,
    rounded,
    updated,
    valid_rows,
)
from properties.protocol import Array
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import balancing, ranks
from properties.strategies.balancing import BatchInputs, HistogramInputs, ShiftInputs
from properties.strategies.ranks import CountInputs, RankInputs
from properties.subject import Subject

# The exact update ----------------------------------------------------------------------------


@specification(
    "QB-VALUE",
    source="Eq. 14",
    needs=("quantile_update",),
    examples=200,
    inputs=balancing.all_batches(),
)
def test_qb_value(subject: Subject, inputs: BatchInputs) -> None:
    """Some constant c puts every b_j + c between the q-th and the (q+1)-th smallest r_:,j.

    r_ij = alpha_i - s_ij is taken under the old bias, alpha_i being the (k+1)-th largest s_i + b.
    A declared rank is held to it: the q-th exactly for "q", the (q+1)-th for "q+1"; "interior"
    stays off both ends by at least half of min(k/n, 1 - k/n) of the gap between them.

    Hypotheses: finite logits and bias, 1 <= k <= n, any m. With k = n there is no cutoff, and
    without valid tokens no quantile: the new bias is then the old one, up to a constant.
    For fractional q the rules the sources name part ways, and the interval is the hull of what
    they read: from the last rank below the linear quantile's, q + 1 - k/n, to the
    (ceil(q) + 1)-th. It does *not* start at the ceil(q)-th: where frac(q) < k/n the literal
    Eq. 14 lies below that (QB-FRACTION). "q" means the ceil(q)-th then, the one minimiser of the
    dual; "q+1" the ceil(q)-th ("first count above q") or the one after it.

    Source and proof: the dual of App. C, as a function of beta_j = -b_j, has the slope
    q - #{r_:,j < b_j} where it is smooth; it is least between the two order statistics. An order
    statistic of numbers within their radii lies between those of the lower and upper ends.
    Centring shifts all experts alike, so only differences are compared: the c that exists is the
    mean that was taken away, however it was rounded.

    Legal freedoms: any point of the interval unless a rank is declared, the same rule for all
    experts; any order of sums; ties and saturated scores fall as they round; alpha_i = s_ij + b_j
    for one expert of each token, so r = b_j there only up to rounding. Masked rows never count,
    where ``padding`` is "masked". An implementation may refuse k = n.

    If it fails: the update converges to the wrong loads, or not at all. Balanced loads barely show
    it: the k-th score in place of the (k+1)-th leaves loads of 35, 31, 31, 31 against 32.
    """
    batch = rounded(subject, inputs)
    try:
        actual = updated(subject, batch)
    except ViolationError as error:
        if batch.top_k < batch.bias.shape[0] or error.__cause__ is None:
            raise
        return
    if batch.top_k == batch.bias.shape[0] or not valid_rows(batch).shape[0]:
        choices = [exactly(batch.bias)]
    else:
        choices = _choices(subject, batch, subject.conventions.expert_rank)
    require_some_constant(subject, actual, choices, "quantile_update")


@specification("QB-FRACTION", kind="counterexample", source="Eq. 14, App. C")
def test_qb_fraction(subject: Subject) -> None:
    """For fractional q, Eq. 14's linear quantile can lie below the ceil(q)-th smallest r.

    m = 2, n = 3, k = 2, b = 0: q = 4/3, and the quantile's rank is q + 1 - k/n = 5/3, short of
    ceil(q) = 2. No constant c puts the result into [ceil(q)-th, (ceil(q) + 1)-th]: the excess is
    0.0375. Nor does it minimise the dual of App. C at the cutoffs in force: whatever the constant,
    the objective stays 0.025 above its least value, which the ceil(q)-th statistics reach.

    Source and proof: with frac(q) < k/n, q + 1 - k/n < floor(q) + 1 = ceil(q). Nothing smaller
    exists: 0 < frac(m k/n) < k/n rules out k = 1, with it n = 2, and m = 1.

    If it fails: the reference no longer reads Eq. 14 literally, or the statement of QB-VALUE for
    fractional q can be made sharper.
    """
    del subject
    logits, top_k = np.array([[2.0, -2.0, -2.0], [-5.0, 2.0, 2.0]]), 2
    scores = reference.scores(logits)
    r_MN = reference.required_bias(scores, reference.cutoff(scores, top_k))
    lower, upper = reference.quantile_interval(r_MN, top_k)
    linear = reference.quantile_update(logits, np.zeros(3), top_k=top_k, statistic="linear")
    excess = np.max(lower - linear) - np.min(upper - linear)
    require(0.037 < excess < 0.038, f"the linear quantile is outside by {excess}, not 0.0375")

    def objective(b_N: Array) -> float:
        """The part of the dual that depends on b, at these cutoffs: the rest is k sum(alpha)."""
        return float(np.maximum(b_N - r_MN, 0.0).sum() - 4.0 / 3.0 * b_N.sum())

    constants = (r_MN - linear).ravel()  # convex and piecewise linear in c: least at a corner
    worse = min(objective(linear + c) for c in constants) - objective(lower)
    require(0.0249 < worse < 0.0251, f"the dual is above its least value by {worse}, not 0.025")


@specification(
    "QB-CENTRE",
    source="Eq. 14",
    needs=("quantile_update",),
    examples=100,
    inputs=balancing.batches(),
)
def test_qb_centre(subject: Subject, inputs: BatchInputs) -> None:
    """After an update the mean of the bias is 0.

    Hypotheses: k < n, a finite old bias, whatever its offset, at least one valid token. 0 within
    the rounding of a mean of n numbers as large as the statistics, and of n differences.

    Source: Eq. 14, b = b̂ - mean(b̂). Adding a constant to b changes no selection, so nothing else
    notices when it is left out.

    Legal freedoms: the sum in any order, in the routing format or a finer one.

    If it fails: the common offset grows from step to step, and a float32 bias near 100 resolves
    scores to 1e-5 only; a bfloat16 one to 0.5.
    """
    batch = rounded(subject, inputs)
    if valid_rows(batch).shape[0]:
        actual = updated(subject, batch)
        _require_centred(subject, actual, _choices(subject, batch, "between"), "quantile_update")


@specification(
    "QB-SHIFT",
    source="Eq. 14",
    needs=("quantile_update",),
    examples=80,
    inputs=balancing.shifts(),
)
def test_qb_shift(subject: Subject, inputs: ShiftInputs) -> None:
    """Adding a constant to the old bias leaves the new one as it was.

    Hypotheses: k < n, a finite bias, at least one valid token, shifts from 1e-3 to 1000. Both
    updates round; b + c rounds, too, by half a unit in the last place of c.

    Source and proof: s + b + c has the cutoff alpha + c, so r moves by c, and b̂ with it; centring
    takes c away. A statistic of fixed ranks moves by no more than the r it is taken from.

    Legal freedoms: those of QB-VALUE. The two updates read the same ranks, since m, k and n are the
    same.

    If it fails: something looks at the absolute size of a bias: a clipped cutoff, a bias kept in
    bfloat16, a fixed range.
    """
    batch = rounded(subject, inputs.batch)
    if not valid_rows(batch).shape[0]:
        return
    shift = float(subject.round_to_routing(np.array(inputs.shift)))
    moved = replace(batch, bias=subject.round_to_routing(batch.bias + shift))
    before, after = updated(subject, batch), updated(subject, moved)
    slip = np.abs(moved.bias - shift - batch.bias).max()
    arithmetic = subject.routing_arithmetic()
    radius_N, means = np.full(batch.bias.shape, slip), 0.0
    for one in (batch, moved):
        r_MN = required_biases(subject, valid_rows(one), one.bias, one.top_k)
        sizes_N = (np.abs(r_MN.value) + r_MN.radius).max(axis=0)
        radius_N += r_MN.radius.max(axis=0) + interpolation_rounding(sizes_N, arithmetic)
        means += mean_rounding(sizes_N, arithmetic)
    radius_N += one_rounding(before, arithmetic)
    same = Allowed(before, before, radius_N, radius_N)
    require_some_constant(subject, after, [same], "the update after a shift")
    radius_N = radius_N + np.mean(radius_N) + means + one_rounding(after, arithmetic)
    within(subject, after, Ball(before, radius_N, arithmetic), "the update after a shift")


@specification(
    "QB-COUNT",
    source="App. C",
    needs=("quantile_update",),
    examples=100,
    inputs=balancing.batches(),
)
def test_qb_count(subject: Subject, inputs: BatchInputs) -> None:
    """Some constant c makes #{r_:,j < b_j + c} <= q and #{r_:,j <= b_j + c} >= q for every expert.

    In words: with the cutoffs as they were, the new bias gives every expert q tokens, up to those
    exactly at the cutoff. Counted, not sorted: the least c that reaches enough tokens everywhere
    is found by bisection, as counts only grow with c; it must not pass too many anywhere.

    Hypotheses: k < n, finite logits and bias, at least one valid token, integral q. For fractional
    q the counts are held to ceil(q) and to the last rank below q + 1 - k/n (see QB-VALUE).

    Source and proof: both hold exactly where 0 is a subgradient of the dual of App. C in beta_j.
    It is no statement about loads after the update: alpha is itself a biased score, so about m/n
    tokens per expert sit exactly at its old bias and fall to either side in floating point.

    Legal freedoms: those of QB-VALUE, whatever rank is declared.

    If it fails: loads are driven to something other than q.
    """
    batch = rounded(subject, inputs)
    if not valid_rows(batch).shape[0]:
        return
    actual = updated(subject, batch)
    r_MN = required_biases(subject, valid_rows(batch), batch.bias, batch.top_k)
    tokens, num_experts = r_MN.shape
    sizes_N = np.abs(r_MN.value).max(axis=0)
    arithmetic = subject.routing_arithmetic()
    slip_N = one_rounding(actual, arithmetic) + interpolation_rounding(sizes_N, arithmetic)
    reading = readings("between", tokens, batch.top_k, num_experts)[0]
    reached_at_MN = r_MN.value - r_MN.radius - slip_N - actual
    constant = _least_reaching(reached_at_MN, reading.low)
    passed_N = (r_MN.value + r_MN.radius + slip_N - actual < constant).sum(axis=0)
    worst = int(np.argmax(passed_N))
    require(
        passed_N[worst] <= reading.high - 1,
        f"when every expert reaches {reading.low} tokens, expert {worst} is past "
        f"{passed_N[worst]}, more than {reading.high - 1}",
    )


@specification(
    "QB-RANK-EXACT",
    source="Eq. 14, App. C",
    needs=("quantile_update",),
    examples=40,
    inputs=ranks.batches(),
)
def test_qb_rank_exact(subject: Subject, inputs: RankInputs) -> None:
    """The exact update reads the same statistic at every m with integral q.

    Scores take two values: some experts are wanted by exactly q tokens, one by q - 1, some by all.
    So the q-th and the (q+1)-th smallest r of the first lie a whole gap apart, and where the new
    bias stands in the gap tells the rank that was read. It has to be the same place for every m,
    and the declared one where a rank is declared.

    Hypotheses: integral q, k/n not dyadic (16/896 = 1/56, 6/160, 8/60, …), m up to some 600.

    Source and proof: m k/n is an integer, but float32(m) float32(k/n) may exceed it, and its
    ceiling is then q + 1: with 1/56 first at m = 168, at 56 % of all m. Sizes that are powers of
    two never show it.

    Legal freedoms: any statistic between the two, with a fixed share of the gap, up to what
    rounding the rank (m - 1)(1 - k/n) of a linear quantile changes.

    If it fails: which corner of the optimal interval is taken flips with the batch size, and with
    it whether balancing reaches the optimum at all.
    """
    met = np.flatnonzero(inputs.surplus == 0)
    always = int(np.flatnonzero(inputs.surplus == 1)[0])
    arithmetic = subject.routing_arithmetic()
    places, radii = [], []
    for load in inputs.loads:
        logits, bias = inputs.logits(load), np.zeros(inputs.num_experts)
        batch = rounded(subject, BatchInputs(logits, bias, inputs.top_k))
        actual = updated(subject, batch)
        choices = _choices(subject, batch, subject.conventions.expert_rank)
        require_some_constant(subject, actual, choices, f"quantile_update at q = {load}")
        between = allowed(
            required_biases(subject, batch.logits, bias, inputs.top_k),
            readings("between", inputs.tokens(load), inputs.top_k, inputs.num_experts)[0],
        )
        gap = (between.high - between.low)[met]
        slip = rank_rounding(inputs.tokens(load), inputs.top_k, inputs.num_experts, arithmetic)
        reach_N = between.below + between.above + one_rounding(actual, arithmetic)
        places.append(actual[met] - actual[always])
        radii.append(reach_N[met] + reach_N[always] + slip * gap)
        note_figure(subject, "place between the q-th and the (q+1)-th", places[-1][0] / gap[0])
    within(
        subject,
        places[1],
        Ball(places[0], radii[0] + radii[1], arithmetic),
        f"the place read at q = {inputs.loads[1]}, compared with q = {inputs.loads[0]}",
    )


# The histogram -------------------------------------------------------------------------------


@specification(
    "QB-RANK",
    source="App. D",
    needs=("balancer", "balancer.load_state_dict"),
    examples=60,
    inputs=ranks.counts(),
)
def test_qb_rank(subject: Subject, inputs: CountInputs) -> None:
    """The histogram reads the same statistic at every m with integral q, up to the largest counts.

    Counts are injected through ``load_state_dict``. Each expert has q - 1, q or q + 1 tokens up to
    bin a and the rest in a bin far above. All rules read a for q + 1 and the far bin for q - 1;
    for q the q-th smallest is in a, the (q+1)-th far above. What is read for q has to be the same
    at every m, within two bin widths, and in the declared bin where a rank is declared.

    Hypotheses: integral q, k/n not dyadic, m k < 2^31, so that int32 arithmetic is exact; q = 1 up
    to q > 2^24, where a float32 count stands still. Bias 0, so the range is [-1, 1].

    Source and proof: App. D reads the first bin whose cumulative count reaches ceil(q); q is an
    integer here. A float32 product m k/n passes q for 56 % of all m with 16/896 = 1/56, first at
    m = 168; float32 counts cannot tell 2^24 from 2^24 + 1.

    Legal freedoms: interpolation inside a bin, or none; any fixed point between the two statistics
    where no rank is declared. A bias that is subtracted has its histogram mirrored.

    If it fails: the rank depends on the batch size, or one part in 16 million tokens decides.
    """
    require_range(subject)
    surplus, rule = inputs.experts.surplus, histogram_rule(subject)
    arithmetic = subject.routing_arithmetic()
    bins = Bins.of(np.zeros(inputs.experts.num_experts), inputs.num_bins, arithmetic)
    met = int(np.flatnonzero(surplus == 0)[0])
    more = int(np.flatnonzero(surplus == 1)[0])
    place, first_load = None, inputs.experts.loads[0]
    for load in inputs.experts.loads:
        actual = read_counts(subject, inputs, load)
        what = f"the update at q = {load}, m = {inputs.experts.tokens(load)}"
        require_some_constant(subject, actual, _bins_read(inputs, bins, rule), what)
        here = actual[met] - actual[more]
        note_figure(subject, "bins from the q-th read", here / bins.width)
        place = here if place is None else place
        reach = 2.0 * (bins.width + bins.slip + one_rounding(actual[[met, more]], arithmetic).sum())
        require(
            abs(here - place) <= reach,
            f"{what} reads {(here - place) / bins.width:.3g} bins from where it reads at "
            f"q = {first_load}: not the same statistic",
        )


@specification(
    "QB-DEFER",
    source="Eq. 14, App. D",
    needs=("balancer",),
    examples=60,
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
    examples=60,
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
    examples=60,
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
    counts_NB = ascending(subject, histogram_of(balancer))
    r_MN = required_biases(subject, valid_rows(batch), batch.bias, batch.top_k)
    bins = Bins.of(batch.bias, counts_NB.shape[1], subject.routing_arithmetic())
    edges = bins.low + bins.width * np.arange(1, counts_NB.shape[1])
    reach_MN = r_MN.radius + bins.slip
    for expert, cumulative in enumerate(np.cumsum(counts_NB, axis=1)[:, :-1]):
        value, reach = r_MN.value[:, expert], reach_MN[:, expert]
        least = np.searchsorted(np.sort(value + reach), edges, side="left")
        most = np.searchsorted(np.sort(value - reach), edges, side="right")
        wrong = np.flatnonzero((cumulative < least) | (cumulative > most))
        if wrong.size:
            bin_ = int(wrong[0])
            raise ViolationError(
                f"expert {expert} has {cumulative[bin_]} tokens in its first {bin_ + 1} bins, but "
                f"between {least[bin_]} and {most[bin_]} of its required biases lie below "
                f"{edges[bin_]!s}"
            )


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

    Source and proof: the value of the rank that is read lies in the bin where the cumulative count
    passes it, and so does the estimate, wherever in the bin it is put. Values near an edge may be
    counted beyond it, and the estimate is then off by that much more.

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
    examples=60,
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
        _require_centred(subject, balancer.bias, choices, "the bias after update")


# What the properties share -------------------------------------------------------------------


def _choices(subject: Subject, batch: BatchInputs, rule: str) -> list[Allowed]:
    r_MN = required_biases(subject, valid_rows(batch), batch.bias, batch.top_k)
    tokens, num_experts = r_MN.shape
    return [allowed(r_MN, r) for r in readings(rule, tokens, batch.top_k, num_experts)]


def _estimates(subject: Subject, batch: BatchInputs, num_bins: int) -> list[Allowed]:
    bins = Bins.of(batch.bias, num_bins, subject.routing_arithmetic())
    exact = _choices(subject, batch, histogram_rule(subject))
    return [choice.widened(bins.width, bins.slip) for choice in exact]


def _require_centred(subject: Subject, actual: Array, choices: list[Allowed], what: str) -> None:
    arithmetic = subject.routing_arithmetic()
    size_N = np.max([choice.size for choice in choices], axis=0)
    radius = mean_rounding(size_N, arithmetic) + np.mean(one_rounding(actual, arithmetic))
    within(subject, np.array(actual.mean()), Ball(0.0, radius, arithmetic), f"the mean of {what}")


def _least_reaching(reached_at_MN: Array, tokens: int) -> float:
    """The least c at which every column has that many values <= c."""
    candidates = np.unique(reached_at_MN)
    low, high = 0, candidates.size - 1
    while low < high:
        middle = (low + high) // 2
        if ((reached_at_MN <= candidates[middle]).sum(axis=0) >= tokens).all():
            high = middle
        else:
            low = middle + 1
    return float(candidates[low])


def _bins_read(inputs: CountInputs, bins: Bins, rule: str) -> list[Allowed]:
    """The bins where a rule may find each expert's statistic: near, far, or one to the other."""
    surplus = inputs.experts.surplus
    first = np.where(surplus > 0, inputs.near, inputs.far)
    last = first.copy()
    met = surplus == 0
    first[met] = inputs.far if rule == "q+1" else inputs.near
    last[met] = inputs.near if rule == "q" else inputs.far
    slip = np.full(surplus.shape, bins.slip)
    return [Allowed(bins.low + first * bins.width, bins.low + (last + 1) * bins.width, slip, slip)]
