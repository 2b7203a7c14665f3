"""Between the gate's NumPy arrays and torch: conversion, a call, and gradients by autograd.

Trees are an array, a tuple of trees, or a dataclass of trees such as ``ExpertParameters``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn.functional import linear, pad

from properties.protocol import ExpertParameters


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A writable copy: the gate hands over read-only arrays, which torch cannot share."""
    copy = np.array(array)
    if copy.dtype == ml_dtypes.bfloat16:  # NumPy's bfloat16 is unknown to torch: pass the bits
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copy)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values in the NumPy dtype of the same format."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def call(function: Callable[..., torch.Tensor], *trees: Any) -> np.ndarray:
    """``function`` of the trees as tensors, without gradients."""
    with torch.no_grad():
        return to_array(function(*_map(to_tensor, trees)))


def vjp(
    function: Callable[..., torch.Tensor], trees: tuple[Any, ...], cotangent: np.ndarray
) -> Any:
    """Gradients of ``sum(cotangent * function(*trees))``, in the shape of ``trees``.

    They are 0 for what the result does not depend on, as that of a loop over no tokens on all.
    """
    inputs = _map(lambda array: to_tensor(array).requires_grad_(), trees)
    out = function(*inputs)
    if not out.requires_grad:
        return _map(lambda array: np.zeros_like(array), trees)
    gradients = iter(
        torch.autograd.grad(
            out, list(_leaves(inputs)), to_tensor(cotangent).to(out.dtype), materialize_grads=True
        )
    )
    return _map(lambda _: to_array(next(gradients)), inputs)


class _Identity(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is linear:
            return args[0]
        return super().__torch_function__(function, types, args, kwargs or {})


def identity_weight(size: int, dtype: torch.dtype) -> torch.Tensor:
    """An identity matrix that ``linear`` multiplies exactly, infinities included.

    A router takes hidden states; with this as its weight they are its logits. A plain identity
    would do for finite numbers, but infinity times its zeros is NaN.
    """
    return torch.eye(size, dtype=dtype).as_subclass(_Identity)


def pad_experts(
    parameters: ExpertParameters, more_hidden: int, more_width: int
) -> ExpertParameters:
    """The same experts (of tensors) with wider rows: zeros that stay zeros through SiTU."""
    return ExpertParameters(
        gate_proj=pad(parameters.gate_proj, (0, more_width, 0, more_hidden)),
        up_proj=pad(parameters.up_proj, (0, more_width, 0, more_hidden)),
        down_proj=pad(parameters.down_proj, (0, more_hidden, 0, more_width)),
    )


def missing_to_16_bytes(size: int, dtype: torch.dtype) -> int:
    """How many elements a row lacks to be a multiple of 16 bytes, as grouped_mm demands."""
    return -size % (16 // dtype.itemsize)


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(_map(function, part) for part in tree)
    if is_dataclass(tree):
        return type(tree)(**{f.name: _map(function, getattr(tree, f.name)) for f in fields(tree)})
    return function(tree)


def _leaves(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, tuple):
        for part in tree:
            yield from _leaves(part)
    elif is_dataclass(tree):
        for field in fields(tree):
            yield from _leaves(getattr(tree, field.name))
    else:
        yield tree
