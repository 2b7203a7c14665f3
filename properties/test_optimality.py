"""Quantile Balancing against the linear program of Appendix C: what is optimal, and when.

    primal    max sum s_ij x_ij   with rows of sum k, columns of sum q = m k / n, 0 <= x <= 1
    dual      D(alpha, beta) = k sum alpha + q sum beta + sum max(0, s_ij - alpha_i - beta_j)

LP* is their common optimum, beta = -b, and p = s - alpha - beta are the margins. With one block
fixed, the minimisers of the other form an interval: alpha_i in [(k+1)-th, k-th largest of
s_i - beta] and, for an integer q, beta_j in [(q+1)-th, q-th largest of s_:,j - alpha]. A *rule*
names a point of it; it is *interior* if that lies strictly inside wherever there is an inside.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import lp_oracle
from lp_oracle import EXPERT_RULES, TOKEN_RULES
from properties.checks import note_figure, require, unknown
from properties.errors import UnknownError
from properties.judgement.optimality.certificate import (
    candidate_biases,
    require_honest_certificate,
    require_honest_near_tie,
    require_kkt_certificates,
)
from properties.judgement.optimality.descent import (
    load_of,
    replayed,
    require_block_minimum,
    require_interval,
    require_reported_dual,
)
from properties.judgement.optimality.fixed_points import (
    EVERY_PAIR,
    INTERIOR_PAIRS,
    PAIRS,
    explain_rest,
    rest_of,
    settle,
    start_of,
)
from properties.judgement.optimality.jamming import jamming_frequencies, pinned_jams
from properties.judgement.optimality.optimum import bracket, value_of, written
from properties.registry import specification
from properties.strategies import optimality
from properties.strategies.optimality import (
    CertificateInputs,
    DescentInputs,
    DualInputs,
    FixedPointInputs,
    GenericInstance,
)
from properties.subject import Subject

SETTLING_ROUNDS = 600
REACHING_ROUNDS = 100
JAMMING_SEED, JAMMING_COUNT = 1, 100


@specification("OPT-WEAK", source="App. C", examples=80, inputs=optimality.duals())
def test_opt_weak(subject: Subject, inputs: DualInputs) -> None:
    """Theorem (weak duality): D(alpha, beta) >= LP* for all real multipliers.

    Hypotheses: real scores, 1 <= k <= n, any q; none on ties, signs or sizes.

    Proof: for a feasible x, sum s x = k sum alpha + q sum beta + sum p x by the row and column
    sums, and p x <= max(0, p) as 0 <= x <= 1. Without x <= 1 the last step fails for p > 0; without
    exact column sums D, which charges q beta_j for expert j, is not even a bound.

    How it is checked: LP* is bracketed by the rational value of an assignment that is feasible
    without rounding, and D is summed in rationals, so there is no tolerance. The oracle's D must
    lie within the radius that it states itself, 0 for integer scores. Multipliers are drawn small,
    large, and within 2^-2 to 2^-50 of optimal ones.

    If it fails: the dual value is no bound, and every gap and certificate built on it is wrong.
    """
    problem = inputs.problem
    optimum = bracket(problem.scores, problem.top_k)
    alpha, beta = inputs.token_multipliers, inputs.expert_multipliers
    if inputs.near is not None:
        best_alpha, best_beta = optimum.multipliers
        alpha = best_alpha + alpha * 2.0**-inputs.near
        beta = best_beta + beta * 2.0**-inputs.near
    value = require_reported_dual(subject, problem.scores, problem.top_k, alpha, beta)
    require(
        value >= optimum.lower,
        f"D = {float(value)!r} < {float(optimum.lower)!r}, the value of a feasible assignment, at "
        f"beta = {beta.tolist()}: {written(problem.scores, problem.top_k)}",
    )


@specification(
    "OPT-STEP",
    source="App. C; Eq. 14",
    examples=100,
    inputs=optimality.duals(with_cutoff=True, largest=6),
)
def test_opt_step(subject: Subject, inputs: DualInputs) -> None:
    """Theorem: each half step minimises D in its block; 0 is in the block's subdifferential.

    Hypotheses: real scores, 1 <= k < n. Any token rule; for an integer q any expert rule, for a
    fractional q the ceil(q)-th largest alone. With k = n there is no (k+1)-th score, and D is
    constant for small alpha.

    Proof: for fixed beta, D is a constant plus a sum over tokens of
    f(a) = k a + sum_j max(0, s_ij - beta_j - a). Its subdifferential [k - #{s - beta >= a},
    k - #{s - beta > a}] contains 0 exactly if #{>} <= k <= #{>=}: between the (k+1)-th and the k-th
    largest. For experts read q for k and columns for rows. A fractional q is no count, so 0 is
    passed inside a jump, at the ceil(q)-th largest; other rules can leave the minimiser.

    How it is checked: f is convex, linear between its breakpoints s_ij - beta_j, and grows at both
    ends, so the point is compared with every breakpoint, in rationals. Integer scores leave no
    tolerance; float64 ones that of a rounded difference times the steepest slope of f. The oracle's
    intervals must hold minimisers only, and all of them.

    If it fails: the descent does not descend, and its fixed points mean nothing.
    """
    del subject
    s_MN, top_k = inputs.problem.scores, inputs.problem.top_k
    alpha, beta = inputs.token_multipliers, inputs.expert_multipliers
    count, load = Fraction(top_k), load_of(s_MN, top_k)
    for token_rule in TOKEN_RULES:
        points = lp_oracle.token_step(s_MN, beta, top_k, rule=token_rule)
        require_block_minimum(s_MN, beta, points, count, f"token rule {token_rule}")
        slopes = lp_oracle.token_subgradient(s_MN, points, beta, top_k)
        require(slopes.contains(0), f"token rule {token_rule}: 0 is not in {slopes}")
    require_interval(s_MN, beta, lp_oracle.token_interval(s_MN, beta, top_k), count, "token")
    for expert_rule in EXPERT_RULES:
        if load.denominator > 1 and expert_rule != "q":
            continue
        points = lp_oracle.expert_step(s_MN, alpha, top_k, rule=expert_rule)
        require_block_minimum(s_MN.T, alpha, points, load, f"expert rule {expert_rule}")
        slopes = lp_oracle.expert_subgradient(s_MN, alpha, points, top_k)
        require(slopes.contains(0), f"expert rule {expert_rule}: 0 is not in {slopes}")
    require_interval(s_MN.T, alpha, lp_oracle.expert_interval(s_MN, alpha, top_k), load, "expert")


@specification(
    "OPT-DESCENT",
    source="App. C; Eq. 14",
    examples=120,
    inputs=optimality.descents(len(EVERY_PAIR)),
)
def test_opt_descent(subject: Subject, inputs: DescentInputs) -> None:
    """Theorem: D never grows along the rounds, and neither does the drift of beta.

    The drift of a round is max - min over experts of what it adds to beta. Hypotheses: real scores,
    k < n. For D: rules that minimise, so every rule for an integer q, and the expert rule "q" alone
    for a fractional one. For the drift: every rule at every q.

    Proof: each half step minimises D in its block (OPT-STEP). A round T is an order statistic of
    s - beta, then one of s - alpha, so beta <= beta' implies T beta <= T beta', and
    T(beta + c) = T beta + c. Hence beta <= beta' + max(beta - beta') gives
    max(T beta - T beta') <= max(beta - beta'), the minimum likewise; now take beta' = T beta.
    Rules that do not minimise can raise D: for q = 2/5, k = 1, s = [[1,3,5,8,9],[7,4,0,2,6]] the
    pair ("k+1", "q+1") goes from 16 to 86/5.

    How it is checked: the rounds are repeated outside the oracle and D is summed in rationals, with
    no tolerance for integer scores. The oracle's trace must report the values found here.

    If it fails: a rule reads a rank outside the interval, or the blocks see different scores.
    """
    s_MN, top_k = inputs.problem.scores, inputs.problem.top_k
    pair = EVERY_PAIR[inputs.pair]
    trace = lp_oracle.coordinate_descent(
        s_MN, top_k, token_rule=pair[0], expert_rule=pair[1], rounds=8, start=inputs.start
    )
    told = f"{pair[0]}/{pair[1]} from beta = {inputs.start.tolist()}: {written(s_MN, top_k)}"
    rounds = replayed(subject, inputs, pair, trace.rounds)
    for taken, (reported, own) in enumerate(zip(trace.dual_values, rounds, strict=True)):
        require(
            reported == own.reported,
            f"round {taken}: the trace says D = {reported}, but it is {own.reported}: {told}",
        )
    if load_of(s_MN, top_k).denominator == 1 or pair[1] == "q":
        for before, after in itertools.pairwise(rounds):
            require(
                after.value - before.value <= after.allowed,
                f"D grew from {float(before.value)!r} to {float(after.value)!r}: {told}",
            )
    for larger, smaller in itertools.pairwise(trace.drifts):
        require(
            smaller - larger <= 2.0 * trace.radius,
            f"the drift grew from {float(larger)!r} to {float(smaller)!r}: {told}",
        )


@specification(
    "OPT-FIXED",
    source="App. C; Eq. 14",
    examples=340,
    inputs=optimality.fixed_points(len(PAIRS)),
)
def test_opt_fixed(subject: Subject, inputs: FixedPointInputs) -> None:
    """Theorem: for generic scores and an integer q, a fixed point of rules that are interior on at
    least one side is LP-optimal, with x = argtop_k(s + b) as the only optimum.

    A fixed point is a beta to which a round adds one constant c. Generic: no alternating cycle of
    scores cancels. 1 <= k < n. The same holds for the opposite corners ("k+1", "q") and
    ("k", "q+1"): for all pairs of the four rules per side but the two of OPT-JAM.

    Proof. Tokens see margins p, experts p - c. Both steps are exact, so #{p > 0} <= k <= #{p >= 0}
    in every row and #{p > c} <= q <= #{p >= c} in every column. If c > 0: at least n q = m k edges
    have p >= c and at most m k have p > 0. So these are the same edges, k per row and q per column,
    and argtop_k has exact loads and margins of at least c (OPT-CERT). c < 0 is the mirror image.
    If c = 0: let Z be the edges with p = 0 and P those with p > 0, and let a vertex demand
    d = k - #P or d = q - #P of its own edges. Both sides demand m k - #P in total. Z is a forest,
    for along a cycle of Z the scores would cancel. Where a rule is interior, a vertex that touches
    Z has both ends of its interval at 0, so 1 <= d <= deg - 1 in Z, and any other demands 0. At the
    lower end ("k+1", "q+1") every vertex touches Z, and 0 <= d <= deg - 1; at the upper end
    ("k", "q") too, and 1 <= d <= deg. Now sum over a tree of Z with T + E vertices and T + E - 1
    edges, one side having d >= 1, the other d <= deg - 1: the former demands at least as much as it
    has vertices, the latter at most one less than that. This holds with the same sides in every
    tree, but the totals agree. So there is no tree: Z is empty, and loads and margins are strict.

    Without genericity TIES_JAM rests above LP* (5 x 5), with a fractional q FRACTION_JAM (2 x 5),
    with two corners of one kind CORNER_JAM_TOP1 (3 x 3): see lp_oracle.INSTANCES.

    How it is checked: fixed points in float64, from b = 0, from random starts and from a vertex of
    the dual optimum; genericity by construction, or with probability one (see
    ``strategies.score_classes``). The certificate decides, and must agree with ``linprog`` in value
    and assignment. Without one, tight edges that form a forest contradict the theorem, and a cycle
    up to rounding makes the case unknown, as does a descent that has not come to rest in 600
    rounds.

    If it fails: "Quantile Balancing finds the optimal assignment" is false where it was proved.
    """
    instance, pair = inputs.instance, PAIRS[inputs.pair]
    optimum = bracket(instance.scores, instance.top_k)
    start = start_of(inputs, optimum)
    found = settle(instance.floats, instance.top_k, pair, start, SETTLING_ROUNDS)
    if found is None:
        raise UnknownError(f"no fixed point in {SETTLING_ROUNDS} rounds")
    note_figure(subject, "rounds to the fixed point", found.rounds)
    verdict = lp_oracle.certify_routing(instance.floats, -found.beta, instance.top_k)
    if not verdict.optimal:
        explain_rest(found, instance.scores, instance.top_k, pair)
    optimum.require_attained_by(verdict.assignment)
    value = value_of(instance.scores, verdict.assignment)
    note_figure(subject, "relative gap to linprog", optimum.gap_of(value))


@specification(
    "OPT-REACH",
    kind="claim",
    source="App. C; Eq. 14",
    examples=340,
    instance=optimality.generic_instances(),
)
def test_opt_reach(subject: Subject, instance: GenericInstance) -> None:
    """Claim: from b = 0, rules that are interior on both sides reach the LP optimum of generic
    instances with an integer q within 100 rounds, but for about one in a thousand drawn here.

    Measured, for midpoint and linear on either side, on every class of ``strategies.score_classes``
    (heavy tails, scores within 1e-6, duplicated tokens, constant rows and columns, one expert that
    all tokens like best, each perturbed exactly, or real). OPT-FIXED proves that the descent cannot
    come to rest elsewhere; that it arrives after finitely many rounds is theorem 3 of
    docs/optimality.md. Their number has no bound in the shape alone: near-ties make it as large as
    one likes. Of 5,000 instances midpoints needed more than 100 on five, all of them duplicated
    tokens with a small perturbation, and linear rules up to 1,237 on these. So not reached is
    unknown, never a pass; at rest elsewhere is a violation.

    Reached means certified (OPT-CERT), with the value and the assignment of ``linprog``. Reported:
    the frequency, the mean and largest number of rounds of each pair, and the largest gap to the
    objective of ``linprog``, relative to sum |s| x (its tolerance of 1e-7, where scores are close).

    If it fails: an implementation with an interior statistic need not balance a fixed batch.
    """
    scores, top_k = instance.scores, instance.top_k
    optimum = bracket(scores, top_k)
    for token_rule, expert_rule in INTERIOR_PAIRS:
        trace = lp_oracle.coordinate_descent(
            scores, top_k, token_rule=token_rule, expert_rule=expert_rule, rounds=REACHING_ROUNDS
        )
        pair = f"{token_rule}/{expert_rule}"
        note_figure(subject, f"reached, {pair}", trace.outcome == "certified")
        if trace.outcome == "jammed":
            explain_rest(rest_of(trace), scores, top_k, (token_rule, expert_rule))
        if trace.outcome == "unfinished":
            unknown(subject, f"not reached in {REACHING_ROUNDS} rounds")
            continue
        optimum.require_attained_by(trace.verdict.assignment)
        note_figure(subject, f"rounds, {pair}", trace.rounds)
        gap = optimum.gap_of(value_of(scores, trace.verdict.assignment))
        note_figure(subject, "relative gap to linprog", gap)


@specification(
    "OPT-CERT",
    source="App. C",
    examples=100,
    inputs=optimality.certificates(largest=6),
)
def test_opt_cert(subject: Subject, inputs: CertificateInputs) -> None:
    """Theorem: if top-k of s + b has strict margins and every load is exactly q, it is the LP
    optimum, and the only one. No certificate is given wrongly, in floating point either.

    Hypotheses: any real scores and bias, ties among them included; for k = n, where nothing is left
    out, no margin is asked for.

    Proof: take beta = -b and alpha_i strictly between the k-th and (k+1)-th of s_i + b. Then p > 0
    where x = 1, p < 0 where x = 0, and p = 0 nowhere: x is feasible, complementary slackness holds,
    and for no other x. In float64, rounding is monotone: fl(s + b) > fl(s' + b') implies
    s + b > s' + b'. If scores may be off by r, a margin above 2 r survives the worst of it. Without
    strict margins a tie at the cutoff may hide a better choice; without exact loads x is not
    feasible.

    How it is checked: the oracle's verdict must be that of rational arithmetic, on small integers
    full of ties, on reals, and on near ties within ulps of the margin that decides. Certified
    routings must be ``linprog``'s optimum. The certificate by residuals must accept an exact
    optimum and no worse neighbour: with optimal multipliers, slackness holds for optimal x alone.

    If it fails: a "proved optimal" routing is not, and every other property here judges by it.
    """
    optimum = bracket(inputs.problem.scores, inputs.problem.top_k)
    require_kkt_certificates(optimum)
    found = [require_honest_certificate(optimum, bias) for bias in candidate_biases(optimum)]
    note_figure(subject, "certified problems", any(found))
    note_figure(subject, "certified near ties", require_honest_near_tie(inputs.near_tie))


@specification("OPT-JAM", kind="counterexample", source="Eq. 14, Algorithm 1")
def test_opt_jam(subject: Subject) -> None:
    """Counterexample to "a fixed point of Quantile Balancing is LP-optimal": the corners
    ("k+1", "q+1"), Eq. 14 and Algorithm 1 as written, stop above LP*, and so does their mirror
    ("k", "q").

    Generic scores, integer q, from beta = 0: s = [[3,0,4],[8,6,5],[2,1,7]] with k = 1 stops at
    D = 17, LP* = 16; s = [[6,0,3],[5,4,8],[1,7,2]] with k = 2 at D = 30, LP* = 29. The complement
    s -> 8 - s, k -> 3 - k turns them into instances of the mirror.

    Why: in the notation of OPT-FIXED every vertex touches Z with 0 <= d <= deg - 1, and the demands
    of both sides can agree. No smaller shape will do. With two rows, q = 1 and n = 2 k: at a fixed
    point p >= 0, every column has a tight edge, and at most k edges per row are not tight. So there
    are n tight edges, or n + 1 as Z is a forest. If n, P is feasible; if n + 1, one column has two,
    and the row with k - 1 edges in P takes one. Either way D = LP*. Two columns are the transpose.

    How it is checked: LP* by trying all assignments and by ``linprog``; D in rationals; one more
    round, which changes nothing but a constant; tight edges that form a forest, so that ties are
    not to blame; and midpoints, which do find the optimum. Reported: the instances with both
    values, and how often either pair of corners reaches LP* on a fixed batch of random instances.

    If it fails: the counterexample does not hold, or the rules do not read the ranks they name.
    """
    for name, told in (*pinned_jams(), *jamming_frequencies(JAMMING_SEED, JAMMING_COUNT)):
        note_figure(subject, name, told)
