"""Inputs of RMSNorm: rows from vanishing to large, where eps matters and where it does not.

Legend: L the normalised width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import (
    LAYOUTS,
    Layout,
    amplitudes,
    normal,
    readable_arrays,
    seeds,
)
from properties.strategies.optimality import READABLE_SEEDS, uniform_seeds

# The last of each together make the norm an identity, for all but huge rows.
EPSILONS = (1e-5, 1e-6, 1e-2, 2.0**40)
WEIGHT_SCALES = (1.0, 1e-3, 2.0**20)

# More rows than a grid of programs, and the width of the report's latents.
LARGE_SHAPES = ((300, 2), (1, 3584))

WIDTHS = (1, 2, 3, 7, 8, 17, 64, 129, 896, 1030)


@dataclass(frozen=True)
class NormInputs:
    """Rows x (…, L), a weight (L,) and the eps of one call, and how x lies in memory."""

    x: Array
    weight: Array
    eps: float
    layout: Layout = "contiguous"


@dataclass(frozen=True)
class ScaledInputs:
    """Rows, a weight and an eps, and a signed power of two to multiply the rows by."""

    rows: NormInputs
    factor: float


@dataclass(frozen=True)
class SpoiledInputs:
    """Rows x (M, L), of which those in ``lost`` (M,) are filled with ``value``, and their norm."""

    rows: NormInputs
    lost: Array
    value: float


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes (…, L): widths around vector lengths, many rows, a long one, rows missing included."""
    width = st.sampled_from(WIDTHS)
    few = st.lists(st.integers(0, 4), min_size=0, max_size=3)
    leading = st.one_of(few, few, few, st.sampled_from([[67], [9, 11]]))
    small = st.tuples(leading, width).map(lambda parts: (*parts[0], parts[1]))
    return st.one_of(small, small, small, small, st.sampled_from(LARGE_SHAPES))


def inputs() -> st.SearchStrategy[NormInputs]:
    """Readable rows, or seeded rows of any scale, with one scale per row."""
    return st.one_of(_readable(), _seeded())


@st.composite
def _readable(draw: st.DrawFn) -> NormInputs:
    width = draw(st.integers(1, 4))
    rows = draw(st.integers(1, 2))
    x = draw(readable_arrays((rows, width)))
    weight = draw(readable_arrays((width,), largest=2))
    return NormInputs(x, weight, draw(st.sampled_from(EPSILONS)))


@st.composite
def _seeded(draw: st.DrawFn) -> NormInputs:
    shape = draw(shapes())
    seed = draw(seeds())
    rng = np.random.default_rng(seed)
    spread = draw(st.sampled_from([0, 1, 3]))
    scale: Any = draw(amplitudes()) * 10.0 ** rng.integers(-spread, spread + 1, (*shape[:-1], 1))
    weight = draw(st.sampled_from(WEIGHT_SCALES)) * (1.0 + 0.5 * normal(seed + 1, shape[-1:]))
    eps = draw(st.sampled_from((*EPSILONS, 0.0)))
    layout = LAYOUTS[seed % len(LAYOUTS)]  # drawn apart, it would nearly always be the first
    return NormInputs(normal(seed, shape) * scale, weight, eps, layout)


# Decided by one uniform seed ---------------------------------------------------------------------


def scaled() -> st.SearchStrategy[ScaledInputs]:
    """Rows of about sqrt(eps) and larger, and factors 2^-12 to 2^12 of either sign."""

    def seeded(seed: int) -> ScaledInputs:
        rng = np.random.default_rng(seed)
        rows = _rows(seed, rng, 10.0 ** int(rng.integers(-3, 2)))
        factor = float(rng.choice([-1.0, 1.0])) * 2.0 ** int(rng.integers(-12, 13))
        return ScaledInputs(rows, factor)

    return uniform_seeds().map(seeded)


def unit_rows() -> st.SearchStrategy[NormInputs]:
    """Rows whose largest element is 1, most of them with one element far above the others."""

    def seeded(seed: int) -> NormInputs:
        rng = np.random.default_rng(seed)
        rows = _rows(seed, rng, 1.0)
        x = rows.x * 10.0 ** (-3.0 * rng.integers(0, 2, rows.x.shape))
        x = x / np.max(np.abs(x), axis=-1, keepdims=True, initial=1e-9)
        return NormInputs(x, rows.weight, rows.eps, rows.layout)

    return uniform_seeds().map(seeded)


def spoiled() -> st.SearchStrategy[SpoiledInputs]:
    """Two and more rows, at least one of them lost and one not."""

    def seeded(seed: int) -> SpoiledInputs:
        rng = np.random.default_rng(seed)
        rows = _rows(seed, rng, 10.0 ** int(rng.integers(-3, 3)), fewest=2)
        lost = rng.random(len(rows.x)) < 0.4
        lost[rng.permutation(len(lost))[:2]] = [True, False]
        return SpoiledInputs(rows, lost, (np.nan, np.inf, -np.inf)[int(rng.integers(3))])

    return uniform_seeds().map(seeded)


def _rows(seed: int, rng: np.random.Generator, amplitude: float, fewest: int = 1) -> NormInputs:
    """Up to six rows of one amplitude, within a factor of ten; readable for the smallest seeds."""
    readable = seed < READABLE_SEEDS
    width = int(rng.integers(1, 5)) if readable else WIDTHS[int(rng.integers(len(WIDTHS)))]
    shape = (int(rng.integers(fewest, 3 if readable else 7)), width)
    x: Any = rng.integers(-8, 9, shape) / 4 if readable else rng.standard_normal(shape)
    x = amplitude * x * 10.0 ** rng.uniform(-1, 0, (shape[0], 1))
    weight = 1.0 + 0.5 * rng.standard_normal(width)
    weight = (1.0, 1e-3, 64.0)[int(rng.integers(3))] * weight
    eps = (1e-5, 1e-6, 1e-2)[int(rng.integers(3))]
    return NormInputs(x, weight, eps, LAYOUTS[int(rng.integers(len(LAYOUTS)))])
