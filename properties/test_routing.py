"""The router: biased top-k selection, unbiased combine weights, and the cutoff (Eq. 13, 14).

Legend: M tokens, N routed experts, K top_k; s = sigmoid(logits), b the selection bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference_numpy as reference
from properties.checks import require, within
from properties.errors import NotOfferedError
from properties.judgement.routing import (
    Scored,
    computed_exactly,
    cutoff_ball,
    float32_or_better,
    on_grid,
    require_agreement,
    require_ids,
    require_same_cutoff,
    require_same_routing,
    require_selection,
    require_weights,
    scored,
    tokens,
    total_ball,
    weighed,
)
from properties.protocol import Array
from properties.registry import specification
from properties.rounding import Ball
from properties.strategies import routing
from properties.strategies.arrays import seeds
from properties.strategies.routing import RoutingInputs
from properties.subject import Routed, Subject


@specification(
    "RTR-VALID", source="Eq. 13", needs=("route",), examples=120, inputs=routing.inputs(fewest=1)
)
def test_rtr_valid(subject: Subject, inputs: RoutingInputs) -> None:
    """Each token gets K different experts in [0, N), a valid top-k of the biased scores s + b.

    Hypotheses: finite logits, a bias that is finite or -inf, 1 <= K <= N, any M from 0 on, any
    strides. Fewer than K candidates may be finite: the others then fill up, each at most once.
    Few other properties draw N = 1: a router without it fails this one and not all.
    Valid means that no left-out expert lies above a chosen one by more than both radii, the radii
    being those of s + b in the declared routing format.

    Legal freedoms: the order of the slots, the choice among ties and inside the radii, any integer
    dtype of ids.

    If it fails: tokens go to experts that the router did not choose. Seen in practice: the bias
    left out, or subtracted; excluded scores masked with 0 or a running maximum that starts at -1,
    both right until biased scores are negative; an expert taken twice when candidates run out; ids
    in 8 bits, which end at expert 255.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    require_selection(subject, routed, scored(subject, logits, bias).biased)


@specification(
    "RTR-SCORES",
    source="Eq. 13",
    needs=("route",),
    examples=80,
    near=routing.nearly_tied(),
    faint=routing.faint(),
)
def test_rtr_scores(subject: Subject, near: RoutingInputs, faint: RoutingInputs) -> None:
    """Experts are chosen by sigmoid(logit) + b in float32 or better.

    Two biased scores that lie further apart than their float32 radii (or those of the declared
    routing format, where it is finer) are never swapped, however close they are.

    Hypotheses: as for RTR-VALID. One routing has whole rows of biased scores a few steps apart, the
    steps between 2^-9 and 2^-50; the other has scores between 5e-5 and e^-80 and no bias. Logits
    and bias are representable, so nothing is lost before the sigmoid. A format coarser than float32
    for scores or bias is no declared freedom here: the 128 numbers that bfloat16 has between 1/2
    and 1 cannot order 896 experts.

    Legal freedoms: which float32 sigmoid, as long as it is right to a few ulp in relative terms,
    and the choice inside the radii.

    If it fails: the ranking is another one. Rounding the scores to bfloat16 before the selection,
    softmax in place of sigmoid, and a sigmoid by tanh, whose small scores are multiples of 2^-24,
    do this and still choose right on random inputs at most tokens.
    """
    arithmetic = float32_or_better(subject.routing_arithmetic())
    for inputs in (near, faint):
        logits, bias = on_grid(subject, inputs)
        routed = subject.route(logits, bias, top_k=inputs.top_k)
        biased = scored(subject, logits, bias, arithmetic=arithmetic).biased
        require_selection(subject, routed, biased, "selection in float32")


