"""NumPy arrays to tensors and back: bfloat16 bits and strides kept, read-only inputs copied.

NumPy knows bfloat16 and float8 once ``ml_dtypes`` is imported; here they are moved as integers of
their size, so this module needs NumPy and torch alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Array", "nan_memory", "poison", "to_array", "to_tensor", "torch_dtype"]

Array: TypeAlias = NDArray[Any]

# Formats that only ml_dtypes gives NumPy are moved as integers of their size.
_BITS = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16)}
_NATIVE = frozenset({"float16", "float32", "float64"})


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a format's name, as "bfloat16".

    Raises:
        ValueError: torch has no format of that name.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no number format {name!r}; use e.g. 'float32'")
    return dtype


def to_tensor(
    array: Array, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """A copy of an array, with its strides.

    Memory between the elements of a strided array is filled with NaN (the largest integer, True),
    so that code which ignores strides does not read the right values by luck. Negative and
    overlapping strides, which torch lacks or cannot write, become contiguous.

    Args:
        array: any shape; floating-point (bfloat16 and float8 included), integer or boolean.
        dtype: the tensor's format, by default the array's own.
        device: where the tensor is made.
    """
    tensor = _packed(array)
    tensor = tensor.to(device=device, dtype=dtype or tensor.dtype)
    strides = _element_strides(array)
    if strides is None or strides == tensor.stride() or not array.size:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    gaps = torch.full((span,), _gap(tensor.dtype), dtype=tensor.dtype, device=device)
    return gaps.as_strided(array.shape, strides).copy_(tensor)


def to_array(tensor: Tensor) -> Array:
    """A contiguous NumPy copy of a tensor, in the format of the same name."""
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if not tensor.dtype.is_floating_point or name in _NATIVE:
        return np.array(tensor.numpy())
    bits = _BITS[tensor.element_size()][1]
    return np.array(tensor.view(bits).numpy()).view(np.dtype(name))


def poison() -> None:
    """Allocate NaN-filled tensors of many sizes and free them, for later uninitialised tensors.

    Sizes run from 64 bytes to 4 MiB, 8 tensors of each but of the largest, of which there are as
    many as fit 4 MiB; what the allocator hands out next is likely, though not certain, to be one
    of them.
    """
    sizes = [16 << power for power in range(17)]
    held = [
        torch.full((size,), torch.nan) for size in sizes for _ in range(min(8, (1 << 20) // size))
    ]
    held.clear()


@contextmanager
def nan_memory() -> Iterator[None]:
    """Within it ``torch.empty`` and its kin return NaN (the largest value in integer formats).

    That is a part of torch's deterministic mode, which is on meanwhile; an operation that has no
    deterministic form runs as ever.
    """
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        # Not use_deterministic_algorithms, which imports the compiler: 1.6 seconds.
        torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)


def _packed(array: Array) -> Tensor:
    name = array.dtype.name
    if array.dtype.kind in "biu" or name in _NATIVE:
        return torch.from_numpy(np.array(array, order="C"))
    dtype = torch_dtype(name)
    bits = array.view(_BITS[array.dtype.itemsize][0])
    return torch.from_numpy(np.array(bits, order="C")).view(dtype)


def _element_strides(array: Array) -> tuple[int, ...] | None:
    """Strides in elements, or None where a tensor cannot have them or writes would overlap."""
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return None
    strides = tuple(stride // array.itemsize for stride in array.strides)
    reached = 0
    for stride, size in sorted(zip(strides, array.shape, strict=True)):
        if size > 1 and stride <= reached:
            return None
        reached += stride * (size - 1)
    return strides


def _gap(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max
