"""What docs/counterexamples.md says in words; every number in its tables is computed."""

from __future__ import annotations

from collections.abc import Mapping

INTRODUCTION = """
# Counterexamples, by hand

Quantile Balancing is coordinate descent on the dual of an assignment problem. These are the
smallest scores on which something that one would like to believe of it is false. The
tables are computed from `lp_oracle.INSTANCES` and `lp_oracle.behaviours`; the page is written by
`python -m benchmarks.draw_counterexamples`, the instances are found again by `python -m
benchmarks.counterexample_search`, and `OPT-JAM`, `OPT-TIES`, `OPT-FRACTION`, `OPT-PRICEWAR`,
`OPT-ALTERNATE`, `QB-LOCALMEAN` and `QB-NOTMONO` judge them.

**How to read it.** Token t1 scores experts e1, e2, … with the numbers of its row. A round reads
alpha, one number per token, from the rows of s − beta, then beta, one per expert, from the
columns of s − alpha. *k with q+1* means: alpha is the k-th largest, beta the (q+1)-th largest;
*midpoint* lies half way between the k-th and (k+1)-th, or between the q-th and (q+1)-th; *linear*
interpolates rank k + 1 − k/n, or q + 1 − k/n, as NumPy's quantile does. −beta is the selection
bias. All descents start at beta = 0, and

    D = k (sum of alpha) + q (sum of beta) + (sum of all positive margins p = s − alpha − beta)

bounds the worth of every assignment with k experts per token and q tokens per expert. LP\\* is
the best worth there is. ● marks a margin above 0: the assignment that belongs to these
multipliers must contain this edge. ○ marks a *tight* edge, with margin 0: it may. All other edges
are out. *Demand* is what is left of k or of q after the ●.

**Smaller** means: fewer entries, then fewer tokens, then a smaller k, then a smaller largest
score, then a smaller sum, then the rows that come first; each row with least score 0, rows and
column sums ascending, which loses nothing. *Generic* means that along no cycle of scores, taken
plus and minus in turn, the sum is 0.
"""

JAM_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Equal corners jam on generic scores": (
        "CORNER_JAM_TOP1_LEAST",
        "CORNER_JAM_TOP2_LEAST",
        "MIRROR_JAM_TOP1_LEAST",
        "MIRROR_JAM_TOP2_LEAST",
    ),
    "Ties jam every pair of rules": (
        "TIES_CORNER",
        "TIES_MIRROR",
        "TIES_TOKEN_K",
        "TIES_OPPOSITE",
        "TIES_EXPERT_Q",
        "TIES_EXPERT_Q_LINEAR",
        "TIES_TOKEN_K_1",
        "TIES_EXPERT_Q_1",
        "TIES_INTERIOR",
    ),
    "A fractional load jams the statistic that minimises": (
        "FRACTION_TOKEN_K",
        "FRACTION_TOKEN_K_1",
        "FRACTION_MIDPOINT",
        "FRACTION_LINEAR",
    ),
}

