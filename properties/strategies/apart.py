"""Views whose leading axes do not merge: a step along one is no whole number of steps of the next.

Padded sequences, caches and batches that were cut are such views. Whoever walks all rows by one
stride reads memory beside them, which holds NaN, or other rows.

Legend: B batches, S positions, L the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from properties.protocol import Array

__all__ = ["APART"]


def _cut(values: Array, *places: tuple[int, int, int]) -> Array:
    """A part of a larger buffer: each axis has so many before, so many after, and every n-th."""
    lengths = [
        before + step * size + after
        for size, (before, after, step) in zip(values.shape, places, strict=True)
    ]
    part = tuple(
        slice(before, before + step * size, step)
        for size, (before, _, step) in zip(values.shape, places, strict=True)
    )
    buffer = np.full(lengths, np.nan, values.dtype)
    buffer[part] = values
    return buffer[part]


def _before_last(values: Array, place: tuple[int, int, int]) -> Array:
    return _cut(values, *((0, 0, 1),) * (values.ndim - 2), place, (0, 0, 1))


def _repeated(values: Array, axis: int) -> Array:
    """The first entry along the axis, in place of all, by a stride of 0."""
    if not values.size:
        return values
    return np.broadcast_to(values.take([0], axis), values.shape)


def _both(values: Array) -> Array:
    return _cut(values, *((0, 0, 1),) * (values.ndim - 2), (1, 2, 1), (2, 1, 1))


# By name, for values of three axes or more: (B, S, L), and any before them.
APART: Mapping[str, Callable[[Array], Array]] = {
    "the beginnings of longer sequences": lambda z: _before_last(z, (0, 2, 1)),
    "the ends of longer sequences": lambda z: _before_last(z, (3, 0, 1)),
    "every other position": lambda z: _before_last(z, (0, 1, 2)),
    "every other batch": lambda z: _cut(z, (1, 0, 2), *((0, 0, 1),) * (z.ndim - 1)),
    "a corner of longer and wider sequences": _both,
    "positions before batches": lambda z: np.swapaxes(
        np.ascontiguousarray(np.swapaxes(z, 0, 1)), 0, 1
    ),
    "sequences backwards": lambda z: np.ascontiguousarray(z[..., ::-1, :])[..., ::-1, :],
    "batches backwards": lambda z: np.ascontiguousarray(z[::-1])[::-1],
    "one position for all": lambda z: _repeated(z, z.ndim - 2),
    "one batch for all": lambda z: _repeated(z, 0),
}
