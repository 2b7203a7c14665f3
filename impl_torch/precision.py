"""Number formats: what is computed in, and buffers that a cast must not coarsen.

Storage of any format narrower than float32 is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

__all__ = ["KeepsPrecision", "compute_dtype", "is_float8", "widened"]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The format in which tensors of ``dtype`` are computed: float64 for itself, else float32.

    Raises TypeError for formats that are not floating-point.
    """
    if not dtype.is_floating_point:
        raise TypeError(f"expected a floating-point tensor, got {dtype}; cast it first")
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_float8(dtype: torch.dtype) -> bool:
    """Whether it is a floating-point format of one byte, in which torch stores but does not add."""
    return dtype.is_floating_point and dtype.itemsize == 1


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, all of them in float32 if one is in float8."""
    if any(is_float8(tensor.dtype) for tensor in tensors):
        return tuple(tensor.float() for tensor in tensors)
    return tensors


class KeepsPrecision(nn.Module):
    """A module whose ``kept_buffers`` survive ``module.to(bfloat16)`` and its relatives.

    A selection bias in bfloat16 no longer tells two scores 1e-3 apart, and counts in it stop at
    256. So a kept floating-point buffer follows the module to float32 and float64 and ignores any
    other cast (and any other format in a checkpoint), a kept integer buffer ignores them all. Both
    do follow to another device. A buffer that need not change stays the same tensor, so that
    whoever holds it sees later updates.
    """

    kept_buffers: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KeepsPrecision:
        before = self._kept()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._restore(before)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # With assign=True, loading replaces the buffer by whatever the checkpoint holds.
        before = self._kept()
        super()._load_from_state_dict(*args, **kwargs)
        for name, old in before.items():
            new = self._buffers[name]
            if new is not None and new is not old:
                self._buffers[name] = new.to(_kept_dtype(old.dtype, new.dtype))

    def _kept(self) -> dict[str, Tensor]:
        buffers = {name: self._buffers[name] for name in self.kept_buffers}
        return {name: buffer for name, buffer in buffers.items() if buffer is not None}

    def _restore(self, before: dict[str, Tensor]) -> None:
        for name, old in before.items():
            new = self._buffers[name]
            assert new is not None
            dtype = _kept_dtype(old.dtype, new.dtype)
            if new.dtype != dtype:
                # From the old values: the cast has already rounded the new ones.
                self._buffers[name] = old.to(device=new.device, dtype=dtype)


def _kept_dtype(old: torch.dtype, new: torch.dtype) -> torch.dtype:
    return new if old.is_floating_point and new in (torch.float32, torch.float64) else old