@specification(
    "RTR-WEIGHTS", source="Eq. 13", needs=("route",), examples=140, inputs=routing.inputs()
)
def test_rtr_weights(subject: Subject, inputs: RoutingInputs) -> None:
    """The weight of a chosen expert is p_j = s_j / (S + epsilon), S the sum of the chosen s.

    The raw scores weigh; the bias has selected and has no further part. epsilon is the declared
    ``weight_epsilon`` (1e-20). With K = 1 and ``top1_renormalised`` declared off, p = s.

    Hypotheses: as for RTR-VALID; judged on the implementation's own ids, whichever they are. The
    radius is that of sigmoid, sum and quotient in the routing format, and one rounding to the
    format in which the weights came back. It is relative to p_j: small scores count as much.

    Legal freedoms: the order of the sum; subnormal scores read as 0.

    If it fails: every expert's output is scaled wrongly, and training learns around it. Weights
    taken from s + b look right while b is small; weights recovered as (s + b) - b lose the digits
    that b pushed out, 6e-3 relative at b = 2 in practice; an epsilon of 1e-2 or 1e-6 instead of
    1e-20 shows at small scores only, and scores over all N instead of the chosen at K < N.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    require_ids(routed, len(bias))
    scores = scored(subject, logits, bias, stored=routed.weights_format).scores
    require_weights(subject, routed, scores, "weights")


@specification("RTR-SUM", source="Eq. 13", needs=("route",), examples=60, inputs=routing.inputs())
def test_rtr_sum(subject: Subject, inputs: RoutingInputs) -> None:
    """Weights are finite, not negative, and sum to S / (S + epsilon) where they are normalised.

    Hypotheses: as for RTR-VALID. Finite logits however large (-110, -1e8, 30, 1e4, 1e30) give
    finite weights; only with a declared epsilon of 0 are scores that all underflow exempt. The sum
    is 1 unless S is near epsilon. It is sharper than the sum of what RTR-WEIGHTS allows, as the
    errors of the scores cancel: only the roundings of the sum and of K quotients stay. Without
    normalisation (K = 1, ``top1_renormalised`` off) the weight is the score.

    Legal freedoms: the order of the sum, a reciprocal in place of K quotients.

    If it fails: a scale is applied twice or not at all, the weights are normalised over all N, or
    0/0 = NaN enters the layer from a row whose scores underflow. The norm behind the routed sum
    hides a common factor of the weights at unit amplitude, so the layer's output does not tell.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    require_ids(routed, len(bias))
    scores = scored(subject, logits, bias, stored=routed.weights_format).scores
    rows = weighed(subject, scores, routed)
    weights, total = routed.weights[rows], total_ball(subject, scores, routed)[rows]
    require(np.isfinite(weights), "a weight of finite logits is not finite")
    require(weights >= 0.0, "a weight is negative")
    within(subject, weights.sum(axis=1), total, "sum of the weights")


@specification(
    "RTR-STEER",
    source="Eq. 13",
    needs=("route",),
    examples=70,
    inputs=routing.inputs(),
    push=st.sampled_from([0.5, 3.0, 34.5, 100.0]),
    seed=seeds(),
)
def test_rtr_steer(subject: Subject, inputs: RoutingInputs, push: float, seed: int) -> None:
    """The bias steers and never weighs: another bias that selects the same set, the same weights.

    The biases of the first token's experts are raised, each by its own amount from ``push`` to
    twice ``push``, and those of some others lowered. That cannot change the first token's set, and
    every token whose set stays is compared, weight by weight, expert by expert.

    Hypotheses: as for RTR-VALID. The weights may differ by both radii, since the sum of K terms may
    run in another slot order. Proof: p_j depends on s and the set alone (Eq. 13).

    Legal freedoms: any order of the slots, before and after.

    If it fails: the bias leaks into the output, so balancing changes what the layer computes, and a
    bias frozen at inference no longer means what it meant in training. Weights from s + b, or
    recovered as (s + b) - b, do this.
    """
    logits, bias = on_grid(subject, inputs)
    first = subject.route(logits, bias, top_k=inputs.top_k)
    require_ids(first, len(bias))
    steered = subject.round_to_routing(bias + _steering(first, len(bias), push, seed))
    second = subject.route(logits, steered, top_k=inputs.top_k)
    after = scored(subject, logits, steered, stored=second.weights_format)
    require_selection(subject, second, after.biased, "selection by the other bias")
    require_agreement(subject, first, second, after.scores, "weight by the other bias")


