"""Inputs of the optimality properties: score matrices, some with guaranteed genericity.

Scores are *generic* if no alternating cycle cancels: for distinct rows i_1 … i_r and distinct
columns j_1 … j_r, r >= 2, the sum of s(i_t, j_t) - s(i_t, j_t+1) (indices cyclic) is not zero. How
that is guaranteed differs:

* ``perturbed``: s = L 2^p + 2^e with small integers L, the e a permutation of 0 … p - 1, and
  p = M N. A cycle has every entry at most once, so its sum is a multiple of 2^p plus a signed sum
  of distinct powers of two. The latter lies strictly between -2^p and 2^p and is not zero, for its
  least power divides all others properly. So every cycle is at least 1 in size, exactly. All scores
  are integers below 2^53: float64 holds them.
* ``uniform``, ``heavy`` and ``hot``: continuous distributions of 53-bit reals. Each cycle is a
  hyperplane, so genericity holds with probability one for reals, and a cancellation within float
  spacing has a probability of about 2^-53 per cycle. It is not assumed: the properties prove every
  optimum they accept, and count what they cannot decide as unknown.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import normal, seeds

Shape = tuple[int, int, int]

SHAPES: tuple[Shape, ...] = tuple(
    sorted(
        (
            (m, n, k)
            for m in range(2, 49)
            for n in range(2, 13)
            for k in range(1, n)
            if m * k % n == 0
        ),
        key=lambda shape: (shape[0] * shape[1], shape),
    )
)
SEEDS = 2**24

# Bits for L beside p = M N bits for the perturbation, within the 53 of float64.
LEVELS = (2, 4, 16, 1024)
PERTURBED_EDGES = 40
READABLE_EDGES = 16

# A Sidon set: the sums of two members are all different.
MIAN_CHOWLA = (0, 1, 3, 7, 12, 20, 30, 44, 65, 80, 96, 122, 147, 181, 203, 251)

KINDS = ("perturbed", "uniform", "heavy", "hot")

Start = Literal["zero", "random", "multipliers"]
STARTS: tuple[Start, ...] = ("zero", "random", "multipliers")


@dataclass(frozen=True, eq=False)
class GenericInstance:
    """Generic scores (M, N), int64 or float64, with an integer load; ``kind`` names the class."""

    scores: Array
    top_k: int
    kind: str

    @property
    def floats(self) -> Array:
        """The same numbers as float64; nothing is lost."""
        return self.scores.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Problem:
    """Any scores (M, N), int64 or float64, with ties or not, for any top_k."""

    scores: Array
    top_k: int

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
class DescentInputs:
    """A problem with k < n, beta (N,) to start from, and which pair of rules of a list to take."""

    problem: Problem
    start: Array
    pair: int


@dataclass(frozen=True, eq=False)
class FixedPointInputs:
    """An instance, which pair of rules of a list to take, and where to start."""

    instance: GenericInstance
    pair: int
    start: Start
    seed: int


@dataclass(frozen=True, eq=False)
class NearTie:
    """Scores and a bias whose top-k has exact loads and margins of about ``2 radius``."""

    scores: Array
    bias: Array
    top_k: int
    radius: float


@dataclass(frozen=True, eq=False)
class BatchInputs:
    """Logits (M, N) of one batch with an integer load, and top_k < N."""

    logits: Array
    top_k: int


# Shapes --------------------------------------------------------------------------------------


def _shape_classes(most_edges: int) -> tuple[tuple[Shape, ...], ...]:
    """(M, N, K) with K < N and integer q: mostly pairwise different, and the edge cases."""
    known = [shape for shape in SHAPES if shape[0] * shape[1] <= most_edges]
    different = tuple(s for s in known if len(set(s)) == 3)
    return (
        *(8 * (different,)),
        tuple(s for s in known if s[2] == 1),
        tuple(s for s in known if s[2] == s[1] - 1),
        tuple(s for s in known if s[0] * s[2] == s[1]),
        tuple(s for s in known if s[0] == s[1]),
    )


ANY_SHAPES = _shape_classes(48 * 12)
PERTURBED_SHAPES = _shape_classes(PERTURBED_EDGES)
SMALL_SHAPES = _shape_classes(64)


def _shape_of(seed: int, rng: np.random.Generator, classes: tuple[tuple[Shape, ...], ...]) -> Shape:
    """Any class; within it, the smaller the seed, the smaller the shape: so failures shrink."""
    members = classes[rng.integers(len(classes))]
    return members[seed * len(members) // SEEDS]


def _readable_shapes() -> st.SearchStrategy[Shape]:
    return st.sampled_from([s for s in SHAPES if s[0] * s[1] <= READABLE_EDGES])


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
    kind = KINDS[rng.integers(len(KINDS))]
    if kind == "perturbed":
        m, n, top_k = _shape_of(seed, rng, PERTURBED_SHAPES)
        levels = rng.integers(0, LEVELS[rng.integers(len(LEVELS))], (m, n))
        exponents = rng.permutation(m * n).reshape(m, n)
        return GenericInstance(levels * 2 ** (m * n) + 2**exponents, top_k, kind)
    m, n, top_k = _shape_of(seed, rng, ANY_SHAPES)
    return GenericInstance(drawn_scores(kind, rng, (m, n)), top_k, kind)


def drawn_scores(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Scores from one of the continuous distributions.

    ``uniform`` on [0, 1); ``heavy``: exp of normal, where few edges outweigh all others; ``hot``:
    sigmoids of logits with expert offsets, where most tokens want the same experts.
    """
    if kind == "uniform":
        return rng.random(shape)
    if kind == "heavy":
        return np.exp(2.0 * rng.standard_normal(shape))
    logits: Array = rng.standard_normal(shape) + 2.0 * rng.standard_normal(shape[1])
    return 1.0 / (1.0 + np.exp(-logits))


