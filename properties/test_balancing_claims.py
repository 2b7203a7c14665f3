"""Figures that are told of Quantile Balancing, measured.

Every run starts from a bias of 0 and updates on one batch of logits again and again: standard
normal ones with an offset per expert, by seed. Loads are those of the reference's scores in
float64, on that *same* batch, and on a *fresh* one with the same offsets. max/mean, max/min and
cv = standard deviation / mean are over experts, "±" is the standard deviation over seeds. Larger
runs are on docs/balancing-claims.md.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = M, n = N,
q = m k / n the target load.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import note_figure, require
from properties.errors import NotOfferedError, ViolationError
from properties.judgement.balancing import Bins
from properties.judgement.balancing_claims import (
    Setting,
    held_run,
    implementations,
    noise,
    note,
    run,
    sign_steps,
    steps_until,
    summary,
    takes_bins,
)
from properties.registry import specification
from properties.subject import Subject

SEEDS = range(3)

HOT = Setting(tokens=4096, num_experts=16, top_k=2, spread=2.24, hot=4)
RATIO_OF_K3 = Setting(tokens=1120, num_experts=112, top_k=2, spread=0.5)
SMALL = Setting(tokens=1024, num_experts=32, top_k=4, spread=0.5)

STEP_SIZES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
TARGET, MOST_STEPS = 1.1, 12


@specification("QB-ONESTEP", kind="claim", source="Eq. 14, App. D")
def test_qb_onestep(subject: Subject) -> None:
    """Claim: one update takes loads of max/min 51 down to about 2.

    Setting: 16 experts, k = 2, 4,096 tokens, 4 hot experts whose logits are 2.24 higher, seeds 0 to
    2. 2.24 was chosen so that max/min starts near the figure told, which does not say how hot the
    experts were.

    Judged: 51 lies within twice the spread of the reference's mean before the update. After it,
    mean and twice the spread are below 2, on the same batch and on a fresh one. Where storage is so
    coarse that the reference misses that on the logits it holds (float8_e5m2 rounds them to three
    bits, so that whole crowds of tokens tie), an implementation is not judged.

    Measured: 55.6 ± 7.1 before (8 seeds), then 1.68 ± 0.03 on the same batch, 1.76 ± 0.05 on a
    fresh one: "about 2" is reproduced, as an upper bound. One update does not even loads out
    entirely, as the cutoffs move along with the bias; and it leaves more where experts differ more:
    with normal offsets of standard deviation 2, 5.4 ± 4.5 (docs/balancing-claims.md).

    If it fails: an update does not do the main part of the work at once.
    """
    for who in implementations(subject):
        runs = [run(subject, who, HOT, seed, (0, 1)) for seed in SEEDS]
        before = note(subject, who, "max/min before", [r.same[0].max_to_min for r in runs])
        same = note(subject, who, "after, same batch", [r.same[1].max_to_min for r in runs])
        fresh = note(subject, who, "after, fresh batch", [r.fresh[1].max_to_min for r in runs])
        require(
            who != "reference" or abs(before.mean - 51.0) <= 2.0 * before.spread,
            f"max/min starts at {before}, which does not bracket 51",
        )
        for where, after in (("same", same), ("fresh", fresh)):
            if after.mean + 2.0 * after.spread < 2.0:
                continue
            if who != "reference":
                _require_fine_storage(subject, where)
            raise ViolationError(
                f"{who}: max/min is {after} on the {where} batch after one update, from {before}"
            )


def _require_fine_storage(subject: Subject, where: str) -> None:
    """Not judged: what the reference misses, too, on logits as storage holds them."""
    found = [getattr(held_run(subject, HOT, seed, (1,)), where)[1] for seed in SEEDS]
    after = summary([loads.max_to_min for loads in found])
    if after.mean + 2.0 * after.spread >= 2.0:
        name = subject.precision.storage
        raise NotOfferedError(f"logits in {name} tie too often: the reference comes to {after}")


@specification("QB-PAPER", kind="claim", source="Eq. 14, App. D")
def test_qb_paper(subject: Subject) -> None:
    """Claim: 896 experts, k = 16, 8,192 tokens, 1,000 bins: max/mean about 1.33 after one update,
    1.05 after five, with a cv of 0.015. That is the batch that was updated on, not the next one.

    On a fresh batch even independent choices with probability k/n leave a cv of
    sqrt((1 - k/n) / q) = 0.082, q = 146: 0.015 is out of reach. Five updates on one batch fit its
    noise, too, and bring that along: the fresh cv is nearer to sqrt(2) times 0.082 = 0.116.

    Setting: k/n as published, 112 experts, k = 2, 1,120 tokens, normal offsets of standard
    deviation 0.5, seeds 0 to 2; cv in units of the noise, which q decides.

    Judged: after five updates the cv of the same batch is below the noise by more than its spread,
    the one of a fresh batch above it by more than its spread.

    Measured at the published size (docs/balancing-claims.md): five updates reproduce both figures
    on the same batch, 1.05 and 0.015 without offsets, 1.06 and 0.017 with 0.5; on a fresh batch
    they are 1.41 and 0.11 to 0.12. *The 1.33 after one update is not reproduced along with them*:
    it is 1.06 without offsets, 1.17 with 0.5, and 1.30 ± 0.08 with 1, where five updates leave 1.12
    and 0.021. 1.3 is also what chance alone gives without any update.

    If it fails: balance on the next batch would be promised that noise does not allow; or an update
    does not fit the batch it has seen.
    """
    unit = noise(RATIO_OF_K3)
    for who in implementations(subject):
        runs = [run(subject, who, RATIO_OF_K3, seed, (1, 5)) for seed in SEEDS]
        for updates in (1, 5):
            same, fresh = [r.same[updates] for r in runs], [r.fresh[updates] for r in runs]
            note(subject, who, f"max/mean after {updates}, same", [x.max_to_mean for x in same])
            note(subject, who, f"max/mean after {updates}, fresh", [x.max_to_mean for x in fresh])
        seen = note(subject, who, "cv / noise after 5, same", [x.cv / unit for x in same])
        new = note(subject, who, "cv / noise after 5, fresh", [x.cv / unit for x in fresh])
        require(
            seen.mean + seen.spread < 1.0,
            f"{who}: after five updates on a batch its own cv is {seen} times that of chance",
        )
        require(
            new.mean - new.spread > 1.0,
            f"{who}: after five updates the cv of a fresh batch is {new} times that of chance: "
            "not above it",
        )


@specification("QB-BINS", kind="claim", source="App. D")
def test_qb_bins(subject: Subject) -> None:
    """Claim: 10,000 bins bring no measurable gain over 1,000. True on a fresh batch; false on the
    batch that was updated on.

    Setting: that of QB-PAPER, five updates, cv with either number of bins, seed by seed.

    Judged: on a fresh batch the gain in cv, averaged over seeds, is less than twice the spread over
    seeds of the cv itself.

    Measured at 896 experts, k = 16, 8,192 tokens (docs/balancing-claims.md): the fresh cv moves by
    1 % or less, the same batch's falls from 0.0174 to 0.0125, max/mean from 1.06 to 1.03. A
    bin is 1/500 of a score wide and holds several tokens near the quantile, which interpolation
    does not tell apart; on the next batch noise is ten times that.

    Hypotheses: a balancer that takes the number of bins it is asked for; otherwise the reference
    alone is judged.

    If it fails: 1,000 bins are too few, and memory and traffic have to grow.
    """
    coarse, fine = RATIO_OF_K3, replace(RATIO_OF_K3, num_bins=10_000)
    for who, start in implementations(subject).items():
        if not (takes_bins(start, coarse) and takes_bins(start, fine)):
            note_figure(subject, f"{who}: bins", "its own number, whatever is asked for")
            continue
        runs = [[run(subject, who, s, seed, (1, 5)) for seed in SEEDS] for s in (coarse, fine)]
        fresh = [summary([each.fresh[5].cv for each in some]) for some in runs]
        for name, some in zip(("1,000", "10,000"), runs, strict=True):
            note(subject, who, f"cv, fresh, {name} bins", [each.fresh[5].cv for each in some])
            note(subject, who, f"cv, same, {name} bins", [each.same[5].cv for each in some])
        gain = fresh[0].mean - fresh[1].mean
        require(
            gain < 2.0 * max(fresh[0].spread, fresh[1].spread),
            f"{who}: on a fresh batch the cv is {fresh[0]} with 1,000 bins, {fresh[1]} with 10,000",
        )


@specification("QB-VS-SIGN", kind="claim", source="Eq. 14; DeepSeek-V3")
def test_qb_vs_sign(subject: Subject) -> None:
    """Claim: Quantile Balancing evens loads out in a few steps, and needs no step size; the sign
    update takes several times as many at its best one, and does not get there at most.

    Setting: 32 experts, k = 4, 1,024 tokens, normal offsets of standard deviation 0.5, one batch,
    seeds 0 to 2. Steps are counted until max/mean <= 1.1. The sign update is DeepSeek-V3's,
    b_j + u sign(mean load - load_j), u one of 1e-4, 3e-4, … 1e-1.

    Judged: within 12 steps Quantile Balancing is there, on every seed, and the sign update on none,
    at no step size.

    Measured with up to 300 steps and 8 seeds (docs/balancing-claims.md): 3 steps, against a median
    of 57 with u = 3e-3 and 179 with 1e-3. With 1e-2 it gets there on 3 of 8 seeds, in 13 to 24
    steps, and above never: it swings by u around the optimum. A step size has to suit the spread of
    the scores; DeepSeek-V3's own, 1e-3, is meant for thousands of batches.

    Legal freedoms: an implementation whose declared formats round a bias that is read from 1,000
    bins by more than a bin may take longer.

    If it fails: a quantile per update buys no fewer updates.
    """
    at_best = [
        min(sign_steps(SMALL, seed, size, TARGET, MOST_STEPS) for size in STEP_SIZES)
        for seed in SEEDS
    ]
    note_figure(subject, "sign update: steps at its best", f"more than {min(at_best) - 1}")
    require(
        min(at_best) > MOST_STEPS,
        f"the sign update is at max/mean <= {TARGET} after {min(at_best)} steps",
    )
    for who in implementations(subject):
        steps = [steps_until(subject, who, SMALL, seed, TARGET, MOST_STEPS) for seed in SEEDS]
        note(subject, who, "steps", [float(number) for number in steps])
        if max(steps) > MOST_STEPS and who != "reference":
            _require_fine_routing(subject)
        require(
            max(steps) <= MOST_STEPS,
            f"{who}: max/mean is still above {TARGET} after {MOST_STEPS} steps",
        )


def _require_fine_routing(subject: Subject) -> None:
    """Not judged: formats that round what is read from the bins by more than a bin."""
    bins = Bins.of(np.zeros(SMALL.num_experts), SMALL.num_bins, subject.routing_arithmetic())
    if bins.slip > bins.width:
        name = subject.precision.routing_format
        raise NotOfferedError(f"{name} rounds a bias by {bins.slip:.2g}, a bin is {bins.width:.2g}")
