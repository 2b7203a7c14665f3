"""Norms at the sizes kernels have paths for, behind any leading axes, and one call after another.

Legend: B batches, S positions, L the normalised width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from properties.strategies.apart import APART
from properties.strategies.norm import NormInputs
from properties.strategies.optimality import uniform_seeds

__all__ = ["SIZES", "at_sizes", "behind_axes", "in_a_row"]

# Every power of two from 32 to 4096, and widths beyond one block that are none, with several rows
# each; whole tiles both ways; rows that are a multiple of a grid of 128 to 1184 programs, and that
# leave a remainder in any grid (primes); more rows than one dimension of a grid has.
SIZES: tuple[tuple[int, ...], ...] = (
    *((5, 32), (4, 64), (2, 128), (3, 256), (2, 512), (3, 1024), (2, 2048), (3, 4096)),
    *((2, 96), (3, 192), (4, 384), (2, 640), (2, 768), (2, 1100), (3, 1536), (2, 3072), (2, 3584)),
    *((64, 32), (128, 64), (33, 128), (129, 130), (32, 256)),
    *((128, 2), (256, 1), (512, 3), (528, 2), (1024, 2), (1056, 1)),
    *((331, 3), (541, 2), (1087, 2), (2129, 1), (65537, 1)),
    *((2, 3, 96), (3, 2, 1100), (2, 33, 64), (7, 191, 2), (2, 2, 2, 128)),
)

EPSILONS = (1e-5, 1e-6, 1e-2)

# Shapes behind leading axes that do not merge: more rows than a warp, more columns than one.
STACKS = ((2, 3, 5), (3, 2, 8), (2, 5, 33), (2, 2, 3, 4), (3, 33, 2), (2, 3, 130))

# (shape, another shape) of calls in a row.
CALLS = (((2, 3), (3, 2)), ((3, 8), (3, 9)), ((2, 3, 16), (6, 16)), ((5, 64), (2, 64)))


def at_sizes() -> st.SearchStrategy[tuple[NormInputs, ...]]:
    """One call of each size."""

    def seeded(seed: int) -> tuple[NormInputs, ...]:
        rng = np.random.default_rng([seed, 1])
        return tuple(_rows(rng, shape) for shape in SIZES)

    return uniform_seeds().map(seeded)


def behind_axes() -> st.SearchStrategy[tuple[tuple[str, NormInputs], ...]]:
    """One call of each kind of view, of shapes that differ from case to case."""

    def seeded(seed: int) -> tuple[tuple[str, NormInputs], ...]:
        rng = np.random.default_rng([seed, 2])
        start = int(rng.integers(len(STACKS)))
        return tuple(
            (name, _rows(rng, STACKS[(start + place) % len(STACKS)]))
            for place, name in enumerate(APART)
        )

    return uniform_seeds().map(seeded)


def in_a_row() -> st.SearchStrategy[tuple[NormInputs, NormInputs, NormInputs]]:
    """Two calls of one shape, and one of another."""

    def seeded(seed: int) -> tuple[NormInputs, NormInputs, NormInputs]:
        rng = np.random.default_rng([seed, 3])
        shape, other = CALLS[int(rng.integers(len(CALLS)))]
        first, second = _rows(rng, shape), _rows(rng, shape)
        eps = EPSILONS[(EPSILONS.index(first.eps) + 1) % len(EPSILONS)]
        return first, replace(second, eps=eps), _rows(rng, other)

    return uniform_seeds().map(seeded)


def _rows(rng: np.random.Generator, shape: tuple[int, ...]) -> NormInputs:
    """Rows from a third of sqrt(eps) to three times it, where eps counts as much as they do."""
    eps = EPSILONS[int(rng.integers(len(EPSILONS)))]
    scale = np.sqrt(eps) * 3.0 ** rng.uniform(-1.0, 1.0, (*shape[:-1], 1))
    weight = 1.0 + 0.5 * rng.standard_normal(shape[-1])
    return NormInputs(scale * rng.standard_normal(shape), weight, eps)
