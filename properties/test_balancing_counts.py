"""Quantile Balancing: the counts of a balancer, call by call.

Every property here follows a balancer beside the reference's: what each call routes, counts and
changes is judged as it is made, up to the moves that rounding explains (a value within rounding of
the edge between two bins may be counted in either; the point read inside a bin; the declared rank).

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = valid tokens, n = N,
q = m k / n the target load; r_ij = alpha_i - s_ij the required bias, alpha_i the cutoff of token i.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import note_figure, require
from properties.errors import NotOfferedError
from properties.judgement.balancing import required_biases
from properties.judgement.balancing_state import (
    Followed,
    micro_batches,
    representable,
    started,
)
from properties.judgement.balancing_state_counts import near_an_edge, require_same_counts
from properties.judgement.routing import require_same_routing, scored, tokens
from properties.registry import specification
from properties.strategies import balancing_state
from properties.strategies.balancing_state import (
    ALL_BUT,
    BIASES,
    PATTERNS,
    Counted,
    History,
    MicroBatch,
    counts_around,
    rows,
)
from properties.subject import Subject

# Just past what bfloat16, float16, int16, uint16 and float32 can count, and near m k = 2^31.
TOTALS = tuple(ALL_BUT + 2**bits + 1 for bits in (8, 11, 15, 16, 24, 28))
MOST_OBSERVED = 2**15
MANY = 130


@specification(
    "QB-HIST-STEPS",
    source="Eq. 14, App. D",
    needs=("balancer",),
    examples=28,
    history=balancing_state.histories(2, 4),
)
def test_qb_hist_steps(subject: Subject, history: History) -> None:
    """Every update is that of App. D, not only the first: the second and the third are judged, too.

    Each micro-batch is followed by an update. It is routed by the bias in force, counted in the
    bins of that bias, and the update reads the declared rank of these counts alone and is centred.

    Hypotheses: sigmoid scores, k < n, finite logits and bias, any masks, steps without tokens.

    Source: Eq. 14 and App. D, of which one step is QB-HIST-BINS, QB-HIST-ERROR and QB-HIST-CENTRE.
    A mean of the new and the old bias is another rule: it takes the same fixed points, and more
    steps.

    Legal freedoms: those of the three.

    If it fails: training balances once and then drifts: the range, the cutoff or the rank is that
    of the first step, or later biases are averaged into earlier ones.
    """
    followed = started(subject, history)
    for batch in micro_batches(subject, history):
        followed.observe(batch)
        followed.update()


@specification(
    "QB-HIST-RANGE",
    source="App. D",
    needs=("balancer",),
    examples=20,
    history=balancing_state.extremes(),
)
def test_qb_hist_range(subject: Subject, history: History) -> None:
    """Required biases fall in the closed [min b - 1, max b + 1] of the bias in force: none is lost.

    That bias is first the given one, whose entries lie up to 100 apart, then that of an update,
    then, where ``load_state_dict`` is offered, one that is loaded. Each time every token is counted
    once for every expert, in its bin of the range of that very bias.

    Hypotheses: sigmoid scores, 0 and 1 included, k < n, finite logits and bias, any B.

    Source and proof: alpha_i is one of the s_ij + b_j, so min b <= alpha_i <= max b + 1, and r_ij
    is alpha_i minus a score from [0, 1]. In float32 a score is 1 from logits of 18 on, and with two
    such experts of the largest b a third, of score 0, has r = max b + 1: the top end is reached.

    Legal freedoms: the bin of a value within rounding of an edge; a wider range does not count in
    B equal bins of App. D's (QB-HIST-BINS).

    If it fails: the range is that of construction, or [-1, 1], or half open. Experts whose bias
    moved furthest, those that balancing is for, are read wrong.
    """
    batches = micro_batches(subject, history)
    followed = started(subject, history)
    followed.observe(batches[0])
    followed.update()
    followed.observe(batches[1])
    if followed.visible and "balancer.load_state_dict" in subject.offered:
        flipped_N = subject.round_to_routing(-3.0 * followed.bias[::-1] - 1.0)
        followed.load(followed.stored(flipped_N, np.zeros_like(followed.counts)))
        followed.observe(batches[2])
    followed.update()


@specification(
    "QB-HIST-SPLIT",
    source="App. D",
    needs=("balancer",),
    examples=10,
    history=balancing_state.histories(2, 40),
)
def test_qb_hist_split(subject: Subject, history: History) -> None:
    """Any split of a batch into micro-batches gives equal counts and an equal bias.

    Up to 40 micro-batches, empty ones among them, are compared with one that holds all their
    tokens. Counts are equal where no required bias is within rounding of an edge, and so is then
    the bias, bit for bit; else at most as many values change their bin as lie that near to one.

    Hypotheses: sigmoid scores, k < n, finite logits and bias, any masks.

    Source and proof: r_ij is a function of token i alone, counts add up in integers, and an update
    is a function of the counts. Rounding may depend on a token's place in a batch, as kernels that
    work in blocks treat the remainder differently.

    Legal freedoms: a declared ``deterministic=False``, or no histogram, leaves the comparison of
    each bias with what its tokens ask for.

    If it fails: the global batch depends on how it is accumulated: counts are reset by each
    micro-batch, or only the first few are counted.
    """
    batches = micro_batches(subject, history)
    setup = history.setup
    split, whole = started(subject, history, "split"), started(subject, history, "whole")
    masks = [np.ones(len(b.logits), bool) if b.mask is None else b.mask for b in batches]
    mask = None if all(b.mask is None for b in batches) else np.concatenate(masks)
    everything = MicroBatch(np.concatenate([b.logits for b in batches]), mask)
    for batch in batches:
        split.observe(batch)
    whole.observe(everything)
    _require_same_step(subject, split, whole, everything, setup.top_k, "the batch in parts")


def _require_same_step(
    subject: Subject, one: Followed, other: Followed, seen: MicroBatch, top_k: int, what: str
) -> None:
    """Compare the pending counts of the same tokens, then update both and compare the biases."""
    equal = False
    if one.visible:
        equal = np.array_equal(one.counts, other.counts)
        if not equal:
            r_MN = required_biases(subject, seen.valid, one.bias, top_k)
            near_N = near_an_edge(r_MN, one.bins, one.model.num_bins)
            require_same_counts(one.counts, other.counts, near_N, what)
        note_figure(subject, "equal counts", equal)
    one.update()
    other.update()
    if equal and subject.conventions.deterministic:
        require(
            np.array_equal(one.bias, other.bias),
            f"{what}: equal counts give the bias {one.bias} and {other.bias}",
        )


@specification(
    "QB-HIST-EXACT",
    source="App. D",
    needs=("balancer",),
    examples=24,
    inputs=balancing_state.counted(TOTALS),
)
def test_qb_hist_exact(subject: Subject, inputs: Counted) -> None:
    """Counts are integers, exact past 2^8, 2^11, 2^15, 2^16, 2^24 and 2^28, and no cast rounds one.

    Counts of that many tokens are injected through ``load_state_dict`` and then each token more is
    one count more for every expert; a cast to bfloat16 and back, a save and a load into another
    balancer change none, and the update reads their rank. Where states cannot be loaded, 2^8, 2^11
    and 2^15 tokens are observed in one micro-batch.

    Hypotheses: k < n, m k < 2^31, so that int32 counts and ranks are exact. A balancer that shows
    no histogram is judged by its updates.

    Source and proof: App. D adds integers. Of n + 1 and n, bfloat16 tells no two apart from 2^8 on,
    float16 from 2^11, float32 from 2^24; int16 turns negative at 2^15.

    Legal freedoms: any integer format that holds 2^31 - 1.

    If it fails: experts stop being counted at a batch size that no test has, and one module.to() of
    a training script is enough.
    """
    followed = Followed(subject, inputs.setup)
    num_experts = inputs.setup.num_experts
    if followed.visible and "balancer.load_state_dict" in subject.offered:
        counts_NB = counts_around(inputs.total, inputs.number, num_experts, followed.model.num_bins)
        followed.load(followed.stored(followed.bias, counts_NB))
    else:
        followed.observe(_repeated(subject, inputs, min(inputs.total, MOST_OBSERVED)))
    for number in inputs.tokens:
        one = MicroBatch(rows([number], num_experts))
        followed.observe(representable(subject, one))
        if followed.balancer.offers("to"):
            followed.cast("bfloat16")
            followed.cast(subject.precision.routing_format)
    if followed.balancer.offers("state_dict") and followed.balancer.offers("load_state_dict"):
        saved = followed.save()
        followed = Followed(subject, inputs.setup, "other")
        followed.load(saved)
    followed.update()


def _repeated(subject: Subject, inputs: Counted, total: int) -> MicroBatch:
    """That many times the same token."""
    row = rows([inputs.number], inputs.setup.num_experts)
    return representable(subject, MicroBatch(np.repeat(row, total, axis=0)))


@specification(
    "QB-HIST-MANY",
    source="App. D",
    needs=("balancer",),
    examples=1,
    inputs=balancing_state.counted((2**16,)),
)
def test_qb_hist_many(subject: Subject, inputs: Counted) -> None:
    """One micro-batch of 65,542 tokens, all but the last ones equal, is counted in full.

    The last three are other tokens; where masks are offered, one of padding stands before them.
    130 micro-batches of one token each are added to these counts, and one of all these tokens under
    activation checkpointing, where that is offered.

    Hypotheses: k < n, finite logits and bias.

    Source and proof: App. D; nearly all of an expert's counts fall into one bin, so that whatever
    adds them up one by one, in parts, or in a format of its own has to hold the whole number, which
    is more than sixteen bits do. The last tokens are met by their own cutoffs and mask alone.

    Legal freedoms: those of QB-HIST-BINS.

    If it fails: counts overflow inside a kernel, at batches of the size that training has, or there
    is room for some dozens of micro-batches only.
    """
    num_experts = inputs.setup.num_experts
    (bias_N,) = rows([inputs.tokens[0]], num_experts, BIASES)
    followed = Followed(subject, replace(inputs.setup, bias=bias_N))
    last = rows([PATTERNS - 1 - inputs.number, *inputs.tokens], num_experts)
    batch = _repeated(subject, inputs, inputs.total + ALL_BUT)
    mask = np.ones(len(batch.logits) + len(last), bool)
    mask[-len(last)] = False
    batch = MicroBatch(np.concatenate([batch.logits, last]), mask)
    followed.observe(representable(subject, batch))
    more = representable(subject, MicroBatch(np.resize(last, (MANY, num_experts))))
    followed.observe_one_by_one(more.logits)
    if followed.balancer.offers("observe_recomputed"):
        followed.observe_recomputed(more)
    followed.update()


@specification(
    "QB-HIST-EMPTY",
    source="App. D",
    needs=("balancer",),
    examples=12,
    history=balancing_state.histories(2, 3),
)
def test_qb_hist_empty(subject: Subject, history: History) -> None:
    """An update with nothing observed leaves the bias unchanged, bit for bit, and finite.

    Nothing has been observed at the start, after a micro-batch without tokens, after one of padding
    only, after evaluation, and right after another update, so that two updates in a row are one.

    Hypotheses: k < n, any finite bias, centred or not.

    Source: of no values there is no quantile (Eq. 14), so there is nothing to replace the bias by.

    Legal freedoms: none.

    If it fails: NaN, or a bias of zeros, when a step is skipped or a rank has padding only.
    """
    batches = micro_batches(subject, history)
    followed = started(subject, history)
    nothing = replace(batches[0], logits=batches[0].logits[:0], mask=None)
    followed.update()
    for batch in batches:
        followed.observe(nothing)
        followed.update()
        if subject.conventions.padding == "masked":
            padding = MicroBatch(batch.logits, np.zeros(len(batch.logits), bool))
            followed.observe(padding)
        followed.observe(batch, training=False)
        followed.update()
        followed.observe(batch)
        followed.update()
        followed.update()


@specification(
    "QB-MASK",
    source="App. D",
    needs=("balancer",),
    examples=16,
    history=balancing_state.histories(1, 3),
)
def test_qb_mask(subject: Subject, history: History) -> None:
    """Masked rows change neither counts nor bias, and valid rows are the same with and without.

    A balancer that is given micro-batches with masks is compared with one that is given the valid
    rows alone, and with one whose masked rows hold other logits: routing of the valid rows, counts,
    and the bias after the update.

    Hypotheses: k < n, finite logits, padding included, any masks, of any strides.

    Source and proof: r_ij is a function of token i alone, and padding is no token. What padding
    holds is whatever the last batch left there.

    Legal freedoms: rounding may differ with the place of a row, as in QB-HIST-SPLIT; masked rows
    may be routed anywhere. An implementation that declares another ``padding`` is not judged.

    If it fails: balance depends on how sequences are packed; often one token, that of padding,
    fills its k favourite experts.
    """
    if subject.conventions.padding != "masked":
        raise NotOfferedError(f"padding is {subject.conventions.padding!r}")
    batches = micro_batches(subject, history)
    top_k = history.setup.top_k
    names = ("masked", "dropped", "repainted")
    masked, dropped, repainted = (started(subject, history, name) for name in names)
    for batch in batches:
        mask = np.ones(len(batch.logits), bool) if batch.mask is None else batch.mask
        other = np.where(mask[:, None], batch.logits, subject.round_to_storage(7.0 - batch.logits))
        first = tokens(masked.observe(replace(batch, mask=mask)), np.flatnonzero(mask))
        second = dropped.observe(MicroBatch(batch.logits[mask]))
        repainted.observe(representable(subject, MicroBatch(other, mask)))
        known = scored(subject, batch.logits[mask], masked.bias, stored=first.weights_format)
        require_same_routing(subject, first, second, known, top_k, "with and without masked rows")
    valid = MicroBatch(np.concatenate([batch.valid for batch in batches]))
    if masked.visible and not np.array_equal(repainted.counts, masked.counts):
        r_MN = required_biases(subject, valid.valid, masked.bias, top_k)
        near_N = near_an_edge(r_MN, masked.bins, masked.model.num_bins)
        require_same_counts(masked.counts, repainted.counts, near_N, "with other padding")
    _require_same_step(subject, masked, dropped, valid, top_k, "with and without masked rows")
    repainted.update()
