"""What is proved at each shape: claims whose every case has no solution in real numbers.

The theorem OPT-FIXED says: for an integer q and scores on which no alternating cycle cancels, a
fixed point of rules that are interior on at least one side, or take opposite corners, is the LP
optimum. Its increment is one constant c; FIXED covers c = 0, and MOVED covers c > 0 and c < 0,
where even increments that differ by expert will do. What FIXED assumes of the scores is less than
genericity (``Margins.fewer_tight_edges_than_vertices``), and MOVED assumes nothing.

Each claim is proved for one shape at a time, by showing that its negation has no solution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.proofs.encoding import Formula, Margins, Motion, Pair, Shape, Side
from tests.proofs.solving import Solution, solution

SIDES: tuple[Side, ...] = ("lower", "interior", "upper")
EVERY_PAIR: tuple[Pair, ...] = tuple(itertools.product(SIDES, repeat=2))
EQUAL_CORNERS: tuple[Pair, ...] = (("lower", "lower"), ("upper", "upper"))
SOUND_PAIRS: tuple[Pair, ...] = tuple(pair for pair in EVERY_PAIR if pair not in EQUAL_CORNERS)
BOTH_INTERIOR: Pair = ("interior", "interior")
WITH_A_CORNER: tuple[Pair, ...] = tuple(pair for pair in SOUND_PAIRS if pair != BOTH_INTERIOR)
MOVES: tuple[Motion, ...] = ("rise", "fall")

Hypothesis = Callable[[Margins], Formula]


@dataclass(frozen=True)
class Case:
    """Formulas about the margins of a shape; a claim says that they have no solution."""

    pair: Pair
    margins: Margins
    formulas: list[Formula]

    def solve(self, *more: Hypothesis) -> Solution | None:
        """A solution that satisfies ``more`` as well, or None if there is none."""
        return solution(self.margins, [*self.formulas, *(needed(self.margins) for needed in more)])


def fixed_points(
    shape: Shape,
    pair: Pair,
    motion: Motion,
    *,
    together: bool = False,
    kind: type[Margins] = Margins,
) -> Case:
    """Where a round moves beta this way: not at all, up everywhere, or down everywhere.

    With ``together`` by the same constant everywhere, as a fixed point does.
    """
    margins = kind.unknown(shape, motion, together=together)
    return Case(pair, margins, margins.premises(motion) + margins.fixed_point(pair))


def uncertified(case: Case) -> Iterator[Case]:
    """The same, without a certificate of argtop_k."""
    for failure in case.margins.ways_to_miss_certificate():
        yield Case(case.pair, case.margins, [*case.formulas, failure])


def above_optimum(case: Case) -> Iterator[Case]:
    """The same, with D > LP*."""
    for cut in case.margins.ways_to_exceed_optimum():
        yield Case(case.pair, case.margins, [*case.formulas, cut])


def first_solution(cases: Iterator[Case], *more: Hypothesis) -> Solution | None:
    """A solution of any case, or None: then all of them are refuted."""
    return next((found for case in cases if (found := case.solve(*more)) is not None), None)


def fixed_without_optimum(shape: Shape, kind: type[Margins] = Margins) -> Iterator[Case]:
    """Negation of FIXED."""
    for pair in SOUND_PAIRS:
        rest = fixed_points(shape, pair, "rest", kind=kind)
        rest.formulas.append(rest.margins.fewer_tight_edges_than_vertices())
        yield from uncertified(rest)


def moved_without_optimum(shape: Shape) -> Iterator[Case]:
    """Negation of MOVED."""
    for pair, motion in itertools.product(EVERY_PAIR, MOVES):
        yield from uncertified(fixed_points(shape, pair, motion))


def equal_corners_moved(shape: Shape) -> Iterator[Case]:
    """Negation of EQUAL."""
    for pair, motion in itertools.product(EQUAL_CORNERS, MOVES):
        yield fixed_points(shape, pair, motion)


def jams(shape: Shape, pairs: Sequence[Pair]) -> Iterator[Case]:
    """At rest with D > LP*, whatever ties. Moves are certified optimal, so they need no search."""
    for pair in pairs:
        yield from above_optimum(fixed_points(shape, pair, "rest"))


def fraction_jams(shape: Shape, sides: Sequence[Side]) -> Iterator[Case]:
    """At a fixed point for a fractional q with D > LP*, the expert rule being the ceil(q)-th."""
    motions: tuple[Motion, ...] = ("rest", *MOVES)
    for side, motion in itertools.product(sides, motions):
        yield from above_optimum(fixed_points(shape, (side, "upper"), motion, together=True))


@dataclass(frozen=True)
class Claim:
    """A statement, the shapes it is true for, and the cases that would contradict it."""

    name: str
    statement: str
    holds_at: Callable[[Shape], bool]
    where: str
    cases: Callable[[Shape], Iterator[Case]]

    def counterexample(self, shape: Shape) -> Solution | None:
        """None if the claim is proved at this shape. UndecidedError if the solver gives up."""
        return first_solution(self.cases(shape))


CLAIMS = (
    Claim(
        "FIXED",
        "q an integer, rules interior on a side or opposite corners, the round changes no beta, and"
        " Z is empty or has fewer edges than vertices: argtop_k is certified",
        lambda shape: shape.is_integral,
        "every shape with an integer q",
        fixed_without_optimum,
    ),
    Claim(
        "MOVED",
        "q an integer, any two rules, the round raises every beta or lowers every beta: argtop_k is"
        " certified, whatever ties",
        lambda shape: shape.is_integral,
        "every shape with an integer q",
        moved_without_optimum,
    ),
    Claim(
        "EQUAL",
        "two equal corners never raise every beta, and never lower every beta",
        lambda shape: shape.is_integral,
        "every shape with an integer q",
        equal_corners_moved,
    ),
    Claim(
        "TWO",
        "two equal corners at rest: D = LP* with two tokens or two experts, whatever ties",
        lambda shape: shape.is_integral and 2 in (shape.m, shape.n),
        "two tokens or two experts; false at 3 x 3",
        lambda shape: jams(shape, EQUAL_CORNERS),
    ),
    Claim(
        "TIES",
        "rules interior on both sides at rest: D = LP* whatever ties",
        lambda shape: shape.is_integral and (shape.entries < 25 or min(shape.m, shape.n) <= 3),
        "fewer than 25 entries, or a side of 2 or 3; false at 5 x 5",
        lambda shape: jams(shape, [BOTH_INTERIOR]),
    ),
    Claim(
        "CORNER-TIES",
        "rules interior on one side, or opposite corners, at rest: D = LP* whatever ties",
        lambda shape: shape.is_integral and shape.entries < 16,
        "fewer than 16 entries; false at 4 x 4",
        lambda shape: jams(shape, WITH_A_CORNER),
    ),
    Claim(
        "FRACTION",
        "q not an integer, an interior token rule and the ceil(q)-th: D = LP* at a fixed point",
        lambda shape: not shape.is_integral and shape.entries < 10,
        "fewer than 10 entries; false at 2 x 5",
        lambda shape: fraction_jams(shape, ["interior"]),
    ),
    Claim(
        "CORNER-FRACTION",
        "q not an integer, any token rule and the ceil(q)-th: D = LP* at a fixed point",
        lambda shape: not shape.is_integral and shape.entries < 6,
        "fewer than 6 entries; false at 2 x 3",
        lambda shape: fraction_jams(shape, SIDES),
    ),
)


def shapes(largest: int, entries: int) -> Iterator[Shape]:
    """Every shape with sides up to ``largest`` and so many entries, smallest first, 1 <= k < N."""
    sides = range(1, largest + 1)
    sizes = sorted(itertools.product(sides, repeat=2), key=lambda size: (size[0] * size[1], size))
    for m, n in sizes:
        if m * n <= entries:
            yield from (Shape(m, n, top_k) for top_k in range(1, n))
