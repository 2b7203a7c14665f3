"""Descent with a proof of arrival: the drift of ("k+1", "q"), its averages, and every input.

T is one round of the rules ("k+1", "q"), beta -> alpha -> T beta, not centred. It is monotone and
T(beta + c) = T beta + c, because order statistics are. The notation and the dual are those of
``test_optimality``; docs/optimality.md has the theory in one piece.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from fractions import Fraction

import lp_oracle
from properties.checks import note_figure, require
from properties.errors import UnknownError
from properties.judgement.optimality.averaging import (
    cheapest_exchange,
    exact_optimum,
    most_rounds,
    require_certified,
    require_exact_optimum,
    round_of,
    row_spread,
)
from properties.judgement.optimality.descent import load_of
from properties.judgement.optimality.optimum import bracket, written
from properties.registry import specification
from properties.strategies import averaging
from properties.strategies.averaging import DriftInputs
from properties.strategies.optimality import Problem
from properties.subject import Subject

PLAIN_ROUNDS = 20
AVERAGED_ROUNDS = 300


@specification("OPT-DRIFT", source="App. C; App. D", examples=120, inputs=averaging.drifts())
def test_opt_drift(subject: Subject, inputs: DriftInputs) -> None:
    """Theorem: under the pair ("k+1", "q"), uncentred and in exact arithmetic, the least increment
    of beta never decreases, the largest never grows, and between them lies the price c of the
    cheapest exchange; once the least is positive, the beta before that round is certified.

    Hypotheses: real scores, k < n; none on ties. For an integer q and an optimal 0/1 assignment x,
    c is the least loss per edge given, over all alternating cycles, when x gives r edges of the
    cycle and takes the r others. So c >= 0, and c > 0 exactly if x is the only optimum. For a
    fractional q ("q" reads the ceil(q)-th) put c = 0: then no increment is positive everywhere.

    Proof. Let d be the least increment: T beta >= beta + d gives T T beta >= T beta + d. The
    largest likewise. *Positive certifies*: in p = s - alpha - beta every row has at most k edges
    with p > 0 and every column at least ceil(q) with p >= d. If d > 0, counting gives
    n ceil(q) <= m k: q is an integer, both sets are one x with exact loads, chosen edges have
    p >= d and the others p <= 0, so x is the only optimum (OPT-CERT), and on a cycle it loses at
    least r d: d <= c. *The largest is at least c*: charge c less for every edge given, and no cycle
    of the exchange graph of x has a negative length; so shortest paths give alpha', beta' with
    p' >= c on x and p' <= 0 elsewhere. The (k+1)-th of a row of s - beta' is then at most alpha',
    so T beta' >= beta' + c, and by induction T^r beta' >= beta' + r c. If T beta <= beta + d, then
    T^r beta <= beta + r d, and beta' <= beta + const gives r c <= r d + const for all r: c <= d.
    For a fractional q, #{p >= 0} > m k > n (ceil(q) - 1) forbids that all increments are negative.

    How it is checked: integers, from 0 and from random starts, against the optimum of ``linprog``
    proved in rationals; c by dynamic programming over its exchanges; the certificate also in
    rational arithmetic outside the oracle. In floats an increment of 6e-17 is no proof.

    If it fails: a half step is not the order statistic it claims to be, and the certificate that
    histograms of ever finer bins lead to is worth nothing.
    """
    s_MN, top_k = inputs.scores, inputs.top_k
    optimum = exact_optimum(s_MN, top_k)
    is_integral = load_of(s_MN, top_k).denominator == 1
    price = cheapest_exchange(s_MN, optimum.assignment) if is_integral else Fraction(0)
    require(price >= 0, f"an exchange gains {-price}: {written(s_MN, top_k)}")
    told = f"beta = {inputs.start.tolist()}, {written(s_MN, top_k)}"
    beta, last = inputs.start, None
    for taken in range(PLAIN_ROUNDS):
        step = round_of(s_MN, beta, top_k)
        require(
            last is None or last.least <= step.least <= step.most <= last.most,
            f"round {taken} adds {step.added.tolist()} to beta, the one before {last}: {told}",
        )
        require(
            step.least <= price <= step.most,
            f"round {taken} adds {step.added.tolist()}, exchanges cost {price}; {told}",
        )
        if step.least > 0:
            require_certified(optimum, beta, step.least)
        beta, last = beta + step.added, step
    note_figure(subject, "the least increment turned positive", last is not None and last.least > 0)
    note_figure(subject, "the optimum is the only one", price > 0)


@specification("OPT-AVERAGE", source="App. C; App. D", examples=80, inputs=averaging.averages())
def test_opt_average(subject: Subject, inputs: DriftInputs) -> None:
    """Theorem: beta <- beta + (T beta - beta)/2 from beta = 0 reaches a positive least increment,
    and with it a certificate, within 16 R^2 / (pi c^2) + 1 rounds if the optimum is the only one.

    Hypotheses: integer q, k < n, exact arithmetic, and c > 0, where c is the price of OPT-DRIFT and
    R the largest difference between two scores of one token. Generic scores have a single optimum,
    for two would differ by alternating cycles without loss. The least increment never decreases.
    With several optima c = 0, and no increment is ever positive; beta still converges, and the dual
    may stay above LP*: at 5 on TIES_JAM, where LP* = 4. Ties are for OPT-EVERY.

    Proof. T is non-expansive for the spread max - min of beta - beta'. Two entries of T beta differ
    by at most R, so T maps the compact convex set {spread <= R}, modulo constants, into itself;
    Brouwer gives T beta* = beta* + c*, and c* = c by OPT-DRIFT. The averages of a non-expansive map
    in any norm satisfy |x_t - T x_t| <= 2 |x_0 - x*| / sqrt(pi t / 4) (Baillon and Bruck; the
    1996), and here |x_0 - x*| <= R. So after t > 16 R^2 / (pi c^2) rounds
    the increment's spread is below c; its largest entry is at least c, so all are positive. And if
    T beta >= beta + d, then T((beta + T beta)/2) >= T beta + d/2 >= (beta + T beta)/2 + d.

    How it is checked: integers with a unit that halves every round; c by dynamic programming from
    the optimum of ``linprog``. Within 300 rounds the certificate must come, if the bound does; one
    that has not come by then is unknown. With c = 0 the increments are held to their bounds.

    If it fails: the cure for alternating increments and for price wars does not cure.
    """
    s_MN, top_k = inputs.scores, inputs.top_k
    optimum = exact_optimum(s_MN, top_k)
    price = cheapest_exchange(s_MN, optimum.assignment)
    note_figure(subject, "the optimum is the only one", price > 0)
    limit = most_rounds(s_MN, price) if price > 0 else None
    scaled_MN, beta, unit = lp_oracle.exact(s_MN), lp_oracle.exact(inputs.start), 1
    told = written(s_MN, top_k)
    last: Fraction | None = None
    for taken in range(AVERAGED_ROUNDS if price > 0 else PLAIN_ROUNDS):
        step = round_of(scaled_MN, beta, top_k)
        least, most = Fraction(step.least, unit), Fraction(step.most, unit)
        require(
            (last is None or last <= least) and least <= price <= most,
            f"averaged round {taken}: increments from {least} to {most}, after {last}, with "
            f"exchanges from {price}: {told}",
        )
        if least > 0:
            require_certified(optimum, beta, step.least, unit)
            note_figure(subject, "averaged rounds", taken)
            return
        require(limit is None or taken < limit, f"no increment after {taken} rounds: {told}")
        beta, scaled_MN, unit, last = 2 * beta + step.added, 2 * scaled_MN, 2 * unit, least
    if price > 0:
        note_figure(subject, "not reached: spread over price", float(row_spread(s_MN) / price))
        raise UnknownError(f"not reached in {AVERAGED_ROUNDS} rounds; the bound is {limit}")


@specification("OPT-EVERY", source="App. C", examples=60, problem=averaging.every_problem())
def test_opt_every(subject: Subject, problem: Problem) -> None:
    """Theorem: perturbed descent reaches the LP optimum of every input, whatever the load and the
    ties, and proves it: its assignment is feasible, and its multipliers have the same value.

    Hypotheses: none but finite scores and 1 <= k <= n. The method is ``perturbed_descent``: copies
    of the tokens that make the load an integer, midpoint descent on perturbed scores with the
    perturbation halved from phase to phase, multipliers of the scores themselves by shortest paths.

    Proof. *Copies*: with q = a/g, g copies of each token and the load a. Averaging the copies' rows
    turns an assignment into one with 1/g of its value, copying rows leads back. *Perturbation*:
    scores L Q + w on integers L with 0 <= w < 2^B, Q > n 2^B. A cycle of an optimal x has r <= n
    edges to give, and its loss in L is an integer, times Q above -r 2^B: so at least 0. *Midpoints
    arrive*: generic scores, which the last phase has for certain. D falls and beta, modulo
    constants, stays bounded. Let D stand still along the rounds from a limit point. Then each half
    step moves from a minimiser to the middle of the same interval: no edge turns tight, none
    changes sign, and some become untight, unless both sides are interior already. After at most
    m + n rounds they are, and OPT-FIXED gives strict margins with exact loads. These survive a
    small change of beta, so some round before the limit has them. *Multipliers*: without a losing
    cycle the exchange graph has shortest paths, which are complementary slackness.

    Nothing bounds the number of midpoint rounds in terms of the shape alone. Measured: the rounds
    and the phases they come in. Unfinished after 20,000 rounds is unknown, never a pass.

    How it is checked: ties, near-ties, duplicates, constant rows and columns, heavy tails and reals
    of every scale, q of every kind. Feasibility, value and dual value in rationals, both equal;
    ``linprog``'s bracket must contain them; another seed must give the same value.

    If it fails: the oracle has no answer where ties or a fractional load leave descent without one.
    """
    s_MN, top_k = problem.scores, problem.top_k
    optimum = bracket(s_MN, top_k)
    found = lp_oracle.perturbed_descent(s_MN, top_k)
    require_exact_optimum(found, optimum)
    again = lp_oracle.perturbed_descent(s_MN, top_k, seed=1)
    require_exact_optimum(again, optimum)
    require(
        again.dual_value == found.dual_value,
        f"two seeds give {found.dual_value} and {again.dual_value}: {written(s_MN, top_k)}",
    )
    note_figure(subject, "rounds", found.rounds)
    note_figure(subject, "phases", len(found.rounds_per_phase))
    note_figure(subject, "the load was fractional", found.copies > 1)
