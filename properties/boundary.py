"""The boundary between the suite's float64 and an implementation's formats.

Conversions here are exact: what cannot be represented is a fault of the suite. What comes back is
described in full when it is not what the protocol promises.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from properties.errors import AdapterError, SuiteError
from properties.protocol import Array
from properties.rounding.arithmetic import format_named

# So much of an exception's message is told.
MESSAGE = 2000


def round_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """The nearest values of the format, as float64 behind the same strides.

    Formats without infinity have no sign of overflow but NaN: their largest number stands in.
    """
    number = format_named(dtype.name)
    held = values
    if number.overflow_is_nan:
        held = np.clip(values, -number.largest, number.largest)
    with np.errstate(over="ignore"):
        rounded = held.astype(dtype)
    return _astype_keeping_strides(values, np.dtype(np.float64), rounded)


def exactly(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert without loss; a loss is the suite's fault, not the implementation's."""
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore"):
        converted = _astype_keeping_strides(values, dtype)
    if not np.array_equal(converted.astype(np.float64), values, equal_nan=True):
        raise SuiteError(f"the suite generated values that {dtype.name} cannot hold")
    return converted


def _astype_keeping_strides(
    values: Array, dtype: np.dtype[Any], content: Array | None = None
) -> Array:
    """``astype`` that keeps gaps between elements, so that strided inputs stay strided.

    ``content``, if given, is what is converted; only the strides are then those of ``values``.
    """
    content = values if content is None else content
    if values.size == 0 or values.flags.c_contiguous or values.flags.f_contiguous:
        return content.astype(dtype)
    steps = [stride // values.itemsize for stride in values.strides]
    low = sum(step * (size - 1) for step, size in zip(steps, values.shape, strict=True) if step < 0)
    high = sum(
        step * (size - 1) for step, size in zip(steps, values.shape, strict=True) if step > 0
    )
    size = dtype.itemsize
    memory = np.zeros((high - low + 1) * size, np.uint8)
    # Not as_strided, which does not know every format of ml_dtypes.
    strided: Array = np.ndarray(
        values.shape, dtype, memory, -low * size, [step * size for step in steps]
    )
    strided[...] = content.astype(dtype)
    return strided


def checked_result(
    what: str, value: Any, shape: tuple[int, ...], dtypes: Sequence[np.dtype[Any]]
) -> Array:
    names = " or ".join(dict.fromkeys(dtype.name for dtype in dtypes))
    expected = f"expected a numpy.ndarray of shape {shape} and dtype {names}"
    if not isinstance(value, np.ndarray) or type(value).__module__ == "numpy.ma":
        raise AdapterError(f"{what} is {describe(value)}; {expected}")
    plain = value.view(np.ndarray)  # a subclass may answer to its own rules
    if plain.shape != shape or plain.dtype not in dtypes:
        raise AdapterError(f"{what} is {describe(plain)}; {expected}")
    return plain.astype(np.float64)


def checked_parts(what: str, value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != len(names):
        found = f"{type(value).__name__}"
        raise AdapterError(f"{what} returned {found}; expected a tuple ({', '.join(names)})")
    return value


def describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        return f"a {kind} of shape {value.shape} and dtype {value.dtype}"
    return f"of type {type(value).__module__}.{type(value).__name__}"


def arrays_in(value: Any) -> list[Array]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [array for part in parts for array in arrays_in(part)]
    if is_dataclass(value) and not isinstance(value, type):
        return [array for part in fields(value) for array in arrays_in(getattr(value, part.name))]
    return []


def read_only(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if not value.flags.writeable and type(value) is np.ndarray:
            return value  # which a caller may hand over again
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, dict):
        return {name: read_only(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type) and arrays_in(value):
        parts = {part.name: read_only(getattr(value, part.name)) for part in fields(value)}
        return type(value)(**parts)
    return value


_KEYWORD_ONLY = frozenset(
    {"beta_gate", "beta_up", "eps", "top_k", "mask", "num_experts", "num_bins", "enabled", "config"}
    | {"training", "num_groups", "top_groups", "tensor_parallel", "expert_parallel"}
)


def split_arguments(label: str, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments as the protocol has them; a balancer's bias is a keyword."""
    keyword = _KEYWORD_ONLY | ({"bias"} if label == "balancer" else set())
    positional = [value for name, value in arguments.items() if name not in keyword]
    return positional, {name: value for name, value in arguments.items() if name in keyword}


def raised(label: str, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    where = "".join(f"\n    {frame.filename}:{frame.lineno} {frame.line}" for frame in frames[-4:])
    return f"{label} raised {type(error).__name__}: {told(error)}{where}"


def told(error: BaseException) -> str:
    """The message of an exception, which may be long, or fail to be made."""
    try:
        text = str(error)
    except BaseException as other:
        return f"(its message cannot be read: {type(other).__name__})"
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} … ({len(text)} characters)"
