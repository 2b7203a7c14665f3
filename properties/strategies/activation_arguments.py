"""Arguments of SiTU-GLU: in any memory, in the one right order, and with senseless caps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.activation_gradient import betas, one_of, shape
from properties.strategies.optimality import uniform_seeds

Views = tuple[Array, Array]


@dataclass(frozen=True)
class MemoryInputs:
    """gate, up and cotangent of one shape, and in which memory to hand them over (see ``MEMORY``).

    ``expanded`` says of what the cotangent is made by strides of 0, as that of a mean is: a single
    number, a row or a column; or of nothing, and its rows lie apart.
    """

    gate: Array
    up: Array
    cotangent: Array
    memory: str
    expanded: str
    beta_gate: float
    beta_up: float


@dataclass(frozen=True)
class OrderInputs:
    """gate and up of one shape (rows, an even number of columns), and the caps."""

    gate: Array
    up: Array
    beta_gate: float
    beta_up: float


@dataclass(frozen=True)
class RejectInputs:
    """Small gates and ups, caps of which ``gate_side`` tells which one makes no sense."""

    gate: Array
    up: Array
    gate_side: bool
    beta: float
    other: float


def memory_inputs() -> st.SearchStrategy[MemoryInputs]:
    """Every kind of memory equally often; all shapes, 0 elements included."""

    def seeded(seed: int) -> MemoryInputs:
        rng = np.random.default_rng(seed)
        of = shape(rng)
        beta_gate, beta_up = betas(rng)
        gate, up, cotangent = rng.uniform(-1.0, 1.0, (3, *of))
        memory = one_of(rng, tuple(MEMORY))
        expanded = EXPANDED[int(8 * rng.random())]
        return MemoryInputs(
            gate * beta_gate * 3.0, up * beta_up, cotangent, memory, expanded, beta_gate, beta_up
        )

    return uniform_seeds().map(seeded)


def order_inputs() -> st.SearchStrategy[OrderInputs]:
    """Up to four rows of 2 to 16 columns, all numbers of the order of their caps."""

    def seeded(seed: int) -> OrderInputs:
        rng = np.random.default_rng(seed)
        of = int(rng.integers(1, 5)), 2 * int(rng.integers(1, 9))
        beta_gate, beta_up = betas(rng)
        gate, up = rng.uniform(0.2, 1.5, (2, *of)) * rng.choice([-1.0, 1.0], (2, *of))
        return OrderInputs(gate * min(beta_gate, 4.0), up * beta_up, beta_gate, beta_up)

    return uniform_seeds().map(seeded)


def reject_inputs() -> st.SearchStrategy[RejectInputs]:
    """Zeros, negative numbers, infinities and NaN for either cap; gates and ups with zeros."""
    senseless = (0.0, -0.0, -1.0, -4.0, -1e30, np.nan, np.inf, -np.inf)

    def seeded(seed: int) -> RejectInputs:
        rng = np.random.default_rng(seed)
        values = rng.integers(-16, 17, (2, int(rng.integers(1, 6)))) / 4.0
        beta, other = one_of(rng, senseless), one_of(rng, (4.0, 25.0, 1.0))
        return RejectInputs(values[0], values[1], bool(rng.random() < 0.5), beta, other)

    return uniform_seeds().map(seeded)


def _padded(values: Array, before: int) -> Array:
    """A flat buffer with the values from place ``before`` on, and NaN around them."""
    buffer = np.full(before + values.size + 3, np.nan, values.dtype)
    buffer[before : before + values.size] = values.reshape(-1)
    return buffer


def _offset(values: Array, before: int) -> Array:
    return _padded(values, before)[before : before + values.size].reshape(values.shape)


def _every_other_row(values: Array) -> Array:
    wide = np.full((2 * values.shape[0] + 1, *values.shape[1:]), np.nan, values.dtype)
    wide[1::2] = values
    return wide[1::2]


def _padded_rows(values: Array) -> Array:
    wide = np.full((*values.shape[:-1], values.shape[-1] + 3), np.nan, values.dtype)
    wide[..., 2:-1] = values
    return wide[..., 2:-1]


def _strided(values: Array) -> Array:
    wide = np.full((*values.shape, 3), np.nan, values.dtype)
    wide[..., 1] = values
    return wide[..., 1]


def _halves(gate: Array, up: Array, axis: int) -> Views:
    both = np.concatenate([gate, up], axis=axis)
    first, second = np.split(both, 2, axis=axis)
    return first, second


def _interleaved(gate: Array, up: Array) -> Views:
    both = np.stack([gate, up], axis=-1)
    return both[..., 0], both[..., 1]


def _overlapping(gate: Array, up: Array) -> Views:
    buffer = _padded(gate, 0)
    buffer[gate.size :] = 1.0
    first, second = (buffer[start : start + gate.size] for start in (0, 1))
    return first.reshape(gate.shape), second.reshape(up.shape)


def _each(view: Callable[[Array], Array]) -> Callable[[Array, Array], Views]:
    return lambda gate, up: (view(gate), view(up))


def _repeated(values: Array, axes: tuple[int, ...]) -> Array:
    """The first entry along some axes, repeated there by a stride of 0."""
    if not values.size:
        return values
    first = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(values.ndim))
    return np.broadcast_to(values[first], values.shape)


# Each kind of memory by name: from contiguous arrays to views that hold numbers of the same shape,
# the very same ones except where the views overlap or repeat.
MEMORY: Mapping[str, Callable[[Array, Array], Views]] = {
    "halves of one row": lambda gate, up: _halves(gate, up, -1),
    "halves of one buffer": lambda gate, up: _halves(gate, up, 0),
    "interleaved": _interleaved,
    "the same array": lambda gate, _: (gate, gate),
    "overlapping": _overlapping,
    "offset in a buffer": lambda gate, up: (_offset(gate, 1), _offset(up, 3)),
    "padded rows": _each(_padded_rows),
    "every third element": _each(_strided),
    "every other row": _each(_every_other_row),
    "transposed": _each(lambda z: np.ascontiguousarray(z.T).T),
    "axes rotated": _each(
        lambda z: np.moveaxis(np.ascontiguousarray(np.moveaxis(z, 0, -1)), -1, 0)
    ),
    "reversed": _each(
        lambda z: np.ascontiguousarray(np.flip(z))[(slice(None, None, -1),) * z.ndim]
    ),
    "one row for all": lambda gate, up: (_repeated(gate, (0,)), up),
    "one column for all": lambda gate, up: (gate, _repeated(up, (up.ndim - 1,))),
    "one number for all": lambda gate, up: (_repeated(gate, tuple(range(gate.ndim))), up),
    "gate plain, up transposed": lambda gate, up: (gate, np.ascontiguousarray(up.T).T),
}


# What a cotangent is expanded from, the commonest first.
EXPANDED = ("number", "number", "row", "column", *("nothing",) * 4)


def expanded(cotangent: Array, of: str) -> Array:
    """A cotangent made of its first number, row or column, or as it is, its rows apart."""
    last = cotangent.ndim - 1
    axes = {"number": tuple(range(cotangent.ndim)), "row": (0,), "column": (last,)}
    return _repeated(cotangent, axes[of]) if of in axes else _padded_rows(cotangent)
