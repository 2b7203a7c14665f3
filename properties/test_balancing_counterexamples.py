"""What balancing does not do: average over ranks, and even loads out step by step.

These are statements about Eq. 14 itself, so they run on the reference and on the oracle alone. The
scores are (t + 1) / 8 of small integers t: neither the constant nor the factor changes a routing,
as the former moves every cutoff and the latter every bias along.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

import lp_oracle
from properties.checks import note_figure
from properties.judgement.optimality.pinned_updates import require_local_mean, require_uneven_loads
from properties.registry import specification
from properties.subject import Subject


@specification("QB-LOCALMEAN", kind="counterexample", source="Eq. 14; App. D")
def test_qb_localmean(subject: Subject) -> None:
    """Counterexample to "each rank may take its own quantiles, and the biases are then averaged":
    the mean of quantiles is not the quantile of the union. Counts add over ranks, quantiles do not.

    k = 1, scores of one rank [0,1] and [0,2], of the other [0,2] and [2,0]. Pooled, one update from
    b = 0 gives beta = (0, 3/2), loads (2, 2), and the LP optimum, certified. The ranks alone find
    (0, 3/2) and (1, 1), on average (1/2, 5/4): loads (1, 3) with strict margins, which is what they
    were without any update.

    Why: k/n = 1/2 makes Eq. 14 a median of s - alpha, and the median of a pair is its mean. So the
    average of the ranks is the mean of all four, and one extreme token, [2,0], moves it as far as
    it likes, which no quantile allows.

    Why nothing smaller, with ranks of equal size and an integer load: two tokens, one per rank,
    need k/n = 1/2 below 9 entries, and the linear median of two is their mean. Of 4 x 2, every
    normal form with scores up to 2 was tried, in every split into halves; this is the first.

    How it is checked: in rationals with the oracle's half steps, each rank by itself; and with
    ``reference_numpy`` on logits: loads, of the pooled update and of the mean of the two others.

    If it fails: an implementation that averages biases over ranks would be right after all.
    """
    note_figure(subject, "LOCAL_MEAN", require_local_mean(lp_oracle.LOCAL_MEAN))


@specification("QB-NOTMONO", kind="counterexample", source="Eq. 14; App. C")
def test_qb_notmono(subject: Subject) -> None:
    """Counterexample to "every update evens the loads out": max/min load can rise in a step that
    brings the dual nearer to the optimum.

    k = 2, scores [0,0,2,5], [0,0,3,5], [0,4,3,4], [2,0,2,1], Eq. 14 with the linear quantile: loads
    (1, 1, 3, 3), then (1, 1, 4, 2): max/min 3, then 4, with strict margins both times. The dual
    falls from 27 to 23 and then to LP* = 22, and the fourth update is certified.

    Why: D charges for prices as a whole, not for the worst expert. The first update prices the two
    popular experts at 3/2 and 3, each as if the other stayed as it was; the token that leaves
    expert 4 finds expert 3 the cheaper, which is the fullest already. What falls at every step is D
    (OPT-DESCENT), and loads are even once it rests (OPT-FIXED), not on the way.

    Why nothing smaller: every normal form below 16 entries with scores 0..4 (0..2 from 10 entries
    on) and every 4 x 4 with scores 0..3 was tried, and none rises with a finite ratio and then
    reaches the optimum. Scores up to 4 were sampled only: of shrunk finds none went below these.

    How it is checked: in rationals with the oracle, LP* by enumeration and by ``linprog``; and with
    ``reference_numpy`` on logits: the same loads, and exact loads in the end.

    If it fails: max/min load is a progress measure after all, and one may stop when it rises.
    """
    note_figure(subject, "UNEVEN_LOADS", require_uneven_loads(lp_oracle.UNEVEN_LOADS))
