"""The same memory for one call after another, and what calls returned, kept as it came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from properties.boundary import arrays_in
from properties.calls import Call
from properties.checks import require
from properties.protocol import Array
from properties.subject import Subject

__all__ = ["Kept", "Rewritable"]


class Rewritable:
    """Arrays whose values are written over, behind views that stay.

    The views are read-only and contiguous. In the formats of the protocol the implementation is
    given that memory itself.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A view of an array more."""
        self._arrays.append(np.zeros(shape, dtype))
        view = self._arrays[-1].view()
        view.flags.writeable = False
        return view

    def write(self, values: Iterable[Array]) -> None:
        """Replace the values of all arrays, in the order in which they were made."""
        for array, new in zip(self._arrays, values, strict=True):
            array[...] = new


@dataclass(frozen=True)
class Kept:
    """Arrays as the implementation returned them, not copied, and the bits they had."""

    what: str
    arrays: list[Array]
    bits: list[bytes]

    @classmethod
    def of_last_call(cls, subject: Subject, what: str) -> Kept:
        """What the latest call returned; it passed the checks of its type, shape and dtype."""
        return cls.of(subject.case.calls[-1], what)

    @classmethod
    def of(cls, call: Call, what: str) -> Kept:
        """What that call returned."""
        arrays = arrays_in(call.output)
        return cls(what, arrays, [array.tobytes() for array in arrays])

    def require_unchanged(self) -> None:
        """Raise ViolationError if any bit is another one now."""
        for array, bits in zip(self.arrays, self.bits, strict=True):
            require(array.tobytes() == bits, f"a later call changed {self.what}")
