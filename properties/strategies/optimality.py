"""Inputs of the optimality properties: score matrices, some with guaranteed genericity.

The classes of scores, and how each is known to be generic, are those of ``score_classes``; the
classes of shapes those of ``shapes``. Every class is drawn on its own, and its name travels along.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import normal, seeds
from properties.strategies.near_ties import NearTie, near_tie
from properties.strategies.score_classes import (
    MIAN_CHOWLA,
    PATTERNS,
    REALS,
    drawn_scores,
    perturbed,
    tied_scores,
)
from properties.strategies.shapes import (
    SEEDS,
    SHAPES,
    ShapeClasses,
    any_shapes,
    balanced_shapes,
    shape_of,
)

__all__ = [
    "MIAN_CHOWLA",
    "SHAPES",
    "BatchInputs",
    "CertificateInputs",
    "DescentInputs",
    "DualInputs",
    "FixedPointInputs",
    "GenericInstance",
    "Problem",
    "ProgramInputs",
    "ShiftInputs",
    "batches",
    "certificates",
    "descents",
    "drawn_scores",
    "duals",
    "fixed_points",
    "generic_instances",
    "problems",
    "programs",
    "shifts",
    "uniform_seeds",
]

MOST_EDGES = 48 * 12
SMALL_EDGES = 64
OWN_EDGES = 24 * 8
READABLE_EDGES = 16

READABLE_SEEDS = SEEDS // 16

# Powers of two that real scores are scaled by.
SCALES = (0, -14, 7, 100)

Start = Literal["zero", "random", "multipliers"]
STARTS: tuple[Start, ...] = ("zero", "random", "multipliers")


@dataclass(frozen=True, eq=False)
class GenericInstance:
    """Generic scores (M, N) with an integer load; ``kind`` names the class.

    int64 where a pattern of ties was perturbed, so that genericity is certain; float64 for reals.
    """

    scores: Array
    top_k: int
    kind: str

    @property
    def floats(self) -> Array:
        """The same numbers as float64; nothing is lost."""
        return self.scores.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Problem:
    """Any scores (M, N), int64 or float64, with ties or not, for any top_k; ``kind`` names them."""

    scores: Array
    top_k: int
    kind: str

    @property
    def is_exact(self) -> bool:
        """Whether the scores are integers, which the oracle computes with exactly."""
        return self.scores.dtype.kind == "i"


@dataclass(frozen=True, eq=False)
class DualInputs:
    """A problem, multipliers (M,) and (N,), and where to place them: as they are or by the optimum.

    ``near`` asks for multipliers of the optimum plus these ones times 2^-``near``.
    """

    problem: Problem
    token_multipliers: Array
    expert_multipliers: Array
    near: int | None


@dataclass(frozen=True, eq=False)
class ProgramInputs:
    """Any problem, and a generic instance."""

    problem: Problem
    instance: GenericInstance


@dataclass(frozen=True, eq=False)
class DescentInputs:
    """A problem with k < n, beta (N,) to start from, and which pair of rules of a list to take."""

    problem: Problem
    start: Array
    pair: int


@dataclass(frozen=True, eq=False)
class ShiftInputs:
    """A problem with k < n, u (M,) and v (N,) whose sums with the scores are exact, and a pair."""

    problem: Problem
    token_shift: Array
    expert_shift: Array
    pair: int

    @property
    def shifted(self) -> Array:
        """s_ij + u_i + v_j, without rounding."""
        shifted_MN: Array = self.problem.scores + self.token_shift[:, None] + self.expert_shift
        return shifted_MN


@dataclass(frozen=True, eq=False)
class FixedPointInputs:
    """An instance, which pair of rules of a list to take, and where to start."""

    instance: GenericInstance
    pair: int
    start: Start
    seed: int


@dataclass(frozen=True, eq=False)
class CertificateInputs:
    """Any problem, and a near tie."""

    problem: Problem
    near_tie: NearTie


@dataclass(frozen=True, eq=False)
class BatchInputs:
    """Logits (M, N) of one batch with an integer load, and top_k < N."""

    logits: Array
    top_k: int


# Generic instances ---------------------------------------------------------------------------


def generic_instances() -> st.SearchStrategy[GenericInstance]:
    """Every class of scores and shapes."""
    return uniform_seeds().map(lambda seed: _instance(seed, np.random.default_rng(seed)))


def fixed_points(pairs: int) -> st.SearchStrategy[FixedPointInputs]:
    """A generic instance, one of so many pairs of rules, and a start."""

    def seeded(seed: int) -> FixedPointInputs:
        rng = np.random.default_rng(seed)
        pair, start = int(rng.integers(pairs)), STARTS[rng.integers(len(STARTS))]
        return FixedPointInputs(_instance(seed, rng), pair, start, seed)

    return uniform_seeds().map(seeded)


def uniform_seeds() -> st.SearchStrategy[int]:
    """Uniform seeds that decide everything else, so that every case is another one.

    Hypothesis builds most of its cases from parts of earlier ones and prefers small integers, with
    which a few shapes would be nearly all of the cases; bytes it draws uniformly, and shrinks to 0.
    """
    return st.binary(min_size=3, max_size=3).map(lambda drawn: int.from_bytes(drawn, "big"))


def _instance(seed: int, rng: np.random.Generator) -> GenericInstance:
    """As often exact as not; there each pattern, here each distribution equally often."""
    if rng.random() < 0.5:
        pattern = _one_of(rng, PATTERNS)
        m, n, top_k = shape_of(seed, rng, balanced_shapes(PATTERNS[pattern].edges))
        return GenericInstance(perturbed(pattern, rng, (m, n)), top_k, pattern)
    kind = _one_of(rng, REALS)
    m, n, top_k = shape_of(seed, rng, balanced_shapes(MOST_EDGES))
    return GenericInstance(drawn_scores(kind, rng, (m, n)), top_k, kind)


def _one_of(rng: np.random.Generator, classes: Iterable[str]) -> str:
    names = tuple(classes)
    return names[rng.integers(len(names))]


# Any problem ---------------------------------------------------------------------------------


def problems(*, with_cutoff: bool = False, largest: int = 8) -> st.SearchStrategy[Problem]:
    """Every class of ties and of reals, at any scale, q of any kind; and readable integers.

    The readable ones have the smallest seeds, so that failures shrink towards them. Hypothesis
    varies each of them several times, as it cannot vary a seed: their share is larger than theirs
    of the seeds.
    """

    return uniform_seeds().flatmap(lambda seed: _problem(seed, largest, with_cutoff))


def programs(largest: int) -> st.SearchStrategy[ProgramInputs]:
    """Both from one seed: of two seeds, Hypothesis would often copy the one or the other."""

    def seeded(seed: int) -> ProgramInputs:
        problem = _seeded_problem(seed, any_shapes(largest, with_cutoff=False))
        return ProgramInputs(problem, _instance(seed, np.random.default_rng([seed, 1])))

    return uniform_seeds().map(seeded)


def _problem(seed: int, largest: int, with_cutoff: bool) -> st.SearchStrategy[Problem]:
    if seed < READABLE_SEEDS:
        return _readable_problem(with_cutoff)
    return st.just(_seeded_problem(seed, any_shapes(largest, with_cutoff)))


def _seeded_problem(seed: int, classes: ShapeClasses) -> Problem:
    rng = np.random.default_rng(seed)
    m, n, top_k = shape_of(seed, rng, classes)
    scores, kind = _any_scores(rng, (m, n))
    return Problem(scores, top_k, kind)


def _any_scores(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, str]:
    """Scores and the name of their class: ties of integers, the same ties in float64, or reals."""
    choice = rng.random()
    scale = 2.0 ** rng.choice(SCALES)
    if choice < 0.4:
        kind = _one_of(rng, REALS)
        return drawn_scores(kind, rng, shape) * scale, kind
    kind = _one_of(rng, PATTERNS)
    scores = tied_scores(kind, rng, shape) - rng.integers(2)
    return (scores if choice < 0.85 else scores * scale), kind


@st.composite
def _readable_problem(draw: st.DrawFn, with_cutoff: bool) -> Problem:
    m = draw(st.integers(1, 4))
    n = draw(st.integers(2 if with_cutoff else 1, 4))
    top_k = draw(st.integers(1, n - 1 if with_cutoff else n))
    return Problem(draw(_integers((m, n))), top_k, "readable")


def _integers(shape: tuple[int, ...]) -> st.SearchStrategy[Array]:
    count = int(np.prod(shape))
    values = st.lists(st.integers(-2, 9), min_size=count, max_size=count)
    return values.map(lambda drawn: np.array(drawn, dtype=np.int64).reshape(shape))


@st.composite
def duals(draw: st.DrawFn, *, with_cutoff: bool = False, largest: int = 8) -> DualInputs:
    """A problem with multipliers of its own size: small integers, reals, or near the optimum."""
    problem = draw(problems(with_cutoff=with_cutoff, largest=largest))
    m, n = problem.scores.shape
    near = draw(st.none() | st.sampled_from([2, 20, 50]))
    if problem.is_exact and draw(st.booleans()):
        return DualInputs(problem, draw(_integers((m,))), draw(_integers((n,))), near)
    seed, spread = draw(seeds()), draw(st.sampled_from([1.0, 0.0, 30.0]))
    size = spread * float(np.abs(problem.scores).max())
    return DualInputs(problem, normal(seed, (m,), size), normal(seed + 1, (n,), size), near)


def descents(pairs: int) -> st.SearchStrategy[DescentInputs]:
    """A problem with k < n, a start, and one of so many pairs of rules; mostly of integer q."""

    def seeded(seed: int) -> DescentInputs:
        rng = np.random.default_rng(seed)
        m, n, top_k = shape_of(seed, rng, balanced_shapes(SMALL_EDGES))
        if rng.random() < 0.25:
            m = int(rng.integers(1, 9))
        scores, kind = _any_scores(rng, (m, n))
        start = rng.standard_normal(n) * rng.choice([0.0, 1.0]) * np.abs(scores).max()
        return DescentInputs(Problem(scores, top_k, kind), start, int(rng.integers(pairs)))

    return uniform_seeds().map(seeded)


def shifts(pairs: int, *, largest: int = 6) -> st.SearchStrategy[ShiftInputs]:
    """Integers, or reals rounded to multiples of 2^-20, so that shifting rounds nothing.

    Scores are below 2^25, shifts whole and below 2^26: all sums have less than 48 bits.
    """

    def seeded(seed: int) -> ShiftInputs:
        rng = np.random.default_rng(seed)
        m, n, top_k = shape_of(seed, rng, any_shapes(largest, with_cutoff=True))
        if rng.random() < 0.6:
            kind = _one_of(rng, PATTERNS)
            scores = tied_scores(kind, rng, (m, n))
        else:
            kind = _one_of(rng, REALS)
            scores = np.rint(drawn_scores(kind, rng, (m, n)) * 2**20) / 2**20
        u_M, v_N = (
            rng.integers(-bound, bound + 1, size)
            for bound, size in zip(rng.choice([0, 3, 2**20, 2**25], 2), (m, n), strict=True)
        )
        return ShiftInputs(Problem(scores, top_k, kind), u_M, v_N, int(rng.integers(pairs)))

    return uniform_seeds().map(seeded)


# Certificates ---------------------------------------------------------------------------------


def certificates(largest: int) -> st.SearchStrategy[CertificateInputs]:
    """A problem and a routing with exact loads whose margins straddle what rounding can tell.

    Both from one seed: of two seeds, Hypothesis would often copy the one or the other.
    """

    def seeded(seed: int) -> st.SearchStrategy[CertificateInputs]:
        problems = _problem(seed, largest, with_cutoff=False)
        return problems.map(lambda problem: CertificateInputs(problem, near_tie(seed)))

    return uniform_seeds().flatmap(seeded)


# Batches of logits ---------------------------------------------------------------------------


def batches() -> st.SearchStrategy[BatchInputs]:
    """Logits without saturated sigmoids, with and without hot experts, of at most 192 edges.

    Every case is another one, so that frequencies mean something; small seeds are readable.
    """
    return uniform_seeds().map(_batch)


def _batch(seed: int) -> BatchInputs:
    rng = np.random.default_rng(seed)
    if seed < READABLE_SEEDS:
        return _readable_batch(seed, rng)
    m, n, top_k = shape_of(seed, rng, balanced_shapes(OWN_EDGES))
    logits = rng.standard_normal((m, n)) * rng.choice([1.0, 2.0])
    return BatchInputs(logits + rng.standard_normal(n) * rng.choice([0.0, 1.0]), top_k)


def _readable_batch(seed: int, rng: np.random.Generator) -> BatchInputs:
    """Different multiples of 1/64, exact in bfloat16, none negative, all sums of two different.

    So no alternating cycle of four logits cancels; and with negative ones cycles of scores might,
    as sigmoid(z) + sigmoid(-z) = 1.
    """
    small = [shape for shape in SHAPES if shape[0] * shape[1] <= READABLE_EDGES]
    m, n, top_k = small[seed * len(small) // READABLE_SEEDS]
    logits = rng.permutation(MIAN_CHOWLA[: m * n])
    return BatchInputs(logits.reshape(m, n) / 64.0, top_k)
