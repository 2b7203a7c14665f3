"""Where Quantile Balancing misses the LP optimum, or takes its time: the smallest instances.

Notation as in ``test_optimality``: margins p = s - alpha - beta, P the edges with p > 0, Z the
*tight* ones with p = 0, d the *demand* of a token, k minus its edges in P, or of an expert, q minus
those. *Smaller* is defined in ``lp_oracle.instances``, and every instance is drawn, round by round,
in docs/counterexamples.md.

A lemma serves three of the statements. (alpha, beta) is optimal exactly if some x in [0, 1]^Z meets
all demands: that is complementary slackness. By max-flow and min-cut none does exactly if

    d(A) > d(B) + e(A, B')    for some tokens A and experts B,

where ' is the complement and e counts tight edges. Let every token have l <= d <= deg - u, deg its
tight edges, and every expert l' <= d <= deg - u'. Summing deg over A, and over B' for the same
inequality seen from there (both sides demand the same in total),

    |A| |B| >= e(A, B) > u |A| + d(B) >= u |A| + l' |B|,
    |A'| |B'| >= e(A', B') > u' |B'| + d(A') >= u' |B'| + l |A'|.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import lp_oracle
from properties.checks import note_figure
from properties.judgement.optimality.fixed_points import EVERY_PAIR
from properties.judgement.optimality.pinned import (
    pinned_jams_named,
    require_alternation,
    require_jam_above,
    require_off_minimiser,
    require_price_war,
)
from properties.registry import specification
from properties.subject import Subject

WAR_SIZES = (4, 8, 16, 32)
ALTERNATIONS = 40


@specification("OPT-TIES", kind="counterexample", source="App. C; Eq. 14")
def test_opt_ties(subject: Subject) -> None:
    """Counterexample to "an interior rule finds the optimum": with tied scores each of the sixteen
    pairs of rules stops above LP* somewhere, interior on both sides or not.

    k = 1, two rows [0,0,0,0,0] and three [0,0,0,1,1]: LP* = 2, D = 3 for midpoint and linear. With
    one interior side 4 x 4 is enough, and for the opposite corners; for the two equal ones 3 x 3.
    On TIES_JAM, 5 x 5, all sixteen stop at one and the same point.

    Why: three tokens want two experts, and their two best scores tie, as do the three best of each
    expert's column. So every interval is a point, no step moves, and no price rises.

    Why nothing smaller: let a pair rest above LP* for an integer q. Its constant is 0, since any
    other certifies (OPT-FIXED, whose count needs no generic scores). In the lemma tokens have
    (l, u) = (0, 1) for "k+1", (1, 1) if interior (those without tight edges left out), (1, 0) for
    "k"; experts (l', u') the same for "q+1", interior, "q". So with two interior sides
    (|A| - 1)(|B| - 1) >= 2, and likewise for the complements: at least 4 x 6, 5 x 5 or 6 x 4. The
    only 4 x 6 has k = 3, two 2 x 3 blocks that are wholly tight, so d = 1 in B and A': B takes
    q - 1 = 1 edge of P each, 3 in all, but A' gives k - 1 = 2 each, 4 in all. 6 x 4 is its
    transpose. With one interior side, and for the opposite corners, 4 x 4 is the first shape with
    an integer load, for the equal corners 3 x 3. With k = 1, but at 4 x 4 the same count leaves
    only k = 3 to ("k+1", interior) and (interior, "q+1"). All scores are 0 or 1, and their sum is
    the least: every normal form of these shapes with scores 0 and 1 was tried.

    How it is checked: LP* by enumeration and by ``linprog``; D in rationals; one more round, which
    changes nothing but a constant; and the min-cut, which leaves demand unmet.

    If it fails: the counterexample does not hold, or the rules do not read the ranks they name.
    """
    covered = set()
    for name, pair in pinned_jams_named("TIES"):
        note_figure(subject, f"{pair[0]}/{pair[1]} {name}", require_jam_above(name, pair))
        covered.add(pair)
    for pair in EVERY_PAIR:
        require_jam_above("TIES_JAM", pair)
        covered.discard(pair)
    note_figure(subject, "pairs without an instance", len(covered))


@specification("OPT-FRACTION", kind="counterexample", source="App. C; Eq. 14")
def test_opt_fraction(subject: Subject) -> None:
    """Counterexample to "the dual falls to the optimum whatever the batch size": for a fractional
    q = m k / n every pair of rules ends above LP* on some generic scores.

    The ceil(q)-th statistic minimises, and still stops: with a corner cutoff at 2 x 3, on
    [[0,0,0],[0,1,2]] (k = 2: LP* = 8/3, D = 3; k = 1 and the mirror: 5/3 and 2); with an interior
    one at 2 x 5, k = 1, on [[0,0,0,2,2],[0,1,2,0,1]] (LP* = 14/5, D = 29/10 for midpoint, 74/25 for
    linear). Every other statistic leaves the minimiser: on [[0,1,1],[1,0,1]], k = 1, D starts at
    LP* = 2 and rises to 8/3, 7/3 or 20/9.

    Why: an expert's only minimiser is its ceil(q)-th margin, so every expert always has a tight
    edge, though its scores do not tie, and a token whose interval such edges close cannot move
    either. Moving several multipliers together would lower D; moving any one does not.

    Why nothing smaller, for the ceil(q)-th: the constant is 0, since for c > 0 more than n q = m k
    edges would have p > 0, and for c < 0 fewer. In the lemma experts have 0 < d < deg, fractional
    both. With one token every rule is optimal at once. "k+1" needs |A| |B| > |A| + d(B), so
    |B| = 2, |A'| = |B'| = 1 is the least; there k = 1 fails, as d(B) = 4/3. "k" needs
    |A'| |B'| > |A'|: 2 x 3. An interior cutoff needs both, 2 x 4 at least; there q = 1/2 or 3/2,
    d(B) >= 1, and 2 > 1 + d(B) is false. So 2 x 5 comes first. For other statistics 2 x 3, k = 1 is
    the first fractional shape of two tokens. The scores: by exhausting generic normal forms of
    these shapes.

    How it is checked: as OPT-TIES is, with x in multiples of 1/g, g the denominator of q.

    If it fails: the counterexample does not hold, or the rules do not read the ranks they name.
    """
    for name, pair in pinned_jams_named("FRACTION"):
        note_figure(subject, f"{pair[0]}/{pair[1]} {name}", require_jam_above(name, pair))
    for name, instance in (
        ("ends above", lp_oracle.FRACTION_OFF_MINIMISER),
        ("leaves the optimum", lp_oracle.FRACTION_RISES),
    ):
        note_figure(subject, name, require_off_minimiser(name, instance))


@specification("OPT-PRICEWAR", kind="counterexample", source="App. C, App. D; Eq. 14")
def test_opt_pricewar(subject: Subject) -> None:
    """Counterexample to "a few rounds suffice": the pair ("k+1", "q"), which reads the rank of
    Appendix D, needs 1/eps rounds on 4 x 4 scores whose optimum is the best by eps.

    The family, k = 1: [0,0,0,1], [1,1+eps,0,0], [1,1,0,0], [1+eps,1,0,0]. LP* = 3 + 2 eps, the
    second best assignment is worth LP* - eps, and D = LP* + 1 - t eps after round t.

    Why: three tokens want experts 1 and 2. The last of them prefers 1 by eps, the second prefers 2
    by eps: alpha is their second best offer, so the highest bid on either expert exceeds its price
    by eps, and both prices rise by eps at once. Nobody's preference has changed, and the next round
    is the same one. It ends only when the price, 1, makes expert 3 as good. Expert 3 cannot come to
    meet them, as an unwanted expert otherwise does in a single round: its price is what its most
    interested token offers, and that is the first token, whose alternative to expert 4, just
    bid up to 1, is expert 3 at price 0. Interior statistics raise by half of what is left.

    Why 4 x 4: at 3 x 3 two rounds reach LP*, on all normal forms with scores 0..6 and on a million
    others with scores up to 1000, half of them near-ties: no fourth expert binds the unwanted one.
    With two tokens or two experts one round does, on all normal forms with scores 0..6 (0..2 at
    2 x 6). Searched, not proved.

    How it is checked: in integers, size = 1/eps: every D and every increment exactly, LP* by
    enumeration and ``linprog``. A copy without cancelling cycles, from which the former differ by
    less than their least unit, is certified, and not before round 1/eps: ties are not to blame.

    If it fails: the family is not slow, or the rules do not read the ranks they name.
    """
    for size in WAR_SIZES:
        note_figure(subject, f"eps = 1/{size}", require_price_war(size))


@specification("OPT-ALTERNATE", kind="counterexample", source="App. C, App. D; Eq. 14")
def test_opt_alternate(subject: Subject) -> None:
    """Counterexample to "rounds come to rest": on generic scores the increments of the pair
    ("k+1", "q") can alternate for ever, with the dual at LP* and no certified routing.

    [[0,0],[0,1]], k = 1: (0, 1) and (1, 0) in turn; [[0,3],[1,2]]: (2, 0) and (0, 2).

    Why: once expert 2 costs 1, the second best offer of token 1 is expert 2 at that price, so it
    bids 1 for expert 1; then both cost 1, which is the start plus a constant. D stays at LP*, but
    in every round a token has a tie at its cutoff. Half a step, (0, 1/2), certifies (OPT-AVERAGE).
    Nothing smaller has an integer load and k < n.

    How it is checked: in integers, 40 rounds; a round is a function of beta up to a constant, so
    two equal pairs of increments repeat for ever. LP* by enumeration and by ``linprog``.

    If it fails: the instances come to rest, or the rules do not read the ranks they name.
    """
    for name in ("ALTERNATING_LEAST", "ALTERNATING"):
        note_figure(subject, name, require_alternation(name, ALTERNATIONS))