# Any problem ---------------------------------------------------------------------------------


def problems(*, with_cutoff: bool = False, largest: int = 8) -> st.SearchStrategy[Problem]:
    """Readable integers, seeded integers full of ties, and reals of any scale; q of any kind."""
    return st.one_of(
        _readable_problem(with_cutoff),
        _seeded_problem(with_cutoff, largest, exact=True),
        _seeded_problem(with_cutoff, largest, exact=False),
    )


def _sizes(with_cutoff: bool, largest: int) -> st.SearchStrategy[Shape]:
    least = 2 if with_cutoff else 1
    return st.tuples(st.integers(1, largest), st.integers(least, largest)).flatmap(
        lambda size: st.tuples(
            st.just(size[0]),
            st.just(size[1]),
            st.integers(1, size[1] - 1 if with_cutoff else size[1]),
        )
    )


@st.composite
def _readable_problem(draw: st.DrawFn, with_cutoff: bool) -> Problem:
    m, n, top_k = draw(_sizes(with_cutoff, 4))
    return Problem(draw(_integers((m, n))), top_k)


def _integers(shape: tuple[int, ...]) -> st.SearchStrategy[Array]:
    count = int(np.prod(shape))
    values = st.lists(st.integers(-2, 9), min_size=count, max_size=count)
    return values.map(lambda drawn: np.array(drawn, dtype=np.int64).reshape(shape))


