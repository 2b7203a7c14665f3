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

# The last of each together make the norm an identity, for all but huge rows.
EPSILONS = (1e-5, 1e-6, 1e-2, 2.0**40)
WEIGHT_SCALES = (1.0, 1e-3, 2.0**20)


@dataclass(frozen=True)
class NormInputs:
    """Rows x (…, L), a weight (L,) and the eps of one call, and how x lies in memory."""

    x: Array
    weight: Array
    eps: float
    layout: Layout = "contiguous"


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes (…, L) with widths on both sides of vector lengths, rows missing included."""
    width = st.sampled_from([1, 2, 3, 7, 8, 17, 64, 129, 896])
    leading = st.lists(st.integers(0, 4), min_size=0, max_size=2)
    return st.tuples(leading, width).map(lambda parts: (*parts[0], parts[1]))


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
    eps = draw(st.sampled_from(EPSILONS))
    layout = LAYOUTS[seed % len(LAYOUTS)]  # drawn apart, it would nearly always be the first
    return NormInputs(normal(seed, shape) * scale, weight, eps, layout)
