"""Quantile Balancing: one update as a map of the bias, and as a step on the dual of App. C.

For a fixed batch let G(b) be the uncentred update, b̂_j = a statistic of fixed ranks of the required
biases r_:,j, with r_ij = alpha_i - s_ij and alpha_i the (k+1)-th largest s_i + b. Most of what is
stated here follows from three facts, each evident for an order statistic with fixed weights:

    (a) larger numbers never have a smaller statistic;
    (b) adding a constant to all numbers adds it to their statistic;
    (c) the order in which they are listed does not matter.

An implementation shows b = G(b) - mean G(b) only, so the statements are about differences. It may
offer the exact update, the histogram of App. D, or both: what is offered is judged. In a histogram
every estimate may be off by a bin width, w = (max b - min b + 2) / B, to either side.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = valid tokens, n = N,
q = m k / n the target load.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import reference_numpy as reference
from properties.judgement.balancing import require_some_constant
from properties.judgement.balancing_loads import (
    loads_of,
    on_own_side,
    require_least,
    require_subgradient,
)
from properties.judgement.balancing_runs import valid_rows
from properties.judgement.balancing_update import (
    paths,
    prepared,
    require_common_order,
    require_growth,
    require_ordered,
    require_same,
    require_span,
    tokens_and_load,
)
from properties.registry import specification
from properties.strategies import balancing_update
from properties.strategies.balancing_update import UpdateInputs
from properties.subject import Subject
from reference_numpy.balancing import Statistic

STATISTICS: tuple[Statistic, ...] = ("q", "q+1", "midpoint", "linear")


@specification(
    "QB-SPAN",
    source="Eq. 14, App. D",
    any_of=("quantile_update", "balancer"),
    examples=48,
    inputs=balancing_update.updates(),
)
def test_qb_span(subject: Subject, inputs: UpdateInputs) -> None:
    """After an update max b - min b is at most the largest difference between two scores of one
    token; on sigmoid scores, at most 1. A histogram's may be larger by 2 w.

    Hypotheses: k < n, finite logits and bias, a valid token, any m; the same statistic for all
    experts. The old bias may have any spread, also beyond 1.

    Proof: r_ij - r_il = s_il - s_ij, whatever the cutoffs are. If this is at most d for all valid
    tokens, then r_:,j <= r_:,l + d, and by (a) and (b) b̂_j <= b̂_l + d. Sigmoids lie in [0, 1]. An
    estimate lies within w of the statistic.

    What fails without them: scores outside [0, 1], such as logits, have the first bound only.
    Where no rank is declared, two experts may stop at different points, and the smaller of their
    intervals has to be granted: s = [[1,0,1],[0,1,0],[0,1,0]], b = (9,5,0), k = 1 has q = 1 and
    r = 4, 6, 6 for the first and the last expert alike, whose biases may then differ by 2.

    Legal freedoms: those of QB-VALUE, and any way to count and interpolate inside a bin.

    How it is checked: all pairs of experts, each with the radius of its statistic.

    If it fails: the new bias contains the old one (b += b̂, a damped step from far off, r computed
    from biased scores), so a spread that has grown once never goes away. The histogram's range,
    and with it w, grows with the spread.
    """
    batch, _ = prepared(subject, inputs)
    scores_MN = valid_rows(batch)
    if subject.conventions.score_domain == "sigmoid":
        scores_MN = reference.scores(scores_MN)
    most = float(np.ptp(scores_MN, axis=1).max())
    for path in paths(subject, inputs.num_bins):
        require_span(subject, path(batch), most)


@specification(
    "QB-DIRECTION",
    source="Eq. 14, App. C",
    any_of=("quantile_update", "balancer"),
    examples=40,
    inputs=balancing_update.updates(),
)
def test_qb_direction(subject: Subject, inputs: UpdateInputs) -> None:
    """Overloaded experts go down and underloaded ones up: the largest change of the bias among
    experts loaded above q is at most the smallest change among those below q, in a histogram + 2 w.

    More exactly, some constant c (the mean that centring takes away) puts b_new + c at or below
    b_old for every expert loaded above q, and at or above it for every one loaded below q.

    Hypotheses: k < n, finite logits and bias, a valid token, an integer q. The loads are those of
    any top-k of s + b, ties broken in any way: the subject's own router's, where it offers one.

    Proof: an expert's tokens have s_ij + b_j >= alpha_i, so r_ij <= b_j; all others have
    r_ij >= b_j, as alpha_i is the largest s_i + b that is not chosen. A load of at least q + 1 thus
    puts the (q+1)-th smallest r_:,j at or below b_j, and a load of at most q - 1 leaves at least
    m - q + 1 of them at or above b_j, the q-th smallest included. What is read lies between.

    What fails without them: for a fractional q "above q" means above the highest rank that the
    rule reads, "below q" below the lowest. For the ceil(q)-th statistic, App. D's, both come to the
    same, and nothing changes. For Eq. 14's linear quantile, of rank q + 1 - k/n, they do not:
    s = [[1,0,5],[3,4,2]], b = (-1.8,-1.9,0), k = 1 has q = 2/3 and loads 0, 1, 1. Its second expert
    rises by 0.3 before centring, its first one, without a token, by 0.27 only.

    Legal freedoms: those of QB-VALUE; nothing is said about experts loaded exactly q.

    How it is checked: the interval of constants that each over- or underloaded expert admits, with
    two radii for the router's ties and the radius of the statistic.

    If it fails: loads diverge. A flipped sign does this, or the k/n-quantile of s - alpha in place
    of the (1 - k/n)-quantile.
    """
    batch, _ = prepared(subject, inputs)
    loads_N, _ = loads_of(subject, batch)
    for path in paths(subject, inputs.num_bins):
        landing = path(batch)
        sides = on_own_side(subject, batch, path, landing, loads_N)
        require_some_constant(subject, landing.bias, sides, f"the direction of {landing.what}")


@specification(
    "QB-SIGN",
    source="App. C; DeepSeek-V3, arXiv 2412.19437, Sec. 2.1.2",
    needs=("quantile_update",),
    examples=36,
    inputs=balancing_update.updates(integral=True),
)
def test_qb_sign(subject: Subject, inputs: UpdateInputs) -> None:
    """DeepSeek-V3's step b += u sign(q - L) is minus the sign of a subgradient of the dual of
    App. C; Quantile Balancing lands where the dual's subgradient in every b_j contains 0.

    Two duals are meant. (i) With the token multipliers at their best, D(b) = sum_i (sum of the k
    largest s_i + b) - q sum b: there L - q is a subgradient, L being the loads of any top-k choice.
    (ii) With the cutoffs alpha as they are in force, sum max(0, b_j - r_ij) - q sum b, up to what
    does not depend on b: there 0 lies in [#{r_:,j < b̂_j} - q, #{r_:,j <= b̂_j} - q].

    Hypotheses: k < n, finite logits and bias, a valid token, ties of any kind. (i) holds for all q;
    (ii) for an integer q and any point of the interval, for a fractional one for the ceil(q)-th
    statistic alone.

    Proof: (i) D is a maximum over choices T of the affine sum_T (s + b) - q sum b, whose gradient
    is L - q; one that attains the maximum gives D(b') >= D(b) + <L - q, b' - b>. (ii) The slope
    in b_j is q less than the number of r_ij below b_j; it changes sign between the q-th and the
    (q+1)-th. Together with D(b̂) <= D(b), as both blocks are minimised in turn: <q - L, b̂ - b> >=
    D(b) - D(b̂) >= 0, so both steps are on the same side. sum (q - L) = 0: centring does not matter.

    What fails without them: with loads of anything but a top-k of s + b, L - q need not be a
    subgradient; in a fractional q the slope passes 0 inside a jump, at one number.

    Legal freedoms: those of QB-VALUE, and any selection among scores that tie within their radii.

    How it is checked: (i) at the updated bias, after a sign step and at another bias, without
    cancellation; (ii) by values, not by counts as in QB-COUNT: with the best constant added, the
    dual is least, up to the number of edges times the radius of b.

    If it fails: the router and the update disagree on whom a token has chosen (a bias that is not
    added, or subtracted), or the update drives loads to something other than q.
    """
    batch, _ = prepared(subject, inputs)
    tokens, integral = tokens_and_load(batch)
    loads_N, chosen_MN = loads_of(subject, batch)
    (path, *_) = paths(subject, inputs.num_bins)
    landing = path(batch)
    target = tokens * batch.top_k / batch.bias.shape[0]
    step = 0.1 * np.sign(target - loads_N)
    elsewhere = {"the updated bias": landing.bias, "the sign step": batch.bias + step}
    elsewhere["another bias"] = inputs.others[1]
    require_subgradient(subject, batch, chosen_MN, elsewhere)
    if integral or path.rule == "q":
        require_least(subject, batch, landing)


@specification(
    "QB-MONOTONE",
    source="Eq. 14",
    needs=("quantile_update",),
    examples=30,
    inputs=balancing_update.updates(settled=0.7, steps=0.8),
)
def test_qb_monotone(subject: Subject, inputs: UpdateInputs) -> None:
    """b <= b' implies G(b) <= G(b'), before centring. After it: for biases b^1, …, b^r on one batch
    with updates F^1, …, F^r, sum_t max(F^{t+1} - F^t) <= sum_t max(b^{t+1} - b^t), cyclically.

    Hypotheses: k < n, finite logits and biases, a valid token, the same batch and mask; any q. The
    rule reads the same ranks with the same weights each time, not necessarily for all experts.

    Proof: b <= b' gives s + b <= s + b', so alpha <= alpha' for order statistics, r <= r', and
    G(b) <= G(b') by (a). As G(b + c) = G(b) + c, b' <= b + max(b' - b) gives
    G(b') - G(b) <= max(b' - b). With F = G - mean G the means cancel along a cycle. Nothing more
    can be said of the centred results: the inequalities for all cycles say that the weights
    max(b^t - b^u) - max(F^t - F^u) have no negative cycle. So there are constants c_t with
    F^t - F^u + c_t - c_u <= max(b^t - b^u) for all pairs (shortest paths), and
    b -> min_t (F^t + c_t + max(b - b^t)) is an order-preserving map that commutes with constants
    and takes b^t to F^t + c_t. Cycles of two are QB-NONEXPANSIVE. Those of three see more: -G
    satisfies all cycles of two, and reverses the order.

    What fails without them: a rule that may stop at another point each time is held to its
    interval.

    Legal freedoms: those of QB-VALUE. In floating point every b̂_j has its radius.

    How it is checked: the reference before centring, for each of the four statistics, on b and a
    bias nowhere below it; the subject on these two and a third bias, along all cycles.

    If it fails: the bias is subtracted where it should be added, or the step depends on loads,
    which jump. Then the rounds may cycle, and the dual may grow (OPT-DESCENT rests on this).
    """
    batch, _ = prepared(subject, inputs)
    above, other = (subject.round_to_routing(bias) for bias in inputs.others)
    for statistic in STATISTICS:
        require_ordered(batch.bias, above, valid_rows(batch), batch.top_k, statistic)
    biases = [batch.bias, above, other]
    batches = [replace(batch, bias=bias) for bias in biases]
    (path, *_) = paths(subject, inputs.num_bins)
    require_common_order(subject, biases, [path(each) for each in batches])


@specification(
    "QB-NONEXPANSIVE",
    source="Eq. 14, App. D",
    any_of=("quantile_update", "balancer"),
    examples=24,
    inputs=balancing_update.updates(),
)
def test_qb_nonexpansive(subject: Subject, inputs: UpdateInputs) -> None:
    """Under one update of the same batch the span of the difference between two biases never grows:
    max - min of b'_new - b_new is at most max - min of b' - b. In a histogram it may grow by twice
    the sum of both bin widths.

    Hypotheses: those of QB-MONOTONE.

    Proof: G(b) + min(b' - b) <= G(b') <= G(b) + max(b' - b), by order and constants (QB-MONOTONE);
    centring takes away constants. A legal estimate lies within w(b), or w(b'), of the statistic on
    either side, and there are two experts. The interpolated estimate of App. D itself does better:
    2 max(w(b), w(b')). Let F count the r below x, and F' the r', so that F'(x + d) >= F(x) with
    d = max(b' - b); let e = a + t w be where F, interpolated between the edges a and a + w, is q.
    At y = e + d + max(w, w') in the other grid's bin [g, g + w'], a <= g - d and
    g + w' - d >= a + w. If g - d >= a + w, F' is at least F(a + w) >= q at g. Else the share of
    that bin below y is (y - g) / w' >= t, since g - d < a + w, and F' interpolated at y is at least
    (1 - t) F(a) + t F(a + w) = q. So e' <= y, and likewise from below.

    What fails without them: a rule that may stop at another point of the interval each time adds
    the smaller of the intervals for each of the two experts.

    Legal freedoms: those of QB-VALUE and QB-HIST-ERROR.

    How it is checked: two pairs of biases per batch, 1e-8 to some 10 apart, on all experts or one.

    If it fails: a small error in a bias (its rounding, a lost update on one rank) is amplified from
    step to step. Steps by the sign of the load, or steps added to the old bias, do this.
    """
    batch, _ = prepared(subject, inputs)
    others = [replace(batch, bias=subject.round_to_routing(bias)) for bias in inputs.others]
    for path in paths(subject, inputs.num_bins):
        first = path(batch)
        for other in others:
            second = path(other)
            require_growth(
                subject,
                second.bias - first.bias,
                second.apart_from(first),
                float(np.ptp(other.bias - batch.bias)),
                f"the distance of two results of {first.what}",
            )


@specification(
    "QB-EQUIVARIANT",
    source="Eq. 14, App. D",
    any_of=("quantile_update", "balancer"),
    examples=24,
    inputs=balancing_update.updates(),
)
def test_qb_equivariant(subject: Subject, inputs: UpdateInputs) -> None:
    """The order of the tokens does not matter, and relabelling the experts relabels their biases.

    Hypotheses: k < n, finite logits and bias, a valid token, any q. The mask is permuted along.

    Proof: alpha_i depends on the set of the s_ij + b_j of its token alone, b̂_j on the set of the
    r_ij of its expert, by (c); so do the counts of a histogram and its range.

    What fails without them: nothing; but experts that may stop at different points of their
    intervals ("between" and "interior" allow it) may swap these points when they are relabelled.

    Legal freedoms: both updates round on their own, since a vector loop may compute its last
    elements otherwise. In a histogram, values within rounding of a bin edge may then be counted
    beyond it, and both estimates be off by w: this is granted to experts that have such values.

    How it is checked: the update of the permuted batch, put back in order, against the first one,
    up to a constant (QB-CENTRE judges that one).

    If it fails: some tokens count more than others (the last micro-batch, the first rows, a running
    average), or some expert is left out or read from its neighbour's column. Sharded batches and
    expert-parallel layouts then give different biases.
    """
    batch, order_M = prepared(subject, inputs)
    mask = None if batch.mask is None else batch.mask[order_M]
    shuffled = replace(batch, logits=batch.logits[order_M], mask=mask)
    order_N = inputs.expert_order
    relabelled = replace(batch, logits=batch.logits[:, order_N], bias=batch.bias[order_N])
    for path in paths(subject, inputs.num_bins):
        first = path(batch)
        second, third = path(shuffled), path(relabelled).relabelled(np.argsort(order_N))
        edges_N = path.crossings(batch, first) + first.rounding
        apart_N = edges_N + second.rounding + first.wandering(second)
        require_same(subject, first, second, apart_N, "with its tokens in another order")
        apart_N = edges_N + third.rounding + first.free
        require_same(subject, first, third, apart_N, "with its experts relabelled")


@specification(
    "QB-DUPLICATE",
    source="Eq. 14, App. D",
    any_of=("quantile_update", "balancer"),
    examples=24,
    inputs=balancing_update.updates(),
)
def test_qb_duplicate(subject: Subject, inputs: UpdateInputs) -> None:
    """Repeating the whole batch t times leaves the update unchanged.

    Hypotheses: k < n, finite logits and bias, a valid token. An integer q and a rule that stops at
    the same share of the interval for every m; or any q and the ceil(q)-th statistic.

    Proof: the target is t q, and each r_ij occurs t times: the t q-th smallest is the former q-th,
    the (t q + 1)-th the former (q+1)-th. So the interval is the same. The linear quantile has rank
    t q + 1 - k/n, still the share 1 - k/n of the way. For any q, ceil(ceil(t q) / t) = ceil(q), so
    App. D's rank leads to the same r; the smallest rank above q, floor(t q) + 1, does as well. Both
    are functions of the empirical distribution, which repetition leaves as it was.

    What fails without them: for a fractional q the linear quantile, a midpoint, and the rank
    ceil(q) + 1 are no functions of the distribution alone. In QB-FRACTION's batch the linear rank
    is 5/3, 1/3 of the way short of the second smallest r; with all tokens twice it is 3, which is
    that second smallest one.

    Legal freedoms: those of QB-VALUE, and of QB-RANK-EXACT for the rank's rounding. In a histogram
    the same bin is read, but its counts are larger, and the place in it may change: w.

    How it is checked: the batch two or three times over against the batch, up to a constant.

    If it fails: the target does not scale with the tokens (a cap, a fixed capacity, a prior with a
    weight), some tokens are not seen, or counts saturate. Accumulating micro-batches, or adding
    data-parallel ranks, then changes the bias although the distribution is the same.
    """
    batch, _ = prepared(subject, inputs)
    times, (tokens, integral) = inputs.times, tokens_and_load(batch)
    mask = None if batch.mask is None else np.tile(batch.mask, times)
    repeated = replace(batch, logits=np.tile(batch.logits, (times, 1)), mask=mask)
    for path in paths(subject, inputs.num_bins):
        if not integral and path.rule != "q":
            continue
        first, second = path(batch), path(repeated)
        apart_N = first.rounding + second.rounding + first.wandering(second) + first.width
        apart_N = apart_N + path.crossings(batch, first)
        if path.num_bins is None:
            apart_N = apart_N + path.rank_slip(tokens, times, batch.top_k, first.free)
        require_same(subject, first, second, apart_N, f"with its tokens {times} times over")
