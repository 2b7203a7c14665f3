"""Inputs of the router: scores that are clear, nearly tied and tied, far out on either side.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import LAYOUTS, Layout, layouts, readable_floats, seeds

_Choice = TypeVar("_Choice")

EXPERTS = (2, 3, 1, 5, 8, 16, 17, 32, 64, 128, 255, 256, 257, 384, 512, 896)
TOKENS = (1, 0, 15, 16, 17, 33, 257, 515)
TOP_KS = (1, 2, 3, 4, 6, 8, 9, 10, 12, 16, 22, 24)
SHIFTS = (1.0, -1.0, 0.25, 8.0, -8.0, 34.5, 100.0, -100.0)

# The largest case keeps the time of a lane: 257 tokens meet up to 257 experts.
ELEMENTS = 257 * 257

# Ties, unit scores, the float32 sigmoid's upper end, weights at the normaliser's epsilon (e^-46 is
# about 1e-20), and the underflow of float32.
SPECIAL_LOGITS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    18.0,
    30.0,
    1e4,
    -20.0,
    -46.0,
    -87.0,
    -100.0,
    -110.0,
    -1e8,
    1e30,
)
SPECIAL_BIASES = (0.0, 0.5, -0.5, -1.5, 34.5, 100.0, -100.0, -np.inf)

# Scores 1/2, 1 and 0 that no correct sigmoid rounds differently, and biases that bring them to
# sums that tie across unequal scores.
EXACT_LOGITS = (0.0, 1e4, -1e8)
EXACT_BIASES = (0.0, 0.5, -0.5, 1.0)

NORMAL_LOGITS = {"normal": 1.0, "close": 0.01, "wide": 8.0}
UNIFORM_LOGITS = {"saturated": (14.0, 45.0), "vanishing": (-112.0, -40.0)}
LOGIT_PATTERNS = (*NORMAL_LOGITS, *UNIFORM_LOGITS, "tied", "special")

# Centre and spread.
BIASES = {
    "zero": (0.0, 0.0),
    "normal": (0.0, 0.1),
    "wide": (0.0, 2.0),
    "negative": (-3.0, 0.1),
    "offset": (34.5, 1e-4),
}
BIAS_PATTERNS = (*BIASES, "hundreds", "walled")

# Steps between neighbouring biased scores: above bfloat16, float32 and float64 resolution, or not.
GAPS = (2.0**-9, 2.0**-12, 2.0**-18, 2.0**-21, 2.0**-23, 2.0**-30, 2.0**-50)


Margin = Literal["clear", "inside", "exact"]

MARGINS: tuple[Margin, ...] = get_args(Margin)


@dataclass(frozen=True)
class Parting:
    """The margin at every token's cutoff, between its K-th expert ``kept`` and the next, ``left``.

    "clear": their biased scores lie further apart than both radii, ``factor`` times as far where
    the format allows; "inside": apart, but within the radii; "exact": tied. How far that is depends
    on the declared formats, so the bias of ``left`` is found when those are known.
    """

    margin: Margin
    kept: int
    left: int
    factor: float


@dataclass(frozen=True)
class RoutingInputs:
    """Logits (M, N), a selection bias (N,), top_k, and how the logits lie in memory.

    With a ``level``, the bias of expert j is counted from where its biased score for the first
    token is that level: a bias of zeros then ties all experts, as far as a format can tell.
    With a ``parting``, all tokens have that margin at their cutoff.
    """

    logits: Array
    bias: Array
    top_k: int
    layout: Layout = "contiguous"
    level: float | None = None
    parting: Parting | None = None


def inputs(*, all_experts: bool = True, fewest: int = 2) -> st.SearchStrategy[RoutingInputs]:
    """Every class of scores. Without ``all_experts``, K < N and M >= 1: there is a cutoff.

    A single expert is left to the property that asks for it: a router that cannot take N = 1 should
    fail one property and not all.
    """
    return st.one_of(
        _by_element(readable_floats(4), readable_floats(4), all_experts, fewest),
        _by_element(
            st.sampled_from(SPECIAL_LOGITS), st.sampled_from(SPECIAL_BIASES), all_experts, fewest
        ),
        *(_seeded(all_experts, fewest) for _ in range(6)),
        nearly_tied(all_experts=all_experts),
    )


@st.composite
def nearly_tied(draw: st.DrawFn, *, all_experts: bool = True) -> RoutingInputs:
    """A first token whose biased scores lie a few steps apart; others share most of its logits."""
    tokens = draw(st.sampled_from([1, 2, 17]))
    num_experts = draw(st.sampled_from([2, 3, 5, 17, 64, 257]))
    rng = np.random.default_rng(draw(seeds()))
    logits = np.broadcast_to(_eighths(rng, (1, num_experts)), (tokens, num_experts))
    other = rng.random((tokens, num_experts)) < 0.1
    other[0] = False
    logits = np.where(other, _eighths(rng, (tokens, num_experts)), logits)
    steps = rng.integers(-6, 7, num_experts)
    gap = draw(st.sampled_from(GAPS))
    level = draw(st.sampled_from([0.5, 0.0, -2.0, 34.5]))
    top_k = draw(top_ks(num_experts, all_experts))
    return RoutingInputs(logits, gap * steps, top_k, draw(layouts()), level)


@st.composite
def faint(draw: st.DrawFn) -> RoutingInputs:
    """Scores from 5e-5 down to e^-80, and no bias: their order shows in relative terms only."""
    tokens, num_experts = draw(st.sampled_from([(1, 2), (2, 3), (3, 17), (17, 64)]))
    rng = np.random.default_rng(draw(seeds()))
    logits = rng.uniform(-80.0, -10.0, (tokens, num_experts))
    return RoutingInputs(logits, np.zeros(num_experts), draw(top_ks(num_experts)), draw(layouts()))


@st.composite
def tied(draw: st.DrawFn) -> RoutingInputs:
    """Ties that hold in every format, across unequal scores, too; or one logit for all experts."""
    tokens, num_experts = draw(shapes())
    num_experts = max(2, num_experts)
    top_k = draw(top_ks(num_experts))
    rng = np.random.default_rng(draw(seeds()))
    levels = draw(
        st.one_of(_some(EXACT_LOGITS), st.sampled_from([[0.3], [-2.0], [40.0], [-110.0]]))
    )
    logits = rng.choice(levels, (tokens, num_experts))
    bias = rng.choice(draw(_some(EXACT_BIASES)), num_experts)
    return RoutingInputs(logits, bias, top_k, draw(layouts()))


@st.composite
def batches(draw: st.DrawFn) -> RoutingInputs:
    """Batches on both sides of the sizes at which kernels and vector loops change."""
    tokens = draw(st.sampled_from([1, 2, 15, 16, 17, 33, 257]))
    num_experts = draw(st.sampled_from([3, 2, 5, 17, 64]))
    return draw(_patterned(tokens, num_experts, all_experts=True))


def shapes(least: int = 0) -> st.SearchStrategy[tuple[int, int]]:
    """(M, N), small ones first, M at least ``least``."""
    pairs = [(m, n) for n in EXPERTS for m in TOKENS if least <= m and m * n <= ELEMENTS]
    return st.sampled_from(sorted(pairs, key=lambda pair: pair[0] * pair[1]))


def top_ks(num_experts: int, all_experts: bool = True) -> st.SearchStrategy[int]:
    """K up to 16, and the largest that there is: N, or N - 1 without ``all_experts``."""
    largest = num_experts if all_experts else num_experts - 1
    usual = st.sampled_from([k for k in TOP_KS if k <= largest])
    most = st.sampled_from([largest, max(1, num_experts - 1)])
    return st.one_of(usual, usual, usual, most)


@st.composite
def _by_element(
    draw: st.DrawFn,
    logit: st.SearchStrategy[float],
    bias: st.SearchStrategy[float],
    all_experts: bool,
    fewest: int,
) -> RoutingInputs:
    """Up to 3 tokens and 5 experts, drawn number by number."""
    num_experts = draw(st.integers(fewest, 5))
    tokens = draw(st.integers(1, 3))
    count = tokens * num_experts
    logits = draw(st.lists(logit, min_size=count, max_size=count))
    biases = draw(st.lists(bias, min_size=num_experts, max_size=num_experts))
    top_k = draw(st.integers(1, num_experts if all_experts else num_experts - 1))
    return RoutingInputs(np.reshape(logits, (tokens, num_experts)), np.array(biases), top_k)


@st.composite
def _seeded(draw: st.DrawFn, all_experts: bool, fewest: int) -> RoutingInputs:
    tokens, num_experts = draw(shapes(0 if all_experts else 1))
    return draw(_patterned(tokens, max(fewest, num_experts), all_experts))


@st.composite
def _patterned(draw: st.DrawFn, tokens: int, num_experts: int, all_experts: bool) -> RoutingInputs:
    top_k = draw(top_ks(num_experts, all_experts))
    rng = np.random.default_rng(draw(seeds()))
    logits = logits_of(draw(st.sampled_from(LOGIT_PATTERNS)), rng, (tokens, num_experts))
    bias = bias_of(draw(st.sampled_from(BIAS_PATTERNS)), rng, num_experts, top_k)
    digits = draw(st.sampled_from([5, 17]))  # failures shrink to the shorter numbers
    return RoutingInputs(logits.round(digits), bias.round(digits), top_k, draw(layouts()))


def any_inputs(
    rng: np.random.Generator, tokens: int, num_experts: int, top_k: int, digits: int = 17
) -> RoutingInputs:
    """Any pattern of logits and of biases, and any layout."""
    logits = logits_of(chosen(rng, LOGIT_PATTERNS), rng, (tokens, num_experts))
    bias = bias_of(chosen(rng, BIAS_PATTERNS), rng, num_experts, top_k)
    return RoutingInputs(logits.round(digits), bias.round(digits), top_k, chosen(rng, LAYOUTS))


def chosen(rng: np.random.Generator, choices: Sequence[_Choice]) -> _Choice:
    """One of them, each equally often."""
    return choices[int(rng.integers(len(choices)))]


def _eighths(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Multiples of 1/8 in ±4, which bfloat16 holds: storage leaves the scores as drawn."""
    return rng.integers(-32, 33, shape) / 8.0


def logits_of(pattern: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Logits (M, N) of one of LOGIT_PATTERNS."""
    if pattern == "special":
        return rng.choice(SPECIAL_LOGITS, shape)
    if pattern == "tied":
        return rng.integers(-1, 2, shape) / 2.0
    if pattern in UNIFORM_LOGITS:
        return rng.uniform(*UNIFORM_LOGITS[pattern], shape)
    return NORMAL_LOGITS[pattern] * rng.standard_normal(shape)


def bias_of(pattern: str, rng: np.random.Generator, num_experts: int, top_k: int) -> Array:
    """A bias (N,) of one of BIAS_PATTERNS."""
    noise = rng.standard_normal(num_experts)
    if pattern == "hundreds":
        return rng.choice([-100.0, 100.0], num_experts) + 0.1 * noise
    if pattern == "walled":  # so many experts are shut out that candidates may run out
        kept = int(rng.integers(0, min(num_experts, top_k + 1) + 1))
        noise[rng.permutation(num_experts)[kept:]] = -np.inf
        return noise
    centre, spread = BIASES[pattern]
    return centre + spread * noise


def _some(values: Sequence[float]) -> st.SearchStrategy[list[float]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=len(values), unique=True)
