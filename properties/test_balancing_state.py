"""Quantile Balancing: the state of a balancer, call by call.

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
from properties.errors import ViolationError
from properties.judgement.balancing_state import (
    Followed,
    micro_batches,
    same_entry,
    started,
)
from properties.judgement.routing import require_same_routing, scored, tokens
from properties.registry import specification
from properties.strategies import balancing_state
from properties.strategies.balancing_state import (
    History,
    MicroBatch,
    Setup,
)
from properties.subject import Subject

FEWEST_BINS = 100


@specification(
    "QB-OBSERVE",
    source="Eq. 13, App. D",
    needs=("balancer",),
    examples=30,
    history=balancing_state.histories(1, 2),
)
def test_qb_observe(subject: Subject, history: History) -> None:
    """``observe`` routes as ``route`` does: ids, combine weights and cutoff, in training or not.

    Hypotheses: k < n, finite logits and bias, any mask; rows that a mask leaves out may be routed
    anywhere. Allowances are those of RTR-VALID, RTR-WEIGHTS and RTR-CUTOFF.

    Source: Eq. 13. The bias selects, and weighs nothing; training differs in what is counted only.

    Legal freedoms: experts closer than rounding may change places, also between the two calls; the
    cutoff may be left out.

    If it fails: the router that training runs is not the one that was tested, for example weights
    of biased scores, or the k-th score as the cutoff.
    """
    followed = started(subject, history)
    bias_N, top_k = followed.bias, history.setup.top_k
    for batch in micro_batches(subject, history):
        valid = np.arange(len(batch.logits)) if batch.mask is None else np.flatnonzero(batch.mask)
        trained, judged = (
            tokens(followed.observe(batch, training=training), valid) for training in (True, False)
        )
        known = scored(subject, batch.valid, bias_N, stored=trained.weights_format)
        require_same_routing(subject, judged, trained, known, top_k, "in training and evaluation")


@specification(
    "QB-START",
    source="App. D",
    needs=("balancer",),
    examples=12,
    history=balancing_state.histories(1, 2),
)
def test_qb_start(subject: Subject, history: History) -> None:
    """Without ``bias`` a balancer starts from zeros, without ``num_bins`` with a fine histogram.

    The first micro-batches and the first update are judged as with both given.

    Hypotheses: k < n. A fine histogram has 100 bins or more: App. D takes 1,000, and 2.3.3 calls
    "a few hundred" enough. A balancer that shows no histogram keeps whatever it likes.

    Source: App. D. Before any batch no expert is known to be wanted more than another.

    Legal freedoms: any default of 100 bins or more.

    If it fails: default arguments were never run: a bias left as allocated, or bins of width 1.
    """
    setup = replace(history.setup, num_bins=None, bias=None)
    followed = Followed(subject, setup)
    if followed.visible:
        note_figure(subject, "bins by default", followed.model.num_bins)
        require(
            followed.model.num_bins >= FEWEST_BINS,
            f"without num_bins there are {followed.model.num_bins} bins; App. D takes 1,000",
        )
    for batch in micro_batches(subject, history):
        followed.observe(batch)
    followed.update()


@specification(
    "QB-EVAL",
    source="App. D",
    needs=("balancer",),
    examples=16,
    history=balancing_state.histories(2, 4),
)
def test_qb_eval(subject: Subject, history: History) -> None:
    """Observing in evaluation leaves every state bit-equal, in any interleaving with training.

    ``observe(…, training=False)`` stands before, between and after the training micro-batches and
    after the update. Bias, counts and, where offered, the whole state dict are the same before and
    after it, and the update is that of the training micro-batches. Where nothing but evaluation was
    observed, an update changes nothing.

    Hypotheses: k < n, finite logits and bias, any masks.

    Source: App. D counts the tokens of the training batch; the bias is frozen at inference.

    Legal freedoms: none in the state; the routing's are those of QB-OBSERVE.

    If it fails: validation data decides how training routes, and an evaluation that is run more
    often gives another model.
    """
    followed = started(subject, history)
    batches = micro_batches(subject, history)
    _evaluate(followed, batches[0])
    followed.update()
    for index, batch in enumerate(batches):
        followed.observe(batch)
        _evaluate(followed, batches[index - 1])
    followed.update()
    _evaluate(followed, batches[0])
    followed.update()


def _evaluate(followed: Followed, batch: MicroBatch) -> None:
    kept = followed.balancer.offers("state_dict")
    before = followed.save().arrays if kept else {}
    followed.observe(batch, training=False)
    after = followed.save().arrays if kept else {}
    for key, value in before.items():
        same = not isinstance(value, np.ndarray) or same_entry(value, after.get(key))
        require(same, f"an observation in evaluation changed {key!r} of the state dict")


@specification(
    "QB-OFF",
    source="App. D",
    needs=("balancer",),
    examples=12,
    history=balancing_state.histories(2, 3),
)
def test_qb_off(subject: Subject, history: History) -> None:
    """Disabled, a balancer changes nothing: the bias stays what it was, 0 from construction.

    With ``enabled=False``, micro-batches and updates leave bias and counts bit-equal, and route as
    ever. Where ``set_enabled`` is offered, switching off in between does the same, keeps what is
    pending, and switching on goes on from there. A state that was saved while it was off leaves it
    off when it is loaded, where states are offered.

    Hypotheses: k < n, finite logits and bias, any masks, the bias given or left out.

    Source: the bias is frozen at inference; Eq. 14's balancing is one choice among others.

    Legal freedoms: those of QB-OBSERVE.

    If it fails: a run that balances by a loss, or fine-tunes with a frozen bias, moves it unasked;
    a switch that is ignored shows in nothing else.
    """
    batches = micro_batches(subject, history)
    for bias in (history.setup.bias, None):
        followed = Followed(subject, replace(history.setup, bias=bias, enabled=False))
        for batch in batches:
            followed.observe(batch)
            followed.update()
    if "balancer.set_enabled" not in subject.offered:
        return
    followed = started(subject, history)
    followed.observe(batches[0])
    followed.set_enabled(False)
    followed.observe(batches[1])
    followed.update()
    followed.set_enabled(True)
    followed.observe(batches[-1])
    followed.update()
    followed.set_enabled(False)
    followed.update()
    if followed.balancer.offers("state_dict") and followed.balancer.offers("load_state_dict"):
        followed.load(followed.save())
        followed.observe(batches[0])
        followed.update()


@specification(
    "QB-REPLAY",
    source="App. D",
    needs=("balancer", "balancer.observe_recomputed"),
    examples=16,
    history=balancing_state.histories(2, 4, masked=False),
)
def test_qb_replay(subject: Subject, history: History) -> None:
    """Activation checkpointing, which runs a forward twice, counts its tokens once.

    ``observe_recomputed`` runs a micro-batch forward and backward under activation checkpointing.
    The raw counts afterwards are those of one observation, between ordinary ones as well.

    Hypotheses: k < n, finite logits and bias, training.

    Source and proof: App. D counts tokens. The bias cannot show it: counts that are all doubled
    have the same quantiles, and a mix of single and double weights moves them by little.

    Legal freedoms: which of the two passes counts.

    If it fails: micro-batches weigh double where memory was short, and global counts no longer say
    how many tokens there were.
    """
    batches = micro_batches(subject, history)
    followed = started(subject, history)
    for index, batch in enumerate(batches):
        if index % 2:
            followed.observe(batch)
        followed.observe_recomputed(batch)
    followed.update()
    followed.observe_recomputed(batches[0])


@specification(
    "QB-STATE",
    source="App. D",
    needs=("balancer", "balancer.state_dict", "balancer.load_state_dict"),
    examples=14,
    history=balancing_state.histories(2, 4),
)
def test_qb_state(subject: Subject, history: History) -> None:
    """A state saved and loaded keeps the bias and the pending counts, whatever was there before.

    A balancer is saved between two micro-batches, and goes on. The state is loaded into a fresh
    balancer and into one with another bias and counts of its own; both continue like the first from
    where it was saved, with the range of the loaded bias, and keep no array that was loaded (see
    QB-APART). Loading a state without "bias" fails. The bias is observed, updated and switched in
    its own storage (``bias_storage_id``, where offered).

    Hypotheses: k < n, finite logits and bias, any masks.

    Source: the bias is no parameter that gradients find again; what a checkpoint leaves out is 0
    after a restart, and nothing else shows it.

    Legal freedoms: a state whose "histogram" is None says that pending counts are lost; they are
    then 0 after loading. The switch may be part of the state or not. The bias may be held in a
    finer format than the routing's, in which it rounds to the one in force.

    If it fails: a restart forgets the balance; a missing key goes unnoticed; or the optimiser, a
    CUDA graph or the gate holds the tensor of an old bias.
    """
    batches = micro_batches(subject, history)
    followed = started(subject, history)
    followed.observe(batches[0])
    followed.update()
    followed.observe(batches[1])
    saved = followed.save()
    followed.observe(batches[0])
    followed.update()
    setup = history.setup
    fresh = Followed(subject, replace(setup, bias=None), "fresh")
    used = started(subject, history, "used")
    used.observe(batches[1])
    for other in (fresh, used):
        other.load(saved)
        other.observe(batches[-1])
        other.update()
    followed.load(saved)
    partial = {key: value for key, value in saved.state.items() if key != "bias"}
    try:
        followed.balancer.load_state_dict(partial)
    except ViolationError as error:
        if error.__cause__ is None:
            raise
    else:
        raise ViolationError('load_state_dict takes a state without "bias"; it has to raise')


@specification(
    "QB-APART",
    source="App. D",
    needs=("balancer",),
    examples=14,
    history=balancing_state.histories(2, 3),
)
def test_qb_apart(subject: Subject, history: History) -> None:
    """Balancers of one implementation share nothing: no call on one changes another.

    Two start alike, as those of two layers do, and are called in turn. A third one, of another k
    where there is one, with the default bias and switched off where it can be, is made last. Nor do
    they share anything with who calls them: the array of the given bias is overwritten for a
    moment, and bias and counts stay; so they do, wherever a state is loaded, as its arrays are
    overwritten. What ``observe`` returned stays as it was, whatever is called later.

    Hypotheses: k < n, finite logits and bias, any masks.

    Source: each layer has its own bias and counts (App. D).

    Legal freedoms: none in the state.

    If it fails: layers balance each other: buffers of the class, a default argument that is
    written to, the given bias or a loaded state taken over without a copy, or one buffer in which
    all routings are returned.
    """
    batches = micro_batches(subject, history)
    assert history.setup.bias is not None
    if not history.setup.bias.any():  # then the default is the same, and perhaps the same array
        history = replace(history, setup=replace(history.setup, bias=None))
    one, other = started(subject, history, "one"), started(subject, history, "other")
    last = Followed(subject, replace(_other_k(history.setup), bias=None), "last")
    if last.balancer.offers("set_enabled"):
        last.set_enabled(False)
    for batch in batches:
        last.observe(batch)
        for first, second in ((one, other), (other, one)):
            first.observe(batch)
            second.require_unchanged(f"observing with {first.balancer.label}")
        one.update()
        other.require_unchanged("updating one")
        one.observe(batch)
        other.update()
        one.require_unchanged("updating other")
    last.update()
    last.require_unchanged("updating the others")


def _other_k(setup: Setup) -> Setup:
    """The same with another k < n, if there is one."""
    return replace(setup, top_k=setup.top_k - 1 if setup.top_k > 1 else setup.num_experts - 1)
