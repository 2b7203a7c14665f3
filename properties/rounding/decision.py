"""Comparisons of balls: boolean arrays that know where an implementation may decide otherwise.

A comparison is made on the values, and the result is an ordinary boolean array. Where the radii
overlap, the implementation may find the opposite. ``numpy.where`` on balls then takes both branches
into account, so a formula with a branch stays sound at the seam.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from properties.rounding.dispatch import FUNCTIONS

Bools: TypeAlias = NDArray[np.bool_]

_LOGIC = (np.logical_and, np.bitwise_and, np.logical_or, np.bitwise_or)
_NEGATIONS = (np.logical_not, np.invert)

__all__ = ["Bools", "Decision"]


class Decision(np.ndarray[Any, np.dtype[np.bool_]]):
    """A boolean array with ``doubt``: where True, the opposite may be found instead.

    Doubt follows ``~``, ``&``, ``|``, indexing and ``reshape``. Other ufuncs and reductions give
    plain arrays of the values. Other views and copies lose track of the doubt, and asking for it
    then raises TypeError.
    """

    _doubt: Bools | None
    _lost: bool
    _arithmetic: Any

    @classmethod
    def of(cls, outcome: Any, doubt: Bools | None, arithmetic: Any) -> Decision:
        """The decision with this outcome; ``doubt`` None means that nothing is in doubt."""
        decision = np.asarray(outcome).view(cls)
        decision._doubt = doubt
        decision._arithmetic = arithmetic
        return decision

    def __array_finalize__(self, source: Any) -> None:
        self._doubt = None
        self._lost = isinstance(source, Decision) and (source._lost or source._doubt is not None)
        self._arithmetic = getattr(source, "_arithmetic", None)

    @property
    def doubt(self) -> Bools | None:
        """Where the opposite may be found, or None for nowhere."""
        if self._lost:
            raise TypeError(
                "this boolean array comes from a comparison of balls in a way that lost track of "
                "where it may go the other way: reshape the balls before comparing them"
            )
        return self._doubt

    def __getitem__(self, index: Any) -> Any:
        outcome = np.asarray(self)[index]
        doubt = None if self.doubt is None else np.asarray(self.doubt[index])
        return Decision.of(outcome, doubt, self._arithmetic)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        doubt = None if self.doubt is None else self.doubt.reshape(*shape, **kwargs)
        return Decision.of(np.asarray(self).reshape(*shape, **kwargs), doubt, self._arithmetic)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(hasattr(x, "arithmetic") for x in inputs):
            return NotImplemented  # a ball is better at this
        plain = [np.asarray(x) if isinstance(x, Decision) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **kwargs)
        if method != "__call__" or kwargs or ufunc not in (*_LOGIC, *_NEGATIONS):
            return result
        doubts = [x.doubt for x in inputs if isinstance(x, Decision) and x.doubt is not None]
        if not doubts:
            return Decision.of(result, None, self._arithmetic)
        # A doubt about one side may not matter, but it never hurts to keep it.
        doubt = np.broadcast_to(np.logical_or.reduce(np.broadcast_arrays(*doubts)), result.shape)
        return Decision.of(result, doubt, self._arithmetic)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and self.doubt is not None:
            with np.errstate(all="ignore"):
                return FUNCTIONS[np.where](self._arithmetic, *args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)