STORIES: Mapping[str, str] = {
    "Equal corners jam on generic scores": """
Eq. 14 and Algorithm 1 as written read the (k+1)-th score and the (q+1)-th margin, the lower ends
of both intervals. The mirror reads both upper ends. No smaller shape jams (last section). Every
generic 3 x 3 with smaller scores was tried.
""",
    "CORNER_JAM_TOP1_LEAST": """
t2 should take e1, at a loss of 1. Its two best offers tie, so its interval is one point, and so
do the two best bids on e1. t1 and t3 could move, by 3 and by 2, but the lower ends keep them
where they are. Midpoints move them, and find LP\\*.
""",
    "CORNER_JAM_TOP2_LEAST": """
e2 and e3 have their two tokens, and t3 still has to take one of them. t1 or t2 must swap for e1,
but both margins at e1 are 0 already: e1 has its one ● and two ○, so its (q+1)-th margin is where
it is.
""",
    "MIRROR_JAM_TOP1_LEAST": """
t1 and t2 both hold on to e3. Their alphas stand at the upper ends, 3 and 4, though all down to 1
and 3 are as good; so neither bids more than 0 for e3, and its price does not rise. At e1 and e2
the same is true of t3.
""",
    "MIRROR_JAM_TOP2_LEAST": """
t2 and t3 need three places, and their tight edges lead to e2 and e3, where t1 has taken one. The
k-th score puts each alpha as high as it goes, so nobody looks at the next expert.
""",
    "Ties jam every pair of rules": """
With ties an interval can be closed though its ends are different edges, so even midpoints do not
move. Integer loads; each instance is the smallest for the pairs it names, and the sixteen pairs
are all here. On `TIES_JAM` (below) all sixteen stop at the same point. Every scores-0-and-1
instance up to 5 x 5 was tried; that the shapes are the smallest whatever the scores is proved in
the last section.
""",
    "TIES_CORNER": """
The same picture as for generic scores, with 0 and 1. t3 has to take e1 at a loss of 1, and no
price tells it to.
""",
    "TIES_MIRROR": """
Two tokens want e3, and both have margin exactly 0 there, so neither can be told to leave. e3
should cost 1 more; but its largest margin, the q-th, is 0, and so it costs what it did.
""",
    "TIES_TOKEN_K": """
As above, and now the two best margins of e4 tie, so its whole interval is the point 0 and the
statistic does not matter. The lukewarm tokens t1 and t2 tie at e1, e2 and e3, which closes those
intervals.
""",
    "TIES_OPPOSITE": """
Three tokens want two experts and are indifferent between them, so the (k+1)-th score is as high
as the k-th. This is the rank that Appendix D's histogram reads, in the limit of fine bins.
""",
    "TIES_EXPERT_Q": """
One round raises e4 to 1/2 and lowers e1 to −1/2: just so far that three tokens are indifferent
between the two, and two are places for three. e2 and e3 should come down by 1/2 to meet them, but
each is held by the margin 0 of t4.
""",
    "TIES_EXPERT_Q_LINEAR": """
The same scores: the linear cutoff goes a quarter of the way from the (k+1)-th score where the
midpoint goes half.
""",
    "TIES_TOKEN_K_1": """
The complement of `TIES_TOKEN_K`: 1 − s, and n − k for k. t1 and t2 need six places; e2, e3 and e4
have one left each, and of e1 each can take one.
""",
    "TIES_EXPERT_Q_1": """
e3 and e4 are full with t2, t3 and t4, and t1 needs three places where only e1 and e2 are left.
""",
    "TIES_INTERIOR": """
Three tokens want e4 and e5 and tie there; so do the three best margins in each of these columns;
and two lukewarm tokens close the intervals of e1, e2 and e3. Every interval on both sides is one
point, so no rule of any kind moves. Raising e4 and e5 *together* lowers D at once.
""",
    "A fractional load jams the statistic that minimises": """
If q is no integer, an expert's only minimiser is its ceil(q)-th largest margin. Then every expert
has a tight edge at all times without any ties in the scores. These instances are generic.
""",
    "FRACTION_TOKEN_K": """
t2 wants e3 whole, and e3 may give it 2/3. Its k-th score makes alpha as high as it goes, so only
e3 is tight, and e3's largest margin is that very 0.
""",
    "FRACTION_TOKEN_K_1": """
t2 takes e2 and e3 whole, which leaves 1/3 of each, and t1 wants two experts where 5/3 are left.
""",
    "FRACTION_MIDPOINT": """
One round, and the tokens have parted the experts: t1 has e4 and e5, whose loads sum to 4/5, and
t2 has the other three. t1 needs 1/5 of e1, which is 1/2 away; but its two tight edges close its
interval, those of t2 close the other, and every expert's largest margin is 0.
""",
    "FRACTION_LINEAR": """
The same parting with a cutoff at 6/5 instead of 3/2. D depends on where the cutoff was when the
experts settled.
""",
    "off minimisers": """
The ceil(q)-th statistic reaches LP\\* on both, in at most one round. All others leave the
minimiser; what they end at does not depend on the token rule here (the table has k+1).
""",
    "FRACTION_OFF_MINIMISER": """
Each expert with a positive margin should rise by 1 until the margin is gone. The others stop on
the way: at the second largest margin, half way, or 2/3 of the way.
""",
    "FRACTION_RISES": """
The start is optimal: each column's largest margin is 0, the minimiser. Every other rule reads
below it where the second margin is lower, at e1 and e2. D *rises*, and stays risen: this is no
descent at all.
""",
    "ALTERNATING_LEAST": """
Once e2 costs 1, the second best offer of t1 is e2 at that price, so it bids 1 for e1; then both
cost 1, which is the start with 1 more everywhere, and e2 rises again. D is at LP\\* all the time,
but in every round some token has a tie at its cutoff, so no routing is certified. Half a step, to
(0, 1/2), certifies at once. The catalogue's [[0,3],[1,2]] does the same with increments (2, 0)
and (0, 2).
""",
    "PRICE_WAR": """
t2, t3 and t4 want e1 and e2. t2 prefers e2 by 1, t4 prefers e1 by 1, and alpha is each token's
second best offer: so the highest bid on either exceeds its price by exactly 1. Both prices rise
by 1 *together*, nobody's preference changes, and the next round is the same one, until a price of
1/eps makes e3 as good. In scores divided by 4, every round brings eps, and the optimum beats the
second best assignment by eps. Elsewhere the unwanted expert comes to meet them, in one round: its
price falls to what its best bidder would pay. Here t1 holds e3 at 0, because e4, bid up to 4 in
the first round, leaves t1 no better second offer. Two midpoints need two rounds.

At 3 x 3 two rounds reach LP\\* on all scores 0..6, and on near-ties sampled up to 1000; so 4 x 4
is the smallest shape as far as searching tells. A copy of the family without cancelling cycles is
certified, in round 1/eps + 1: ties are not to blame.
""",
    "UNEVEN_LOADS": """
max/min load goes from 3 to 4 while D falls from 27 to 23. The two popular experts e3 and e4 are
priced as if the other stayed where it was. t3 then finds e4 too dear and takes e3, the fullest of
all. D weighs all prices against all margins and cannot rise; the fullest expert is no measure of
progress. Round 4 is certified.

No instance below 16 entries with scores 0..4 (0..2 from 10 entries on) does this and then reaches
the optimum, nor does a 4 x 4 with scores 0..3; scores up to 4 there were sampled only.
""",
    "LOCAL_MEAN": """
With k/n = 1/2 the quantile is a median, and the median of two is their mean. So averaging the
ranks takes the mean of all four, and t4 alone drags it: e1 is made dearer by 1/2, and no token
but t4 still prefers it. Counts may be added over ranks, quantiles may not be averaged. Two
tokens, one per rank, cannot show it: the linear median of two is their mean.
""",
}

