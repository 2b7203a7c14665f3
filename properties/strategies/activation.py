"""Inputs of SiTU-GLU: from subnormal to the largest numbers, around its caps and far beyond them.

A gate moves between its caps within a few beta_gate, and up within a few beta_up; what is wrong in
a formula near the origin shows only where inputs are small, and overflow only where they are huge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import Layout, layouts, readable_arrays, seeds

Pair = tuple[Array, Array]

# The report's caps first. The last two need more digits than bfloat16 has.
BETAS = (
    (4.0, 25.0),
    (1.0, 1.0),
    (0.5, 7.0),
    (25.0, 4.0),
    (100.0, 0.5),
    (7.0, 100.0),
    (1.0, 257.0),
    (3.3, 0.7),
)

# Zero, where exp, tanh and sigmoid leave their ordinary range, and the ends of the formats in use.
_SIZES = (
    *(0.0, 1.0, 17.4, 36.1, 88.8, 104.0, 709.8, 745.2),
    *(2.0**-12, 2.0**-27, 1e-12, 1e-30, 448.0, 65504.0, 1e19),
    *(3.4028234663852886e38, 1.7976931348623157e308),
    *(1.1754943508222875e-38, 9.2e-41, 1e-45, 2.2250738585072014e-308, 5e-324),
)
EDGES = (*_SIZES, *(-size for size in _SIZES))
INFINITIES = (np.inf, -np.inf)
EXPONENTS = (-45, 38)


@dataclass(frozen=True)
class ActivationInputs:
    """gate and up of one shape, the layouts to hand them over in, and the two caps.

    Numbers may lie outside the range of a storage format.
    """

    gate: Array
    up: Array
    gate_layout: Layout
    up_layout: Layout
    beta_gate: float
    beta_up: float


@st.composite
def inputs(draw: st.DrawFn, *, infinite: bool = False, nan: bool = False) -> ActivationInputs:
    """Readable pairs, pairs of edges, every edge against every other, and seeded arrays.

    infinite: whether infinities are among the edges.
    nan: whether NaN is put into up to three places of each input.
    """
    beta_gate, beta_up = draw(st.sampled_from(BETAS))
    edges = EDGES + INFINITIES if infinite else EDGES
    across, anywhere = _across_caps(beta_gate, beta_up), _of_any_size()
    gate, up = draw(
        st.one_of(_readable(), _edge_pairs(edges), across, across, anywhere, _all_pairs(edges))
    )
    if nan:
        gate, up = draw(_spoilt(gate)), draw(_spoilt(up))
    return ActivationInputs(gate, up, draw(layouts()), draw(layouts()), beta_gate, beta_up)


@st.composite
def _readable(draw: st.DrawFn) -> Pair:
    shape = (draw(st.integers(1, 4)),)
    return draw(readable_arrays(shape, largest=16)), draw(readable_arrays(shape, largest=64))


@st.composite
def _edge_pairs(draw: st.DrawFn, edges: tuple[float, ...]) -> Pair:
    pair = st.tuples(st.sampled_from(edges), st.sampled_from(edges))
    gate, up = zip(*draw(st.lists(pair, min_size=1, max_size=3)), strict=True)
    return np.array(gate), np.array(up)


def _all_pairs(edges: tuple[float, ...]) -> st.SearchStrategy[Pair]:
    gate, up = np.meshgrid(edges, edges)
    return st.just((gate, up))


# More tiles than one both ways, and more rows than a grid has in its second direction.
LARGE_SHAPES = ((70, 150), (150, 300), (65537, 1))


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Lengths on every side of vector registers, and up to four axes; 0 elements included."""
    length = st.integers(1, 70)
    return st.one_of(
        st.tuples(length),
        st.tuples(st.integers(0, 5), st.integers(0, 33)),
        st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 17)),
        st.sampled_from([(131, 3), (3, 131), (2, 1, 3, 5), *LARGE_SHAPES]),
    )


@st.composite
def _across_caps(draw: st.DrawFn, beta_gate: float, beta_up: float) -> Pair:
    """gate within 12 caps, up within 3 caps or far beyond, or both well inside."""
    rng, shape = np.random.default_rng(draw(seeds())), draw(shapes())
    gate_caps, up_caps = draw(st.sampled_from([(12.0, 3.0), (1.0, 0.3), (12.0, 1e3)]))
    gate, up = rng.uniform(-1.0, 1.0, (2, *shape))
    return gate * (gate_caps * beta_gate), up * (up_caps * beta_up)


@st.composite
def _of_any_size(draw: st.DrawFn) -> Pair:
    """One power of ten for each input, or one for each element."""
    rng, shape = np.random.default_rng(draw(seeds())), draw(shapes())
    gate, up = rng.uniform(-1.0, 1.0, (2, *shape))
    if draw(st.booleans()):
        scales = 10.0 ** rng.uniform(*EXPONENTS, (2, *shape))
        return gate * scales[0], up * scales[1]
    exponent = st.integers(*EXPONENTS)
    return gate * 10.0 ** draw(exponent), up * 10.0 ** draw(exponent)


@st.composite
def _spoilt(draw: st.DrawFn, values: Array) -> Array:
    """A copy with NaN in up to three places."""
    spoilt = values.copy()
    if values.size:
        places = draw(st.lists(st.integers(0, values.size - 1), max_size=3))
        spoilt.reshape(-1)[places] = np.nan
    return spoilt