def _steering(routed: Routed, num_experts: int, push: float, seed: int) -> Array:
    """What moves the first token's experts up, and others down or nowhere (N,)."""
    rng = np.random.default_rng(seed)
    move = -push * rng.integers(0, 3, num_experts).astype(np.float64)
    for chosen in routed.expert_ids[:1]:
        move[chosen] = push * (1.0 + rng.random(len(chosen)))
    return move


@specification(
    "RTR-SHIFT",
    source="Eq. 13, 14",
    needs=("route",),
    examples=120,
    inputs=routing.inputs(),
    shift=st.sampled_from(routing.SHIFTS),
)
def test_rtr_shift(subject: Subject, inputs: RoutingInputs, shift: float) -> None:
    """A common shift of the bias selects a valid top-k of s + b, and moves the cutoff with it.

    With b + c, rounded to the routing format, each token's experts are a top-k of s + b up to the
    radius that adding c costs (about an ulp of c), the cutoff is the old one + c, and the weights
    follow the chosen set as before. c is in ±100.

    Hypotheses: as for RTR-VALID. Proof: argtop_k(s + b + c) = argtop_k(s + b). The rounding of
    b + c is part of the radius: the sum is enclosed as s + (b + c).

    Legal freedoms: experts closer than that radius may change places; no cutoff returned.

    If it fails: mean-centring the bias, which every update does, would change the routing. A bias
    kept in bfloat16 (steps of 1/4 at 34.5, of 1/2 at 100) and weights recovered from biased scores
    break this, and so do limits on the bias.
    """
    logits, bias = on_grid(subject, inputs)
    shifted = subject.round_to_routing(bias + shift)
    routed = subject.route(logits, shifted, top_k=inputs.top_k)
    enclosed: Any = Ball.exact(bias, subject.routing_arithmetic(routed.weights_format)) + shift
    after = scored(subject, logits, enclosed, stored=routed.weights_format)
    require_selection(subject, routed, after.biased, "selection by the shifted bias")
    require_weights(subject, routed, after.scores, "weights by the shifted bias")
    if inputs.top_k < len(bias):
        before = subject.route(logits, bias, top_k=inputs.top_k).cutoff
        own = cutoff_ball(scored(subject, logits, bias).biased, inputs.top_k)
        radius = own.radius + cutoff_ball(after.biased, inputs.top_k).radius
        moved = None if before is None else before + shift
        require_same_cutoff(subject, routed.cutoff, moved, radius, "cutoff by the shifted bias")


