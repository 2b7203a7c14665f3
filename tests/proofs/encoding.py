"""Fixed points of Quantile Balancing as formulas of linear real arithmetic, for an SMT solver.

The unknowns are the margins p_ij = s_ij - alpha_i - beta_j, real numbers, where alpha is the token
step at beta; and the increments c_j that the expert step at alpha adds to beta. At a fixed point
they all are one constant c.

Nothing is lost by leaving out s, alpha and beta. Adding u_i + v_j to the scores moves the token
step by u_i, once beta is moved by v_j, and the expert step by v_j: both read order statistics of
differences. It moves D and LP* by the same amount and leaves alternating sums and optimal
assignments as they are. So subtract alpha_i + beta_j: the scores become p, the token step at
beta = 0 gives 0 and the expert step at alpha = 0 gives c. Read backwards, any p that solves a
formula is itself a matrix of scores whose descent from beta = 0 is there.

An order statistic is encoded by counting: the r-th largest of some values is t if and only if
#{> t} <= r - 1 and #{>= t} >= r. Counts are sums of 0/1 terms over the reals, so that the solver's
simplex sees that counting edges by rows and by columns gives the same total.

A rule is known by the *side* of the interval of minimisers, [(k+1)-th, k-th] or [(q+1)-th, q-th],
that it takes: its lower end, its upper end, or any point of its relative interior. "interior" thus
covers midpoint and linear, and every other such rule, even one that differs by row.

Legend: M tokens, N routed experts; Z the tight edges, p = 0; q = M top_k / N.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import z3

Term: TypeAlias = Any  # z3 ships no types: an arithmetic term
Formula: TypeAlias = Any  # a Boolean term
Side: TypeAlias = Literal["lower", "interior", "upper"]
Pair: TypeAlias = tuple[Side, Side]
Motion: TypeAlias = Literal["rest", "rise", "fall"]

TOKEN_SIDES: dict[str, Side] = {
    "k+1": "lower",
    "k": "upper",
    "midpoint": "interior",
    "linear": "interior",
}
EXPERT_SIDES: dict[str, Side] = {
    "q+1": "lower",
    "q": "upper",
    "midpoint": "interior",
    "linear": "interior",
}

ZERO, ONE = z3.RealVal(0), z3.RealVal(1)


@dataclass(frozen=True)
class Shape:
    """M tokens, N routed experts, top_k of them per token; 1 <= top_k < N."""

    m: int
    n: int
    top_k: int

    @property
    def load(self) -> Fraction:
        """q, which need not be an integer."""
        return Fraction(self.m * self.top_k, self.n)

    @property
    def is_integral(self) -> bool:
        """Whether q is an integer."""
        return self.load.denominator == 1

    @property
    def entries(self) -> int:
        """M N."""
        return self.m * self.n

    def __str__(self) -> str:
        return f"{self.m} x {self.n}, k = {self.top_k}"


def number(value: Fraction | int) -> Term:
    """A rational constant, exactly."""
    fraction = Fraction(value)
    return z3.RealVal(f"{fraction.numerator}/{fraction.denominator}")


def total(terms: Iterable[Term]) -> Term:
    """The sum of any number of terms."""
    return z3.Sum([ZERO, *terms])


def indicator(condition: Formula) -> Term:
    """1 where it holds, else 0."""
    return z3.If(condition, ONE, ZERO)


class Margins:
    """p (M, N) and c (N,), unknowns or constants, and what can be said about them.

    ``positive``, ``least`` hold the 0/1 terms of p > 0 and p >= 0, as tokens see the edges;
    ``positive_c`` and ``least_c`` those of p > c_j and p >= c_j, as experts do.
    """

    def __init__(self, shape: Shape, p: Sequence[Sequence[Term]], c: Sequence[Term]) -> None:
        self.shape, self.p, self.c = shape, p, c
        self.positive = [[indicator(x > 0) for x in row] for row in p]
        self.least = [[indicator(x >= 0) for x in row] for row in p]
        self.positive_c = [[indicator(x > t) for x, t in zip(row, c, strict=True)] for row in p]
        self.least_c = [[indicator(x >= t) for x, t in zip(row, c, strict=True)] for row in p]

    @classmethod
    def unknown(cls, shape: Shape, motion: Motion, *, together: bool = False) -> Margins:
        """Free reals; at "rest" every c_j is 0, else all are one unknown if ``together``."""
        p = [[z3.Real(f"p_{i}_{j}") for j in range(shape.n)] for i in range(shape.m)]
        moved = [z3.Real("c" if together else f"c_{j}") for j in range(shape.n)]
        return cls(shape, p, [ZERO] * shape.n if motion == "rest" else moved)

    def premises(self, motion: Motion) -> list[Formula]:
        """That every c_j has this sign; and, implied but of great help, the order of the terms."""
        orders = {
            "rest": ([], [self.positive, self.least]),
            "rise": (
                [t > 0 for t in self.c],
                [self.positive_c, self.least_c, self.positive, self.least],
            ),
            "fall": (
                [t < 0 for t in self.c],
                [self.positive, self.least, self.positive_c, self.least_c],
            ),
        }
        signs, chain = orders[motion]
        return signs + [
            x <= y
            for smaller, larger in itertools.pairwise(chain)
            for x, y in zip(itertools.chain(*smaller), itertools.chain(*larger), strict=True)
        ]

    def token_rule(self, i: int, side: Side) -> Formula:
        """The token step of this side gives alpha_i = 0."""
        return self.reads(total(self.positive[i]), total(self.least[i]), self.shape.top_k, side)

    def expert_rule(self, j: int, side: Side) -> Formula:
        """The expert step of this side gives beta_j = c_j.

        For a fractional q only the ceil(q)-th largest minimises: it is both ends and the interior
        of its interval, and called "upper". ValueError for another side.
        """
        if not self.shape.is_integral and side != "upper":
            raise ValueError(f"q = {self.shape.load} has one minimiser: use the side 'upper'")
        rank = math.ceil(self.shape.load)
        positive, least = _column(self.positive_c, j), _column(self.least_c, j)
        return self.reads(total(positive), total(least), rank, side)

    def reads(self, above: Term, least: Term, rank: int, side: Side) -> Formula:
        """This side of [(rank+1)-th, rank-th] is t, given how many values are > t and >= t.

        "interior" says in one line: if no value is t, exactly ``rank`` are above, and t lies
        strictly between; if some are, both ends must be t.
        """
        if side == "lower":
            return z3.And(above <= rank, least >= rank + 1)
        if side == "upper":
            return z3.And(above <= rank - 1, least >= rank)
        touched = indicator(least > above)
        return z3.And(above <= rank - touched, least >= rank + touched)

    def fixed_point(self, pair: Pair) -> list[Formula]:
        """A round by these rules takes beta = 0 to c, with alpha = 0 in between."""
        rows = [self.token_rule(i, pair[0]) for i in range(self.shape.m)]
        return rows + [self.expert_rule(j, pair[1]) for j in range(self.shape.n)]

    def margin_is_strict(self, i: int) -> Formula:
        """Token i's k-th largest exceeds its (k+1)-th; provided that its step is exact.

        An exact step has #{p > 0} <= k <= #{p >= 0}. With equality on the left the k-th is positive
        and the (k+1)-th is not, on the right the k-th is not negative and the (k+1)-th is;
        otherwise both are 0.
        """
        top_k = self.shape.top_k
        return z3.Or(total(self.positive[i]) == top_k, total(self.least[i]) == top_k)

    def load_is_exact(self, j: int) -> Formula:
        """Expert j is chosen by q tokens; provided that every margin is strict."""
        top_k = self.shape.top_k
        chosen = [
            z3.If(total(self.positive[i]) == top_k, self.positive[i][j], self.least[i][j])
            for i in range(self.shape.m)
        ]
        return total(chosen) == number(self.shape.load)

    def certified(self) -> Formula:
        """argtop_k has strict margins and exact loads: it is the optimum, and the only one."""
        rows = [self.margin_is_strict(i) for i in range(self.shape.m)]
        return z3.And(*rows, *(self.load_is_exact(j) for j in range(self.shape.n)))

    def ways_to_miss_certificate(self) -> Iterator[Formula]:
        """Two formulas, one of which holds, up to a renumbering, if it is not ``certified``.

        Whichever row or column fails can be called the first: what the claims assume is the same
        under any permutation of tokens and of experts.
        """
        yield z3.Not(self.margin_is_strict(0))
        rows = [self.margin_is_strict(i) for i in range(self.shape.m)]
        yield z3.And(*rows, z3.Not(self.load_is_exact(0)))

    def is_violated(self, rows: Sequence[int], columns: Sequence[int]) -> Formula:
        """This cut proves D > LP* at alpha = beta = 0.

        D = sum max(0, p) is LP* if and only if complementary slackness has a solution: x = 1 where
        p > 0, x = 0 where p < 0, and on Z a flow in [0, 1] that gives token i what it still
        demands, k - #{p > 0}, and expert j q - #{p > 0}. Both sides demand M k - #{p > 0} in total.
        By max-flow min-cut there is none if and only if some set A of tokens demands more than some
        set B of experts plus all tight edges from A to other experts can take. The edges with p > 0
        between A and B cancel, and what is left are the edges that leave A and those that enter B.
        """
        leaving = [self.least[i][j] for i in rows for j in range(self.shape.n) if j not in columns]
        entering = [
            self.positive[i][j] for i in range(self.shape.m) for j in columns if i not in rows
        ]
        surplus = len(rows) * self.shape.top_k - len(columns) * self.shape.load
        return total(leaving) - total(entering) < number(surplus)

    def ways_to_exceed_optimum(self) -> Iterator[Formula]:
        """Formulas, one of which holds, up to a renumbering, if and only if D > LP*."""
        for a, b in itertools.product(range(self.shape.m + 1), range(self.shape.n + 1)):
            yield self.is_violated(range(a), range(b))

    def tight_counts(self) -> list[Term]:
        """How many tight edges every token has, then every expert."""
        tight = [
            [y - x for x, y in zip(above, least, strict=True)]
            for above, least in zip(self.positive, self.least, strict=True)
        ]
        return [total(row) for row in tight] + [
            total(column) for column in zip(*tight, strict=True)
        ]

    def fewer_tight_edges_than_vertices(self) -> Formula:
        """Z is empty, or has fewer edges than tokens and experts that touch it.

        Weaker than "Z is a forest", which has one edge less per tree than vertices, and so weaker
        than "no alternating cycle of scores cancels", since along a cycle of Z the margins are 0.
        """
        counts = self.tight_counts()
        edges = total(counts[: self.shape.m])
        return z3.Or(edges == 0, edges < total(indicator(count > 0) for count in counts))

    def every_vertex_is_tight(self) -> Formula:
        """Every token and every expert touches Z: then all interior rules read the same values."""
        return z3.And([count > 0 for count in self.tight_counts()])

    def no_cycle_cancels(self) -> Formula:
        """Generic: no alternating cycle of margins, hence of scores, sums to 0."""
        return z3.And(
            [
                total(self.p[i][j] for i, j in zip(rows, columns, strict=True))
                != total(
                    self.p[i][j] for i, j in zip(rows, (*columns[1:], columns[0]), strict=True)
                )
                for rows, columns in cycles(self.shape.m, self.shape.n)
            ]
        )


def cycles(m: int, n: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every cycle of the complete bipartite graph, from its least row, once per direction."""
    for length in range(2, min(m, n) + 1):
        for rows in itertools.permutations(range(m), length):
            if rows[0] == min(rows):
                for columns in itertools.permutations(range(n), length):
                    yield rows, columns


def _column(rows: Sequence[Sequence[Term]], j: int) -> list[Term]:
    return [row[j] for row in rows]