@st.composite
def _seeded_problem(draw: st.DrawFn, with_cutoff: bool, largest: int, *, exact: bool) -> Problem:
    m, n, top_k = draw(_sizes(with_cutoff, largest))
    rng = np.random.default_rng(draw(seeds()))
    if exact:
        levels = draw(st.sampled_from([2, 4, 100]))
        return Problem(rng.integers(-1, levels, (m, n)), top_k)
    scale = 2.0 ** draw(st.sampled_from([0, -14, 7, 100]))
    return Problem(scale * drawn_scores(draw(st.sampled_from(KINDS[1:])), rng, (m, n)), top_k)


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
        m, n, top_k = _shape_of(seed, rng, SMALL_SHAPES)
        if rng.random() < 0.25:
            m = int(rng.integers(1, 9))
        kind = ("ties", *KINDS[1:])[rng.integers(4)]
        if kind == "ties":
            scores = rng.integers(-1, rng.choice([2, 4, 100]), (m, n))
        else:
            scores = drawn_scores(kind, rng, (m, n)) * 2.0 ** rng.choice([0, -14, 7, 100])
        start = rng.standard_normal(n) * rng.choice([0.0, 1.0]) * np.abs(scores).max()
        return DescentInputs(Problem(scores, top_k), start, int(rng.integers(pairs)))

    return uniform_seeds().map(seeded)


# Near ties -----------------------------------------------------------------------------------


def near_ties() -> st.SearchStrategy[NearTie]:
    """Routings with exact loads whose margins straddle what float64, or a radius, can tell."""
    return uniform_seeds().map(_near_tie)


def _near_tie(seed: int) -> NearTie:
    """A bias, and scores whose sums with it lie around a centre, at or just beyond the radius.

    Token i takes the K consecutive experts from i K on, cyclically: M K positions in a row, so
    every expert is taken q times. Rows and columns are then shuffled.
    """
    rng = np.random.default_rng(seed)
    m, n, top_k = _shape_of(seed, rng, SMALL_SHAPES)
    chosen = np.zeros((m, n), dtype=bool)
    slots = (np.arange(m)[:, None] * top_k + np.arange(top_k)) % n
    np.put_along_axis(chosen, slots, True, axis=1)
    chosen = chosen[rng.permutation(m)][:, rng.permutation(n)]
    radius = rng.choice([0.0, 0.0, 2.0**-30, 2.0**-52, 0.01])
    centre = rng.standard_normal((m, 1)) * rng.choice([1.0, 0.0, 100.0])
    bias = rng.standard_normal(n) * rng.choice([1.0, 0.0, 2.0**-20])
    if rng.random() < 0.5:  # of few bits, so that adding it back rounds nothing
        bias, centre = np.round(8.0 * bias) / 8.0, np.round(8.0 * centre) / 8.0
    steps = rng.integers(0, rng.choice([1, 2, 4, 2**30]), (m, n), endpoint=True)
    margins = radius + steps * np.spacing(np.abs(centre) + radius)
    scores = centre + np.where(chosen, margins, -margins) - bias
    return NearTie(scores, bias, top_k, float(radius))


# Batches of logits ---------------------------------------------------------------------------


def batches() -> st.SearchStrategy[BatchInputs]:
    """Logits without saturated sigmoids, with and without hot experts, for at most 24 x 12."""
    drawn = uniform_seeds().map(_seeded_batch)
    return st.one_of(_readable_batch(), drawn, drawn, drawn)


@st.composite
def _readable_batch(draw: st.DrawFn) -> BatchInputs:
    """Different multiples of 1/64, exact in bfloat16, none negative, all sums of two different.

    So no alternating cycle of four logits cancels; and with negative ones cycles of scores might,
    as sigmoid(z) + sigmoid(-z) = 1.
    """
    m, n, top_k = draw(_readable_shapes())
    logits = draw(st.permutations(MIAN_CHOWLA[: m * n]))
    return BatchInputs(np.array(logits).reshape(m, n) / 64.0, top_k)


def _seeded_batch(seed: int) -> BatchInputs:
    rng = np.random.default_rng(seed)
    m, n, top_k = _shape_of(seed, rng, ANY_SHAPES)
    logits = rng.standard_normal((m, n)) * rng.choice([1.0, 2.0])
    return BatchInputs(logits + rng.standard_normal(n) * rng.choice([0.0, 1.0]), top_k)
