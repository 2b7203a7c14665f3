"""Calls of the experts that a single seed decides, forward and backward.

The seed's rank decides the sizes, so that every case is another one and failures shrink to small
ones; a generator from the same seed decides the rest. The smallest seeds are the readable class: up
to three tokens and experts, and multiples of 1/8.

Legend: M tokens, N experts, K top_k, L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple, TypeVar, get_args

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, ExpertParameters
from properties.strategies.arrays import LAYOUTS
from properties.strategies.experts import (
    BETAS,
    EXPERTS,
    WIDTHS,
    Crowd,
    ExpertInputs,
    Layouts,
    Sizes,
    Weighing,
    chosen_ids,
    drawn_parameters,
    drawn_weights,
    repeated,
)
from properties.strategies.optimality import uniform_seeds
from properties.strategies.shapes import SEEDS

__all__ = [
    "Marked",
    "Reordered",
    "Twice",
    "any_call",
    "any_call_or_many_tokens",
    "backward_calls",
    "by_size",
    "drawn_at",
    "in_a_row",
    "laid_out_calls",
    "marked_rows",
    "other_labels",
    "other_slots",
    "ranked",
    "two_weightings",
]

Choice = TypeVar("Choice")
More = TypeVar("More")

TOKENS = (1, 2, 3, 5, 8, 9, 17, 33)
TOP_K = (1, 2, 3, 5, 8, 9, 16)
CROWDS: tuple[Crowd, ...] = get_args(Crowd)
WEIGHINGS: tuple[Weighing, ...] = get_args(Weighing)

# Widths of calls with 64 and 257 experts.
MANY_WIDTHS = ((3, 5), (4, 4))

# Every how many seeds one is readable.
READABLE = 8

# Every how many seeds one slot outweighs the others.
DOMINATED = 8


class Reordered(NamedTuple):
    """A call and a new order of its slots (M, K), or new names of its experts (N,)."""

    inputs: ExpertInputs
    order: Array


class Marked(NamedTuple):
    """A call of at least two tokens, some of which (M,), but not all, are marked."""

    inputs: ExpertInputs
    marked: Array


class Twice(NamedTuple):
    """A call and other weights (M, K) for it."""

    inputs: ExpertInputs
    others: Array


def by_size(sizes: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """The sizes by the work they are, so that small seeds are small cases."""
    return tuple(sorted(sizes, key=lambda s: (s.tokens * s.experts * s.latent * s.hidden, s)))


READABLE_SIZES = by_size(
    [
        Sizes(m, n, k, latent, hidden)
        for m, n, k in product((1, 2, 3), (1, 2, 3), (1, 2, 3))
        for latent, hidden in ((1, 1), (1, 2), (2, 1), (2, 2))
        if k <= n
    ]
)

# The reference works on the chosen experts one by one, so that many of them are drawn rarely.
ANY_SIZES = by_size(
    [
        Sizes(m, n, k, *widths)
        for m, n, k, widths in product(TOKENS, EXPERTS, TOP_K, WIDTHS)
        if k <= n and m * n <= 1100 and (n <= 13 or (min(n, m * k) <= 32 and widths in MANY_WIDTHS))
    ]
)

# More tokens than buffers of a few dozen hold, beside widths that cost little.
MANY_TOKENS = by_size(
    [Sizes(m, n, k, 3, 5) for m in (65, 129, 300) for n, k in ((2, 1), (5, 2), (9, 3))]
)

# Every how many seeds one has that many.
MANY = 8


def any_call(fewest_tokens: int = 1) -> st.SearchStrategy[ExpertInputs]:
    """Every shape, crowd, amplitude and layout, with a cotangent of its own."""
    return _calls(_tables(lambda sizes: sizes.tokens >= fewest_tokens))


def any_call_or_many_tokens() -> st.SearchStrategy[ExpertInputs]:
    """The same; in one of eight cases there are up to 300 tokens."""

    def seeded(seed: int) -> ExpertInputs:
        if seed % MANY == MANY - 1:
            return drawn_at(np.random.default_rng(seed), ranked(seed, MANY_TOKENS))
        return _seeded(seed, tables)

    tables = _tables()
    return uniform_seeds().map(seeded)


def backward_calls() -> st.SearchStrategy[ExpertInputs]:
    """The same; in one of eight cases, one slot of each token outweighs the 15 others."""

    def seeded(seed: int) -> ExpertInputs:
        if seed % DOMINATED == DOMINATED - 1:
            return _dominated(np.random.default_rng(seed))
        return _seeded(seed, tables)

    tables = _tables()
    return uniform_seeds().map(seeded)


def laid_out_calls() -> st.SearchStrategy[ExpertInputs]:
    """Small calls in contiguous memory, to be laid out in every way."""
    small = _tables(lambda s: s.tokens <= 9 and s.experts <= 13 and s.top_k <= 5)
    return _calls(small).map(lambda inputs: replace(inputs, layouts=Layouts()))


def in_a_row() -> st.SearchStrategy[tuple[ExpertInputs, ExpertInputs, ExpertInputs]]:
    """A call, one of the same sizes with other values throughout, and one of any smaller sizes."""

    def seeded(seed: int) -> tuple[ExpertInputs, ExpertInputs, ExpertInputs]:
        rng = np.random.default_rng((seed, 1))
        sizes, smaller = (ranked(s, ANY_SIZES) for s in (seed, int(rng.integers(seed + 1))))
        return drawn_at(rng, sizes), drawn_at(rng, sizes), drawn_at(rng, smaller)

    return uniform_seeds().map(seeded)


def other_slots() -> st.SearchStrategy[Reordered]:
    """At least two slots, and an order of them for every token."""

    def reordered(inputs: ExpertInputs, rng: np.random.Generator) -> Reordered:
        slots = np.broadcast_to(np.arange(inputs.weights.shape[1]), inputs.weights.shape)
        return Reordered(inputs, rng.permuted(slots, axis=1))

    return _calls_with(_tables(lambda sizes: sizes.top_k > 1), reordered)


def other_labels() -> st.SearchStrategy[Reordered]:
    """At least two experts, and other names for them."""

    def renamed(inputs: ExpertInputs, rng: np.random.Generator) -> Reordered:
        return Reordered(inputs, rng.permutation(inputs.parameters.gate_proj.shape[0]))

    return _calls_with(_tables(lambda sizes: sizes.experts > 1), renamed)


def marked_rows() -> st.SearchStrategy[Marked]:
    """At least two tokens: at least one of them marked, and at least one not."""

    def with_marks(inputs: ExpertInputs, rng: np.random.Generator) -> Marked:
        tokens = inputs.x.shape[0]
        marked = np.less(rng.random(tokens), _one_of(rng, (0.1, 0.5, 0.9)))
        first, second = rng.choice(tokens, 2, replace=False)
        marked[first], marked[second] = True, False
        return Marked(inputs, marked)

    return _calls_with(_tables(lambda sizes: sizes.tokens > 1), with_marks)


def two_weightings() -> st.SearchStrategy[Twice]:
    """Weights in quarters up to 1, twice: their sum, too, is held by every format."""

    def weighted(inputs: ExpertInputs, rng: np.random.Generator) -> Twice:
        first, second = rng.integers(0, 5, (2, *inputs.weights.shape)) / 4.0
        return Twice(replace(inputs, weights=first), second)

    return _calls_with(_tables(), weighted)


class _Tables(NamedTuple):
    readable: tuple[Sizes, ...]
    drawn: tuple[Sizes, ...]


def _tables(keep: Callable[[Sizes], object] = bool) -> _Tables:
    return _Tables(tuple(filter(keep, READABLE_SIZES)), tuple(filter(keep, ANY_SIZES)))


def _calls(tables: _Tables) -> st.SearchStrategy[ExpertInputs]:
    return uniform_seeds().map(partial(_seeded, tables=tables))


def _calls_with(
    tables: _Tables, more: Callable[[ExpertInputs, np.random.Generator], More]
) -> st.SearchStrategy[More]:
    def seeded(seed: int) -> More:
        return more(_seeded(seed, tables), np.random.default_rng((seed, 1)))

    return uniform_seeds().map(seeded)


def _seeded(seed: int, tables: _Tables) -> ExpertInputs:
    rng = np.random.default_rng(seed)
    readable = SEEDS // READABLE
    if seed < readable:
        return _readable(rng, ranked(seed * READABLE, tables.readable))
    return drawn_at(rng, ranked((seed - readable) * READABLE // (READABLE - 1), tables.drawn))


def ranked(seed: int, table: tuple[Sizes, ...]) -> Sizes:
    """The size at the seed's rank among all seeds."""
    return table[seed * len(table) // SEEDS]


def _dominated(rng: np.random.Generator) -> ExpertInputs:
    """Weights 1 and 15 times 2^-9, alike experts, and nothing that cancels: all factors positive.

    In bfloat16 a term of 2^-9 is less than half a unit in the last place of any number in [1, 2). A
    sum of that format that has met the heavy term loses every light one that follows, which is
    legal for d_x, and is what indexing and autograd do.
    """
    sizes = Sizes(int(rng.integers(1, 5)), 16, 16, *_one_of(rng, ((1, 1), (2, 3), (3, 2), (4, 4))))
    heavy = np.arange(16) == rng.integers(0, 16, (sizes.tokens, 1))
    thin = drawn_parameters(rng, sizes._replace(experts=1), thin=True)
    one = ExpertParameters(
        np.abs(thin.gate_proj), np.abs(thin.up_proj), np.exp2(-2.0) * (thin.down_proj != 0.0)
    )
    shape = (sizes.tokens, sizes.latent)
    return ExpertInputs(
        x=rng.uniform(0.5, 1.0, shape),
        expert_ids=chosen_ids(rng, sizes, "any"),
        weights=np.where(heavy, 1.0, 2.0**-9),
        parameters=repeated(one, sizes.experts),
        beta_gate=4.0,
        beta_up=25.0,
        cotangent=np.exp2(rng.integers(-3, 4, shape)),
    )


def _readable(rng: np.random.Generator, sizes: Sizes) -> ExpertInputs:
    m, n, k, latent, hidden = sizes

    def eighths(*shape: int) -> Array:
        return rng.integers(-16, 17, shape) / 8.0

    return ExpertInputs(
        x=eighths(m, latent),
        expert_ids=chosen_ids(rng, sizes, _one_of(rng, CROWDS)),
        weights=rng.integers(0, 9, (m, k)) / 8.0,
        parameters=ExpertParameters(
            eighths(n, hidden, latent), eighths(n, hidden, latent), eighths(n, latent, hidden)
        ),
        beta_gate=4.0,
        beta_up=25.0,
        cotangent=eighths(m, latent),
    )


def drawn_at(
    rng: np.random.Generator,
    sizes: Sizes,
    scales: tuple[float, ...] | None = None,
    crowds: Sequence[Crowd] = CROWDS,
) -> ExpertInputs:
    """x and cotangent at ``scales``, else over eight decades, x at times so large that all caps."""
    if scales is None:
        scales = (*(10.0 ** np.arange(-4, 5)), 1.0, 1.0, 1e15)
    beta_gate, beta_up = _one_of(rng, BETAS)
    shape = (sizes.tokens, sizes.latent)
    weights = drawn_weights(rng, sizes, _one_of(rng, WEIGHINGS))
    return ExpertInputs(
        x=_padded(rng, rng.standard_normal(shape) * _one_of(rng, scales)),
        expert_ids=chosen_ids(rng, sizes, _one_of(rng, crowds)),
        weights=weights * _one_of(rng, (1.0, 1.0, 2.5, 1e-3, 64.0, 1e-7)),
        parameters=drawn_parameters(rng, sizes, thin=bool(rng.integers(2))),
        beta_gate=beta_gate,
        beta_up=beta_up,
        layouts=_layouts(rng),
        cotangent=_cotangent(rng, shape, min(_one_of(rng, scales), 1e8)),
    )


def _padded(rng: np.random.Generator, x: Array) -> Array:
    """In one of four cases some tokens are 0, as padding is; in half of those, all of them are."""
    kind = int(rng.integers(8))
    share = 1.0 if kind == 0 else 0.3 if kind == 1 else 0.0
    return np.where(rng.random((len(x), 1)) < share, 0.0, x)


def _cotangent(rng: np.random.Generator, shape: tuple[int, int], scale: float) -> Array:
    """Normal; or, as where a loss is masked, 0 for about every third token."""
    cotangent: Array = rng.standard_normal(shape) * scale
    if rng.integers(3) == 0:
        cotangent = np.where(rng.random((shape[0], 1)) < 0.3, 0.0, cotangent)
    return cotangent


def _layouts(rng: np.random.Generator) -> Layouts:
    x, expert_ids, weights, cotangent = (_one_of(rng, LAYOUTS) for _ in range(4))
    return Layouts(x, expert_ids, weights, bool(rng.integers(2)), cotangent)


def _one_of(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]
