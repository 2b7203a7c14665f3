"""Quantile Balancing of an implementation against the linear program of Appendix C.

Iterated on one batch, an implementation's own update descends the dual of one assignment problem.
How far down it gets depends on the statistics that it reads: see OPT-FIXED and OPT-JAM.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from properties.judgement.optimality.own_batch import Batch
from properties.judgement.optimality.own_rounds import iterate
from properties.registry import specification
from properties.strategies import optimality
from properties.strategies.optimality import BatchInputs
from properties.subject import Subject

OWN_ROUNDS, MORE_ROUNDS = 400, 8


@specification(
    "OPT-IMPL",
    source="Eq. 14; App. C",
    needs=("quantile_update",),
    examples=100,
    inputs=optimality.batches(),
)
def test_opt_impl(subject: Subject, inputs: BatchInputs) -> None:
    """Theorem: iterated on one batch from b = 0, an exact ``quantile_update`` never raises the dual
    value; one that declares an interior statistic or the q-th does not come to rest above LP*.

    Hypotheses: k < n, an integer q, scores generic at the precision of the routing format; interior
    keeps half of min(k, n - k)/n, the linear quantile's share, from both ends. For every
    ``expert_rank``: (a) D never grows, and never falls below LP*; one more update at LP* keeps it
    there. For "interior": (b) within 400 rounds top-k of s + b has strict margins and loads exactly
    q; it is ``linprog``'s optimum, and what ``route`` chooses. For "q": (c) D reaches LP* within
    400 rounds. For "q+1", and where nothing is declared, where the rounds stop is only reported,
    since the corner "q+1" does rest above LP* (OPT-JAM).

    Proof: (a) is OPT-DESCENT, with the rounding of scores, cutoff, statistic and centring carried
    through: each b_j is within a radius of a minimiser, and D has slopes of at most max(q, m - q)
    in it. D >= LP* holds for any bias: it judges the suite, not the subject. (b), (c) are
    OPT-FIXED: at rest without a certificate, the tight edges contain a cycle, along which scores
    cancel up to rounding: unknown. A forest is a violation. That it arrives in 400 rounds is the
    claim of OPT-REACH: if not, unknown; near-ties cost the q-th statistic about 1/eps rounds.

    Legal freedoms: any point of the interval that ``expert_rank`` allows, any constant added to b,
    and, with an interior statistic, a cutoff strictly between the k-th and (k+1)-th biased score or
    at the same end for all tokens. Mixed ends lose the theorem: tokens 1 and 2 at the k-th, the
    others at the (k+1)-th and midpoints rest at D = 12, LP* = 11, for k = 1 and the generic
    s = [[0,-1],[0,-2],[4,0],[8,0],[-16,0],[-32,0]].

    Reported, over all batches: the rule, i.e. the pair of cutoff and statistic, of the sixteen with
    names, that agrees with the first four updates of every batch, or that none does; how often it
    jams, at rest above LP* (two corners do, OPT-JAM) or is still moving there; the median and worst
    gap D - LP*, relative to the optimum; the largest load over q and the largest abs(load - q), as
    ``route`` chooses at the last bias. A bias on which D is at LP* need not route the optimum: the
    q-th statistic leaves ties at the cutoffs, which rounding breaks.

    Batches on which 16-bit scores cancel along a cycle are not generic; they are counted apart.

    If it fails: D grows when the update's sign is flipped, when the bias is accumulated or kept in
    bfloat16, or a rank beyond the interval is read; it rests above LP* when a corner passes for
    interior, or the k-th score for the cutoff of the q-th statistic. Loads then stay off balance
    for ever on a batch that could be balanced exactly.
    """
    logits = subject.round_to_routing(subject.round_to_storage(inputs.logits))
    batch = Batch.of(subject, logits, inputs.top_k)
    rank = subject.conventions.expert_rank
    state, there = iterate(batch, OWN_ROUNDS, until_certified=rank == "interior")
    rounds = state.taken
    if there:
        state.require_to_stay()
        state.settle(MORE_ROUNDS)
    state.report(rounds)
    if not there and rank in ("interior", "q"):
        state.explain_rest(OWN_ROUNDS)
