"""Quantile Balancing: the exact update of Eq. 14 on one pooled batch.

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
    choices_for,
    require_centred,
    rounded,
    updated,
    valid_rows,
)
from properties.protocol import Array
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import balancing, ranks
from properties.strategies.balancing import BatchInputs, ShiftInputs
from properties.strategies.ranks import RankInputs
from properties.subject import Subject


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

    Hypotheses: finite logits and bias, 1 <= k <= n, any m; logits, bias and mask of any strides,
    negative ones included. With k = n there is no cutoff, and
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

    Legal freedoms: any point of the interval unless a rank is declared, and not necessarily the
    same point for all experts; any order of sums; ties and saturated scores fall as they round;
    alpha_i = s_ij + b_j for one expert of each token, so r = b_j there only up to rounding. Masked
    rows never count, where ``padding`` is "masked". An implementation may refuse k = n.

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
        choices = choices_for(subject, batch, subject.conventions.expert_rank)
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
    examples=48,
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
        require_centred(subject, actual, choices_for(subject, batch, "between"), "quantile_update")


@specification(
    "QB-SHIFT",
    source="Eq. 14",
    needs=("quantile_update",),
    examples=40,
    inputs=balancing.shifts(),
)
def test_qb_shift(subject: Subject, inputs: ShiftInputs) -> None:
    """Adding a constant to the old bias leaves the new one as it was.

    Hypotheses: k < n, a finite bias, at least one valid token, shifts from 1e-3 to 1000, less where
    a sum of N of them would exceed the routing format. Both updates round; b + c rounds, too, by
    half a unit in the last place of c.

    Source and proof: s + b + c has the cutoff alpha + c, so r moves by c, and b̂ with it; centring
    takes c away. A statistic of fixed ranks moves by no more than the r it is taken from.

    Legal freedoms: those of QB-VALUE. The two updates read the same ranks, since m, k and n are the
    same; but "between" may stop at any point of the interval, elsewhere after rounding, and is held
    to the interval of the update before the shift.

    If it fails: something looks at the absolute size of a bias: a clipped cutoff, a bias kept in
    bfloat16, a fixed range.
    """
    batch = rounded(subject, inputs.batch)
    if not valid_rows(batch).shape[0]:
        return
    shift = _centrable(subject, inputs.shift, batch.bias.shape[0])
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
    if subject.conventions.expert_rank == "between":
        choices = choices_for(subject, batch, "between")
        slip = float(radius_N.max())
        legal = [choice.widened(0.0, slip) for choice in choices]
        require_some_constant(subject, after, legal, "the update after a shift")
        return
    same = Allowed(before, before, radius_N, radius_N)
    require_some_constant(subject, after, [same], "the update after a shift")
    radius_N = radius_N + np.mean(radius_N) + means + one_rounding(after, arithmetic)
    within(subject, after, Ball(before, radius_N, arithmetic), "the update after a shift")


def _centrable(subject: Subject, shift: float, num_experts: int) -> float:
    """The shift, or the largest quarter of it whose sum over all experts the format holds."""
    while not np.isfinite(subject.round_to_routing(np.array(8.0 * num_experts * shift))):
        shift /= 4.0
    return float(subject.round_to_routing(np.array(shift)))


@specification(
    "QB-COUNT",
    source="App. C",
    needs=("quantile_update",),
    examples=50,
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
    examples=24,
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
        choices = choices_for(subject, batch, subject.conventions.expert_rank)
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