@specification(
    "RTR-CUTOFF",
    source="Eq. 14",
    needs=("route",),
    examples=110,
    inputs=routing.inputs(all_experts=False),
)
def test_rtr_cutoff(subject: Subject, inputs: RoutingInputs) -> None:
    """The cutoff of a token is its (K+1)-th largest biased score: the best one left out.

    So no chosen expert's biased score lies below it, and no other's above.

    Hypotheses: as for RTR-VALID, and K < N: with K = N nothing is left out; M at least 1: a batch
    without tokens has no cutoffs, returned or not. The radius is how far the (K+1)-th largest can
    move when every biased score moves inside its own radius: from the (K+1)-th largest of the lower
    ends to that of the upper ends.

    Legal freedoms: to return no cutoff at all, which is reported as not offered. It is in the
    routing format, not in storage: quantiles of what bfloat16 leaves of it are no quantiles.

    If it fails: Eq. 14 balances against the wrong threshold. With the K-th in place of the (K+1)-th
    loads stay within 12 % and the bias is off by 0.05, so that only the value tells; a cutoff of
    the unbiased scores balances from zero at each step and forgets the bias.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    if routed.cutoff is None:
        raise NotOfferedError("route returns no cutoff")
    expected = cutoff_ball(scored(subject, logits, bias).biased, inputs.top_k)
    within(subject, routed.cutoff, expected, "cutoff")


@specification(
    "RTR-TOKEN",
    source="Eq. 13",
    needs=("route",),
    examples=36,
    inputs=routing.batches(),
    seed=seeds(),
)
def test_rtr_token(subject: Subject, inputs: RoutingInputs, seed: int) -> None:
    """A token is routed by itself: alone, in its batch and in a reordered batch, the same way.

    Row i of the batch agrees with row i given alone (i among the first, the 16th, the 17th, the
    33rd, the middle and the last row), and permuting the tokens permutes the rows. Agreement: both
    selections are valid, weights by expert are equal within both radii where the sets are, and
    cutoffs are equal within both radii.

    Hypotheses: as for RTR-VALID, M in 1, 2, 15, 16, 17, 33, 257. Proof: Eq. 13 has no sum over
    tokens. Not bit for bit: a vector loop's last rows may be computed by other instructions.

    Legal freedoms: a tie or near-tie may fall differently in another batch.

    If it fails: a kernel covers one tile and leaves the rows after it as they were (the 17th token
    on is where a grid of one block of 16 ends), or reads its neighbour's row; and generation, one
    token at a time, differs from the forward pass that it was trained with.
    """
    logits, bias = on_grid(subject, inputs)
    batch = subject.route(logits, bias, top_k=inputs.top_k)
    whole = scored(subject, logits, bias, stored=batch.weights_format)
    require_selection(subject, batch, whole.biased, "selection in the batch")
    order = np.random.default_rng(seed).permutation(len(logits))
    for rows in (order, *(np.array([row]) for row in _telling_rows(len(logits)))):
        routed = subject.route(logits[rows], bias, top_k=inputs.top_k)
        what = "in another order" if rows is order else "alone"
        known = Scored(whole.scores[rows], whole.biased[rows])
        require_same_routing(subject, routed, tokens(batch, rows), known, inputs.top_k, what)


def _telling_rows(count: int) -> list[int]:
    return sorted({row for row in (0, 15, 16, 32, count // 2, count - 1) if row < count})


@specification("RTR-TIES", source="Eq. 13", needs=("route",), examples=60, inputs=routing.tied())
def test_rtr_ties(subject: Subject, inputs: RoutingInputs) -> None:
    """Exact ties, at the cutoff or everywhere, still give each token K different valid experts.

    Where ``ties="lowest_index"`` is declared, the tied experts with the lowest ids are chosen.

    Hypotheses: all-equal logits, saturated sigmoids, and scores 0, 1/2 and 1 with biases that tie
    them across. The lowest index is asked for only of tokens whose biased scores every correct
    implementation computes exactly: a score of 0, 1/2 or 1, plus a bias, with a representable sum.
    Equal logits elsewhere may fall into the tail of a vector loop, and into other bits.

    Legal freedoms: without a declared rule, any choice among ties. `torch.topk` has no rule.

    If it fails: ids found by comparing scores with the K-th value are too many or the same one
    twice. Ties are ordinary: a float32 sigmoid is exactly 1 from logit 18 on, and padded or
    zero-initialised routers tie everywhere.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    biased = scored(subject, logits, bias).biased
    require_selection(subject, routed, biased)
    if subject.conventions.ties != "lowest_index":
        return
    rows = computed_exactly(subject, logits, biased.value)
    lowest = reference.top_k_ids(biased.value[rows], inputs.top_k)
    same = np.sort(routed.expert_ids[rows], axis=1) == np.sort(lowest, axis=1)
    require(same, "ties do not fall to the lowest ids, as declared")
