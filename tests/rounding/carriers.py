"""Arrays that carry the reference's own formulas into other arithmetics than float64.

``Simulated`` computes as a :class:`~tests.rounding.simulation.Machine` does, and ``Digits`` in 60
digits. Both take over the NumPy functions that the reference uses, as a Ball does, so that no
formula is written a second time in order to be tested.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import mpmath
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.rounding.programs import digits, elementwise
from tests.rounding.simulation import Machine

_MOVES = (
    np.take_along_axis,
    np.swapaxes,
    np.transpose,
    np.reshape,
    np.broadcast_to,
    np.expand_dims,
    np.squeeze,
)
COMPARISONS = (np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal)

Table = dict[Any, Callable[..., Any]]


class Carrier(NDArrayOperatorsMixin):
    """An array ``value`` whose ufuncs and reductions are those of ``table``."""

    def __init__(self, value: Any, table: Table) -> None:
        self.value, self.table = np.asarray(value), table

    def _held(self, operand: Any) -> Any:
        return operand.value if isinstance(operand, Carrier) else self.table["read"](operand)

    def _like(self, value: Any) -> Carrier:
        return Carrier(value, self.table)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            return NotImplemented
        operands = [self._held(x) for x in inputs]
        if ufunc in COMPARISONS:
            return np.asarray(ufunc(*operands), dtype=np.bool_)
        return self._like(self.table[ufunc](*operands))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in (np.stack, np.concatenate):
            return self._like(function([self._held(x) for x in args[0]], *args[1:], **kwargs))
        if function is np.where:
            condition, first, second = args
            return self._like(np.where(condition, self._held(first), self._held(second)))
        if function in _MOVES:
            return self._like(function(args[0].value, *args[1:], **kwargs))
        if function in (np.sum, np.mean, np.max):
            return self._like(self._reduced(function, *args, **kwargs))
        raise TypeError(f"{function.__name__} is no function of these arrays")

    def _reduced(self, function: Any, x: Any, *, axis: int, keepdims: bool = False) -> Any:
        last = np.moveaxis(x.value, axis, -1)
        result = self.table[function](last)
        return np.expand_dims(result, axis) if keepdims else result

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def T(self) -> Carrier:
        return self._like(self.value.T)

    def __getitem__(self, index: Any) -> Carrier:
        return self._like(self.value[index])

    def reshape(self, *shape: Any) -> Carrier:
        return self._like(self.value.reshape(*shape))


def simulated(values: Any, machine: Machine) -> Any:
    """The array as the machine reads it, and computes on with its habits."""
    table: Table = {
        "read": machine.read,
        np.add: machine.add,
        np.subtract: machine.subtract,
        np.multiply: machine.multiply,
        np.divide: machine.divide,
        np.square: machine.square,
        np.sqrt: machine.sqrt,
        np.exp: machine.exp,
        np.tanh: machine.tanh,
        np.positive: machine.store,
        np.negative: np.negative,
        np.absolute: np.absolute,
        np.maximum: np.maximum,
        np.minimum: np.minimum,
        np.matmul: machine.matmul,
        np.sum: machine.sum,
        np.mean: machine.mean,
        np.max: lambda x: np.max(x, axis=-1),
    }
    return Carrier(machine.read(values), table)


def in_digits(values: Any) -> Any:
    """The array in many digits; an exponential below e^-100000 counts as that."""
    return Carrier(digits(values), _IN_DIGITS)


def _largest(x: Any) -> Any:
    larger = elementwise(lambda a, b: max(a, b))
    return reduce(larger, (x[..., place] for place in range(x.shape[-1])))


def _exp(x: Any) -> Any:
    return mpmath.exp(max(x, mpmath.mpf(-100_000)))


def _total(x: Any) -> Any:
    return np.sum(x, axis=-1) if x.shape[-1] else digits(np.zeros(x.shape[:-1]))


def _matmul(x: Any, y: Any) -> Any:
    return _total(x[..., :, None, :] * np.swapaxes(y, -1, -2)[..., None, :, :])


_IN_DIGITS: Table = {
    "read": lambda x: x if np.asarray(x).dtype == object else digits(x),
    np.add: lambda x, y: x + y,
    np.subtract: lambda x, y: x - y,
    np.multiply: lambda x, y: x * y,
    np.divide: elementwise(lambda x, y: x / y),
    np.square: lambda x: x * x,
    np.sqrt: elementwise(lambda x: mpmath.sqrt(x)),
    np.exp: elementwise(_exp),
    np.tanh: elementwise(lambda x: mpmath.tanh(x)),
    np.positive: lambda x: x,
    np.negative: lambda x: -x,
    np.absolute: elementwise(lambda x: abs(x)),
    np.maximum: elementwise(lambda x, y: max(x, y)),
    np.minimum: elementwise(lambda x, y: min(x, y)),
    np.matmul: _matmul,
    np.sum: _total,
    np.mean: lambda x: _total(x) / mpmath.mpf(x.shape[-1]),
    np.max: _largest,
}
