"""Shapes, seeds, amplitudes and memory layouts that every topic draws from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array

Layout = Literal["contiguous", "reversed", "sliced", "strided", "transposed"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def seeds() -> st.SearchStrategy[int]:
    """Seeds of NumPy generators; they shrink to 0."""
    return st.integers(0, 2**32 - 1)


def layouts() -> st.SearchStrategy[Layout]:
    """Memory layouts, the plain one first."""
    return st.sampled_from(LAYOUTS)


def amplitudes(smallest: int = -4, largest: int = 4) -> st.SearchStrategy[float]:
    """Powers of ten as scales; 1 first."""
    exponents = sorted(range(smallest, largest + 1), key=lambda exponent: (abs(exponent), exponent))
    return st.sampled_from([10.0**exponent for exponent in exponents])


def readable_floats(largest: int = 8) -> st.SearchStrategy[float]:
    """Multiples of 1/8 up to ``largest`` in size: exact in every format wider than 8 bits."""
    return st.integers(-8 * largest, 8 * largest).map(lambda eighths: eighths / 8)


def normal(seed: int, shape: Sequence[int], scale: float = 1.0) -> Array:
    """Independent normal values of that scale from a fresh generator."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)) * scale


def readable_arrays(shape: Sequence[int], largest: int = 8) -> st.SearchStrategy[Array]:
    """Arrays whose elements are drawn one by one, so that they shrink to small numbers."""
    count = int(np.prod(shape))
    elements = st.lists(readable_floats(largest), min_size=count, max_size=count)
    return elements.map(lambda values: np.array(values, np.float64).reshape(tuple(shape)))


def laid_out(values: Array, layout: Layout) -> Array:
    """The same values behind other strides: every element equal, the memory between them not.

    Between floats lies NaN, between integers their largest.
    """
    if layout == "contiguous" or values.ndim == 0:
        return np.ascontiguousarray(values)
    if layout == "reversed":
        return np.ascontiguousarray(values[..., ::-1])[..., ::-1]
    if layout in ("sliced", "strided"):
        # Sliced: rows of a wider buffer, as where gate and up are halves of one tensor.
        step, extra = (1, 3) if layout == "sliced" else (2, 1)
        gap = np.nan if values.dtype.kind == "f" else np.iinfo(values.dtype).max
        width = values.shape[-1]
        wide = np.full((*values.shape[:-1], step * width + extra), gap, values.dtype)
        wide[..., 1 : 1 + step * width : step] = values
        return wide[..., 1 : 1 + step * width : step]
    return np.ascontiguousarray(values.T).T
