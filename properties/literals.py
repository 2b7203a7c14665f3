"""Arguments of a call, printed as Python that NumPy reads back to the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from properties.calls import Call
from properties.protocol import Array

MAX_ELEMENTS = 600

# Of calls that are longer together, the last are printed so, and arrays of the others if they are
# small: what contradicts a statement is one of the last, or two that are compared.
LEGIBLE = 8000
LAST = 2
SMALL = 16


def literal(value: Any, most: int = MAX_ELEMENTS) -> str:
    """A Python expression for an argument; arrays of more elements than that are only described."""
    if isinstance(value, np.ndarray):
        return _array(value, most)
    if is_dataclass(value) and not isinstance(value, type):
        named = ((part.name, getattr(value, part.name)) for part in fields(value))
        parts = (f"{name}={literal(part, most)}" for name, part in named)
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, dict):
        told = (f"{key!r}: {literal(part, most)}" for key, part in value.items())
        return "{" + ", ".join(told) + "}"
    return _number(value) if isinstance(value, float) else repr(value)


def calls_literal(calls: list[Call]) -> list[str]:
    """Each call as a person would type it; of many long ones, large arrays of the last alone."""
    told = [call_literal(call.method, call.arguments) for call in calls]
    if sum(map(len, told)) <= LEGIBLE:
        return told
    early = [call_literal(call.method, call.arguments, SMALL) for call in calls[:-LAST]]
    return early + told[len(early) :]


def call_literal(method: str, arguments: dict[str, Any], most: int = MAX_ELEMENTS) -> str:
    """The call as a person would type it, one argument per line."""
    lines = [_argument_line(name, value, most) for name, value in arguments.items()]
    return "\n".join([f"{method}(", *lines, ")"]) if lines else f"{method}()"


def is_described(literal_: str) -> bool:
    """Whether a printed call leaves out elements."""
    return "<array of shape" in literal_


def save_calls(path: Path, calls: list[Call]) -> Path:
    """Write every array of these calls to an .npz file, which ``np.load`` reads.

    The names are the number of the call, its method, and the argument: "0.layer.x", "0.layer.
    parameters.gate_weight"; what came back is "0.layer.returned". Formats that NumPy does not have
    are written as float32, which holds all their values.
    """
    arrays: dict[str, Array] = {}
    for number, call in enumerate(calls):
        name = f"{number}.{call.method}"
        arrays |= dict(_arrays(name, call.arguments))
        arrays |= dict(_arrays(f"{name}.returned", call.output))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(value, np.ndarray):
        foreign = value.dtype.isbuiltin != 1 or value.dtype.kind in "VO"
        yield name, value.astype(np.float32) if foreign else value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _arrays(f"{name}.{key}", part)
    elif isinstance(value, tuple):
        for key, part in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            yield from _arrays(f"{name}.{key}", part)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _arrays(f"{name}.{part.name}", getattr(value, part.name))


def _argument_line(name: str, value: Any, most: int) -> str:
    """One argument; a comment names memory that a literal does not restore, where it matters."""
    strided = list(_strides(name, value))
    note = f"  # passed with strides, in elements: {', '.join(strided)}" if strided else ""
    return f"    {name}={literal(value, most)},{note}"


def _strides(name: str, value: Any) -> Iterator[str]:
    """The strides of every array in an argument that is not contiguous."""
    if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
        yield f"{name} {tuple(stride // value.itemsize for stride in value.strides)}"
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _strides(part.name, getattr(value, part.name))


def _array(values: Array, most: int) -> str:
    dtype = _dtype_name(values.dtype)
    if values.size > most:
        return f"<array of shape {values.shape}, dtype {dtype}>"
    if values.size == 0:
        return f"np.zeros({values.shape}, {dtype})"
    flat = values.reshape(-1)
    same = flat.tobytes() == np.full_like(flat, flat[0]).tobytes()
    if same and values.size > 8:
        return f"np.full({values.shape}, {_number(flat[0])}, {dtype})"
    return f"np.array({_nested(values)}, {dtype})"


def _nested(values: Array) -> str:
    if values.ndim == 0:
        return _number(values[()])
    return "[" + ", ".join(_nested(row) for row in values) + "]"


def _number(value: Any) -> str:
    if isinstance(value, (np.bool_, bool)):
        return str(bool(value))
    if np.issubdtype(np.asarray(value).dtype, np.integer):
        return str(int(value))
    number = float(value)
    if np.isnan(number):
        return "np.nan"
    if np.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    if isinstance(value, (np.float32, np.float16)):
        return np.format_float_scientific(value, trim="-") if number else repr(number)
    return repr(number)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """How to write the dtype: NumPy's own by attribute, the others through ml_dtypes."""
    return f"np.{dtype.name}" if dtype.isbuiltin == 1 and dtype.kind != "V" else f'"{dtype.name}"'
