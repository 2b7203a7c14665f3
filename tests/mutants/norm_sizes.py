"""Norms that are right at most sizes, behind axes that merge into one, and in a single call.

``killed_by`` names the property that has to catch it. Legend: M rows, L the normalised width.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


class EpsOnTheSumOfFullBlocks(Reference):
    """Widths 128, 256, 512 and so on have a template that adds eps to the sum, not the mean."""

    killed_by = "NRM-SIZES"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        width = x.shape[-1]
        full = width >= 128 and width & (width - 1) == 0
        return super().rms_norm(x, weight, eps=eps / width if full else eps)


class RowsShareTheirSum(Reference):
    """Rows wider than 2048 take a loop whose running sum is not reset between rows."""

    killed_by = "NRM-SIZES"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        if x.shape[-1] <= 2048:
            return super().rms_norm(x, weight, eps=eps)
        rows = x.reshape(-1, x.shape[-1])
        squares = np.cumsum(np.square(rows).sum(axis=1, keepdims=True), axis=0)
        out = rows / np.sqrt(squares / x.shape[-1] + eps) * weight
        return np.reshape(out, x.shape)


class RemainderOfTheGrid(Reference):
    """528 persistent programs take as many whole rows each; the remaining rows are 0."""

    killed_by = "NRM-SIZES"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps).reshape(-1, x.shape[-1]).copy()
        if len(out) > 528:
            out[len(out) // 528 * 528 :] = 0.0
        return out.reshape(x.shape)


class OneStrideForAllRows(Reference):
    """Rows of three axes are walked by the stride of the axis before the last."""

    killed_by = "NRM-AXES"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(by_one_stride(x), weight, eps=eps)


def by_one_stride(x: Array) -> Array:
    """What a kernel reads that walks all rows by one stride, inside the buffer."""
    if x.ndim < 3 or not x.size or x.strides[-1] != x.itemsize or min(x.strides) <= 0:
        return x
    buffer = x.base if x.base is not None else x
    numbers = np.ravel(buffer, order="K")
    start = (x.ctypes.data - numbers.ctypes.data) // x.itemsize
    rows = int(np.prod(x.shape[:-1]))
    places = start + np.arange(rows)[:, None] * (x.strides[-2] // x.itemsize)
    inside = np.clip(places + np.arange(x.shape[-1]), 0, len(numbers) - 1)
    return numbers[inside].reshape(x.shape)


class WeightCastOnce(Reference):
    """The weight's working copy is kept for as long as the array lives."""

    killed_by = "NRM-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[int, tuple[Any, Array]] = {}

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        kept = self.copies.get(id(weight))
        if kept is None or kept[0]() is not weight:
            kept = self.copies[id(weight)] = weakref.ref(weight), np.array(weight)
        return super().rms_norm(x, kept[1], eps=eps)


class WeightCastByAddress(Reference):
    """The weight's working copy is kept by address and length."""

    killed_by = "NRM-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[tuple[int, int], Array] = {}

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        copy = self.copies.setdefault((weight.ctypes.data, len(weight)), np.array(weight))
        return super().rms_norm(x, copy, eps=eps)


class EpsOfTheFirstCall(Reference):
    """eps is compiled in at the first call of a shape."""

    killed_by = "NRM-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.compiled: dict[tuple[int, ...], float] = {}

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=self.compiled.setdefault(x.shape, eps))
