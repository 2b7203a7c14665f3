"""The worst implementation that is still right: every rounding pushes one result the same way.

A backward pass through the formula says which way each rounding moves the target, to first order.
The machine then takes, of all results that its declared precision allows, the one that moves it
farthest: the upper or the lower neighbour, the far end of a library function's error, one of many
orders of a sum. Chance would have most of these errors cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from properties.rounding.arithmetic import Arithmetic, Format
from tests.rounding.carriers import COMPARISONS, Carrier, Table, simulated
from tests.rounding.composites import Drawn
from tests.rounding.simulation import Machine

# How wrong library functions may be in ulp, of which each is 2 u; see the table of allowances.
SQRT_ULPS, EXP_ULPS, TANH_ULPS = 2.0, 2.0, 4.0
ORDERS = 8

__all__ = ["Directed", "Directions", "Slopes", "directed_results", "neighbour"]


def neighbour(z: Any, way: Any, number: Format) -> Any:
    """The number next to z, above where ``way`` is positive, below where negative, else nearest."""
    rounded = number.rounded(np.asarray(z, dtype=np.float64))
    held = rounded.astype(number.dtype)
    infinity = np.array(np.inf, number.dtype)
    above, below = (np.nextafter(held, end).astype(np.float64) for end in (infinity, -infinity))
    stepped = np.where((way > 0) & (rounded < z), above, rounded)
    stepped = np.where((way < 0) & (rounded > z), below, stepped)
    return np.where(np.isfinite(stepped), stepped, rounded)


class Directed(Machine):
    """A machine that errs the way it is told, operation by operation."""

    def __init__(self, arithmetic: Arithmetic, rng: np.random.Generator, ways: list[Any]) -> None:
        super().__init__(arithmetic, rng)
        self.truncates = self.devious = self.flushes = self.reciprocals = self.wide = False
        self.exp_by_powers_of_two = False
        self.ways = iter(ways)

    def add(self, x: Any, y: Any) -> Any:
        return self._next(_long(x) + _long(y))

    def subtract(self, x: Any, y: Any) -> Any:
        return self._next(_long(x) - _long(y))

    def multiply(self, x: Any, y: Any) -> Any:
        return self._next(_long(x) * _long(y))

    def divide(self, x: Any, y: Any) -> Any:
        return self._next(_long(x) / _long(y))

    def square(self, x: Any) -> Any:
        return self._next(np.square(_long(x)))

    def _next(self, z: Any) -> Any:
        return neighbour(z, next(self.ways), self.number)

    def sqrt(self, x: Any) -> Any:
        return self._library(np.sqrt(x), SQRT_ULPS)

    def exp(self, x: Any) -> Any:
        """As a power of two, whose exponent x log2 e was rounded the wrong way before."""
        return self._library(np.exp(x), EXP_ULPS + 0.5 * np.minimum(np.abs(x), 1e4))

    def tanh(self, x: Any) -> Any:
        bounded = np.clip(self._library(np.tanh(x), TANH_ULPS), -1.0, 1.0)
        return np.where(np.isinf(x), np.sign(x), bounded)

    def _library(self, z: Any, ulps: Any) -> Any:
        """As far as the error goes, then back into the format towards the right value."""
        way = next(self.ways)
        far = z + way * np.abs(z) * (2.0 * ulps * self.number.roundoff)
        return neighbour(far, -way, self.number)

    def store(self, x: Any) -> Any:
        next(self.ways)
        return super().store(x)

    def sum(self, x: Any) -> Any:
        return self.fit_nearest(self._worst_order([x], next(self.ways)), self.number)

    def mean(self, x: Any) -> Any:
        way = next(self.ways)
        return neighbour(_long(self._worst_order([x], way)) / x.shape[-1], way, self.number)

    def matmul(self, x: Any, y: Any) -> Any:
        way = next(self.ways)
        products = x[..., :, None, :] * np.swapaxes(y, -1, -2)[..., None, :, :]
        kinds = [products, self.fit_nearest(products, self.number)]
        return self.fit_nearest(self._worst_order(kinds, way), self.number)

    def _worst_order(self, kinds: list[Any], way: Any) -> Any:
        best = None
        for terms in kinds:
            for _ in range(ORDERS):
                self.order = str(self.rng.choice(["sequential", "pairwise", "chunks"]))
                found = self.accumulate(terms)
                best = found if best is None else np.where(way * (found - best) > 0.0, found, best)
        return best


def _long(x: Any) -> Any:
    """Wide enough to tell on which side of a float64 number a result lies."""
    return np.asarray(x, dtype=np.longdouble)


# Which way each rounding moves the target --------------------------------------------------------


class _Taped(Carrier):
    """A torch tensor that keeps every rounded result on a tape, in the order of evaluation."""

    def __init__(self, value: Any, table: Table) -> None:
        self.value, self.table = value, table

    def _like(self, value: Any) -> Carrier:
        return _Taped(value, self.table)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in COMPARISONS:
            inputs = tuple(self._held(x).detach().numpy() for x in inputs)
            return np.asarray(ufunc(*inputs), dtype=np.bool_)
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in _JOINS:
            axis = args[1] if len(args) > 1 else kwargs.get("axis", 0)
            return self._like(_JOINS[function]([self._held(x) for x in args[0]], axis))
        if function is np.where:
            condition, first, second = (self._held(x) for x in args)
            return self._like(torch.where(condition.bool(), first, second))
        if function in _MOVES:
            return self._like(_MOVES[function](args[0].value, *args[1:], **kwargs))
        return super().__array_function__(function, types, args, kwargs)

    def _reduced(self, function: Any, x: Any, *, axis: int, keepdims: bool = False) -> Any:
        result = self.table[function](torch.movedim(x.value, axis, -1))
        return torch.unsqueeze(result, axis) if keepdims else result

    def __getitem__(self, index: Any) -> Carrier:
        if isinstance(index, tuple):
            index = tuple(torch.as_tensor(i) if isinstance(i, np.ndarray) else i for i in index)
        return self._like(self.value[index])

    @property
    def size(self) -> int:
        return self.value.numel()


_JOINS: Table = {np.stack: torch.stack, np.concatenate: torch.cat}
_MOVES: Table = {
    np.take_along_axis: lambda x, ids, axis: torch.take_along_dim(x, torch.as_tensor(ids), axis),
    np.swapaxes: torch.swapaxes,
    np.transpose: lambda x: x.T,
    np.reshape: torch.reshape,
    np.broadcast_to: torch.broadcast_to,
    np.expand_dims: torch.unsqueeze,
    np.squeeze: torch.squeeze,
}


def _tape_table(tape: list[Any]) -> Table:
    def kept(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*operands: Any) -> Any:
            result = function(*operands)
            if not result.requires_grad:  # its operands were given, and are not differentiated
                result.requires_grad_()
            tape.append(result)
            return result

        return record

    rounded: Table = {
        np.add: torch.add,
        np.subtract: torch.subtract,
        np.multiply: torch.multiply,
        np.divide: torch.divide,
        np.square: torch.square,
        np.sqrt: torch.sqrt,
        np.exp: torch.exp,
        np.tanh: torch.tanh,
        np.positive: torch.clone,
        np.matmul: torch.matmul,
        np.sum: lambda x: torch.sum(x, -1),
        np.mean: lambda x: torch.mean(x, -1),
    }
    return {
        **{ufunc: kept(function) for ufunc, function in rounded.items()},
        "read": lambda x: torch.as_tensor(np.asarray(x, dtype=np.float64)),
        np.negative: torch.negative,
        np.absolute: torch.abs,
        np.maximum: torch.maximum,
        np.minimum: torch.minimum,
        np.max: lambda x: torch.amax(x, -1),
    }


class Directions(NamedTuple):
    """Which way each rounded result moves the target, and by how much if all move it by one u.

    ``slopes`` are d target / d result in the order of evaluation, None for 0; ``reach`` is the sum
    of abs(result d target / d result).
    """

    slopes: list[Any]
    reach: float


class Slopes:
    """The formula of ``drawn``, evaluated once in order to be differentiated many times."""

    def __init__(self, drawn: Drawn) -> None:
        self._tape: list[Any] = []
        table = _tape_table(self._tape)
        self._results = drawn.on(lambda array: _Taped(table["read"](array), table))

    def directions(self, key: str, place: int) -> Directions:
        """The directions for the element number ``place`` of the result ``key``."""
        target = self._results[key].value.reshape(-1)[place]
        found = torch.autograd.grad(target, self._tape, retain_graph=True, allow_unused=True)
        pairs = zip(self._tape, found, strict=True)
        reach = sum(float((s * x).detach().abs().sum()) for x, s in pairs if s is not None)
        return Directions(list(found), reach)


def directed_results(
    drawn: Drawn, slopes: list[Any], arithmetic: Arithmetic, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """All results of the two machines that push the target up, and down."""
    ways = [0.0 if slope is None else np.sign(slope.numpy()) for slope in slopes]
    for sign in (1.0, -1.0):
        machine = Directed(arithmetic, rng, [sign * way for way in ways])
        with np.errstate(all="ignore"):
            found = drawn.on(lambda array: simulated(array, machine))  # noqa: B023
        yield {name: result.value for name, result in found.items()}