LEMMA = """
## Why nothing smaller jams

Take multipliers at which a round changes nothing. (For an integer load a round that adds a
constant other than 0 to all of beta proves its routing optimal, ties or not; for a fractional one
the ceil(q)-th statistic adds no other.) They are optimal exactly if the tight edges
can carry all demands, an x between 0 and 1 on each. By max-flow and min-cut they cannot exactly
if for some tokens A and experts B

    demand(A) > demand(B) + (tight edges from A to the experts outside B).

Let every token demand at least l and at most u less than its number of tight edges, every expert
at least l' and at most u' less. Counting the tight edges of A, and in the same way those of the
experts outside B, gives

    |A| |B| > u |A| + l' |B|     and     |A'| |B'| > l |A'| + u' |B'|        (' the complement).

| rule | l, u |
| --- | --- |
| k+1, q+1 | 0, 1 |
| midpoint, linear | 1, 1 (tokens and experts without tight edges left out) |
| k, q | 1, 0 |

| pairs | least tokens x experts | first with an integer load |
| --- | --- | --- |
| k+1 with q+1, k with q | 3 x 3 | 3 x 3 |
| k+1 with q, k with q+1 | 3 x 4, 4 x 3 | 4 x 4 |
| one side interior, tokens in a corner | 4 x 4, 5 x 3 | 4 x 4 |
| one side interior, experts in a corner | 3 x 5, 4 x 4 | 4 x 4 |
| both sides interior | 4 x 6, 5 x 5, 6 x 4 | 5 x 5 |

In the last row, 4 x 6 and 6 x 4 have fewer entries than 5 x 5, but fail: at 4 x 6, k = 3, q = 2
both blocks A–B and A'–B' are 2 x 3 and wholly tight, and the counts leave demand 1 to each of B
and A'. So the experts of B have one ● each, 3 in all, while the tokens of A' have two each, 4 in
all, and these are the same edges. 6 x 4 is the transpose. The same count leaves only k = 3 at 4 x
4 to *k+1* with an interior statistic and to an interior cutoff with *q+1*.

With a fractional load every expert has 0 < demand < its tight edges. *k* and *k+1* need 2 x 3; an
interior cutoff needs 2 x 4 with an expert pair that has |A||B| = 2 > 1 + demand(B), but there q
is 1/2 or 3/2 and demand(B) at least 1. So 2 x 5 is the first.
"""

OTHER_JAMS: Mapping[str, str] = {
    "CORNER_JAM_TOP1": "the scores 0..8, each once",
    "CORNER_JAM_TOP2": "the scores 0..8, each once",
    "MIRROR_JAM_TOP1": "8 − s of CORNER_JAM_TOP2",
    "MIRROR_JAM_TOP2": "8 − s of CORNER_JAM_TOP1",
    "TIES_JAM": "all sixteen pairs stop here",
    "FRACTION_JAM": "every token rule stops here, scores 0..9",
    "FRACTION_CORNER_JAM": "the scores 0..5, each once",
    "ALTERNATING": "the increments are (2, 0) and (0, 2) in turn",
}
