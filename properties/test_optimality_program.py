"""The linear program of Appendix C itself: its vertices, its multipliers, and who agrees on them.

    primal    max sum s_ij x_ij   with rows of sum k, columns of sum q = m k / n, 0 <= x <= 1
    dual      D(alpha, beta) = k sum alpha + q sum beta + sum max(0, s_ij - alpha_i - beta_j)

LP* is their common optimum. Everything is compared with an optimum that comes from exchanges alone,
in rationals, and proves itself (``properties.judgement.optimality.exchange``).

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

import lp_oracle
from properties.checks import note_figure, require, unknown
from properties.judgement.optimality.descent import load_of
from properties.judgement.optimality.exchange import (
    optimum_by_exchange,
    require_feasible,
)
from properties.judgement.optimality.fixed_points import EVERY_PAIR
from properties.judgement.optimality.invariance import (
    require_complement,
    require_same_descent,
    require_same_optima,
    require_transpose,
)
from properties.judgement.optimality.optimum import value_of, written
from properties.judgement.optimality.program import (
    best_in_parts,
    copied,
    require_equal_dual_values,
    require_kkt,
    require_value,
    require_vertex,
    solved,
)
from properties.registry import specification
from properties.strategies import optimality
from properties.strategies.optimality import Problem, ProgramInputs, ShiftInputs
from properties.subject import Subject

SOLVERS = ("highs", "highs-ds", "highs-ipm")
TINY = (4, 3)
DESCENT_ROUNDS = 100

COPIES_FAIL = np.array([[1, 0, 0], [0, 0, 0], [0, 0, 0]])


@specification("OPT-VERTEX", source="App. C", examples=80, problem=optimality.problems(largest=6))
def test_opt_vertex(subject: Subject, problem: Problem) -> None:
    """Theorem: for q = a/g in lowest terms every vertex of the feasible set has entries in
    {0, 1/g, …, 1}, and some optimum is a vertex. So for an integer q LP* is attained by a 0/1
    matrix: the relaxation loses nothing.

    Hypotheses: real scores, 1 <= k <= n, any m. g is the least number for which this can hold, as
    a column of multiples of 1/g' cannot sum to q unless g divides g'.

    Proof: let y = g x, whose rows sum to g k and whose columns to a. Look at the entries of y that
    are not integers as edges between tokens and experts. Row and column sums are integers, so no
    vertex of this graph has exactly one of them. If there is any, there is a cycle, and it is even.
    Adding t to its entries, + and - in turn, keeps all sums, and for small t of either sign all
    bounds, since entries that are not integers are strictly inside them: x is the midpoint of two
    feasible points, no vertex. The feasible set is compact, and x = k/n is in it, so a vertex is
    among the optima. (The matrix of sums is totally unimodular: Hoffman and Kruskal 1956.) Evenness
    is what more constraints lose: with x_11 + x_22 = 1 added at 2 x 2, k = 1, only x = 1/2 is left.

    How it is checked: the exchanges give an optimum in parts of 1/g, whose value is that of D at
    their multipliers, in rationals. The simplex solution of ``linprog`` must be a vertex (entries
    between the bounds form a forest) and lie within a derived multiple of its tolerance from a
    feasible matrix in parts of 1/g. Up to 4 x 3 the best of all such matrices is worth LP*.

    If it fails: "the optimal routing" does not exist, and a solver's x cannot be rounded to one.
    """
    s_MN, top_k = problem.scores, problem.top_k
    told = written(s_MN, top_k)
    best = optimum_by_exchange(s_MN, top_k)
    require_feasible(best.assignment, top_k, f"the optimum by exchange ({told})")
    require_vertex(solved(s_MN, top_k, "highs-ds"), top_k, told)
    if s_MN.shape[0] <= TINY[0] and s_MN.shape[1] <= TINY[1]:
        of_all = best_in_parts(s_MN, top_k)
        require(of_all == best.value, f"LP* is {best.value}, the best of all {of_all}: {told}")
        note_figure(subject, "equal to the best of all matrices", True)


@specification(
    "OPT-DUALS",
    source="App. C",
    examples=80,
    inputs=optimality.programs(largest=6),
)
def test_opt_duals(subject: Subject, inputs: ProgramInputs) -> None:
    """Theorem: x and (alpha, beta, w, v) are optimal exactly if x is feasible, w >= 0 and
    v = w - s + alpha + beta >= 0, w (1 - x) = 0 and v x = 0 on every edge. The marginals of
    ``linprog`` satisfy this, and D at them is D at a certified descent of Quantile Balancing.

    Hypotheses: any real scores, 1 <= k <= n, any q, for the conditions. For the second half an
    integer q, k < n, and a descent that is certified: one at rest may stop above (OPT-JAM).

    Proof: for feasible x, k sum alpha + q sum beta + sum w - sum s x = sum (w (1 - x) + v x), by
    the row and column sums. With w, v >= 0 and 0 <= x <= 1 all terms are >= 0, so the left side is
    0, and both are optimal, exactly if all terms are. That some pair attains 0 is strong duality:
    exchanges that end without a gain produce it (Klein). Without w, that is, without x <= 1 in the
    program, alpha and beta price an edge that is used more than once (OPT-COPIES). At a certified
    descent alpha_i lies between the (k+1)-th and k-th of s_i - beta: p = s - alpha - beta is >= 0
    on the routing and <= 0 elsewhere, so D = sum s x. Optimal multipliers are not unique, not even
    up to a constant moved from alpha to beta: values are compared, never the multipliers.

    How it is checked: residuals are summed here in rationals, and may be what HiGHS' tolerance
    t = 1e-7 on scores scaled below 1 leaves (``judgement.optimality.program`` derives it). D at its
    multipliers is at least LP*, and at most M N edges of t above, where LP* is that of the
    exchanges on the one hand, and the value of the certified routing on the other; at the descent's
    own multipliers D is that value exactly on integers, and up to the rounding of a half step on
    reals.

    If it fails: a sign or a factor of the multipliers is wrong, and b = -beta taken from the
    program does not route to its optimum.
    """
    s_MN, top_k, instance = inputs.problem.scores, inputs.problem.top_k, inputs.instance
    require_kkt(subject, s_MN, top_k, solved(s_MN, top_k))
    trace = lp_oracle.coordinate_descent(
        instance.scores,
        instance.top_k,
        token_rule="midpoint",
        expert_rule="midpoint",
        rounds=DESCENT_ROUNDS,
    )
    if trace.outcome != "certified":
        unknown(subject, f"the descent is {trace.outcome} after {trace.rounds} rounds")
        return
    solution = solved(instance.scores, instance.top_k)
    require_kkt(subject, instance.scores, instance.top_k, solution)
    gap = require_equal_dual_values(instance.scores, instance.top_k, solution, trace)
    note_figure(subject, "difference of the dual values, relative to max |s|", gap)


@specification(
    "OPT-INVARIANT",
    source="App. C; Eq. 14",
    examples=60,
    inputs=optimality.shifts(len(EVERY_PAIR)),
)
def test_opt_invariant(subject: Subject, inputs: ShiftInputs) -> None:
    """Theorem: adding u_i + v_j to s_ij moves the optimum by k sum u + q sum v and keeps the set of
    optimal assignments; multipliers move by u and v, and so does every round of the descent.

    Hypotheses: real scores, u and v, any q, 1 <= k < n (with k = n a single x is feasible, and no
    cutoff exists); ties as well.

    Proof: a feasible x has sum (s_ij + u_i + v_j) x_ij = sum s x + k sum u + q sum v by its row and
    column sums: all values move alike. The margins s - alpha - beta stay what they are if alpha and
    beta move by u and v; a half step is an order statistic of s_i - beta, or of s_:,j - alpha, and
    moves by u_i, or v_j. It needs *equal* sums: where loads may differ from q, v_j x counts what
    expert j carries, and the optimum changes. Likewise x -> 1 - x turns (s, k, q) into
    (-s, n - k, m - q), with LP*(s, k) - sum s as its optimum, and for an integer q the transpose
    (s^T, q) has the optimum of (s, k). They turn instances of one corner pair into its mirror's.

    How it is checked: in rationals, for scores and shifts whose sums are exact. An optimum of
    either problem, by exchange and by ``linprog``, is an optimum of the other, and so is every
    exchange of it that costs nothing; of ``linprog``, to its tolerance. The descent of the oracle
    from v on s + u + v must repeat that from 0 on s round by round, certificate included.

    If it fails: token and expert offsets, which balancing exists to absorb, change the routing.
    """
    scores, top_k = inputs.problem.scores, inputs.problem.top_k
    best = optimum_by_exchange(scores, top_k)
    found = require_same_optima(inputs, best)
    note_figure(subject, "several optima", found)
    require_same_descent(inputs, EVERY_PAIR[inputs.pair])
    require_complement(best)
    if load_of(scores, top_k).denominator == 1:
        require_transpose(best)


@specification("OPT-CROSS", source="App. C", examples=60, problem=optimality.problems(largest=6))
def test_opt_cross(subject: Subject, problem: Problem) -> None:
    """Theorem: methods that share no step find the same LP*: exchanges, HiGHS' dual simplex and
    interior point, trying all assignments, and ``linear_sum_assignment`` on copies if k = 1 or
    q = 1.

    Hypotheses: real scores, 1 <= k <= n, any q; for copies an integer q and min(k, q) = 1.

    Proof: each maximises the same linear function over the same set, or over its vertices
    (OPT-VERTEX). For the copies: k rows for each token and q columns for each expert, every copy
    used once, gives row sums of k, column sums of q and whole x, so every assignment of the program
    is one of copies. Conversely x <= 1 holds if k = 1 or q = 1, since then only one copy of i, or
    of j, exists. If both are larger, two copies of a token may take two of an expert: the copies
    solve the program without x <= 1, whose optimum can be larger (OPT-COPIES).

    How it is checked: exchanges run in rationals and end with multipliers that prove their value,
    so this is LP*. Each HiGHS method must return a vertex whose rounding to parts of 1/g is
    feasible, worth LP* down to M N edges of its tolerance and never more, and an objective that is
    that of its x. On integers below 2^23 ``linear_sum_assignment`` rounds nothing, and must find
    LP* itself, as must trying all assignments up to 4 x 3.

    If it fails: an oracle is wrong, and nothing says which; the smallest input shows it.
    """
    s_MN, top_k = problem.scores, problem.top_k
    told = written(s_MN, top_k)
    best = optimum_by_exchange(s_MN, top_k)
    for method in SOLVERS:
        require_value(best, solved(s_MN, top_k, method), method)
    load = load_of(s_MN, top_k)
    if problem.is_exact and load.denominator == 1 and min(top_k, load) == 1:
        value = value_of(s_MN, copied(s_MN, top_k))
        require(value == best.value, f"copies: {value}, LP* = {best.value}: {told}")
        note_figure(subject, "copies agree", True)
    if s_MN.shape[0] <= TINY[0] and s_MN.shape[1] <= TINY[1]:
        of_all = best_in_parts(s_MN, top_k)
        require(of_all == best.value, f"all assignments: {of_all}, LP* = {best.value}: {told}")
        note_figure(subject, "all assignments agree", True)


@specification("OPT-COPIES", kind="counterexample", source="App. C")
def test_opt_copies(subject: Subject) -> None:
    """Counterexample to "copy each token k times and each expert q times, and solve an assignment
    problem": with min(k, q) > 1 a copied pair uses one edge twice.

    s = [[1,0,0],[0,0,0],[0,0,0]], k = 2, so q = 2: LP* = 1, for the only edge of any worth can be
    used once. Both copies of token 1 take both copies of expert 1, and the copies are worth 2. With
    k = 1 the same scores are worth 1 either way (OPT-CROSS proves it for min(k, q) = 1).

    No smaller shape will do if k < n: k >= 2 needs n >= 3, and q >= 2 with k < n needs
    m = q n / k > q, so m >= 3. The scores have a single 1. (With k = n, where nothing is left to
    choose, already 2 x 2: [[1,0],[0,0]].)

    How it is checked: LP* by trying all assignments, by exchange and by ``linprog``.

    If it fails: the copies would be a valid and fast oracle for every k.
    """
    counts_MN = copied(COPIES_FAIL, 2)
    told = written(COPIES_FAIL, 2)
    best = optimum_by_exchange(COPIES_FAIL, 2)
    of_all = best_in_parts(COPIES_FAIL, 2)
    require(best.value == of_all == 1, f"LP* is {best.value}, of all {of_all}, not 1: {told}")
    require_value(best, solved(COPIES_FAIL, 2), "linprog")
    copies = value_of(COPIES_FAIL, counts_MN)
    require(copies == 2, f"the copies are worth {copies}, not 2: {told}")
    require(counts_MN.max() == 2, f"no edge is used twice: {counts_MN.tolist()}")
    single = value_of(COPIES_FAIL, copied(COPIES_FAIL, 1))
    require(single == optimum_by_exchange(COPIES_FAIL, 1).value == Fraction(1), "k = 1 differs")
    note_figure(subject, "instance", f"{told}: LP {best.value}, copies {copies}")
