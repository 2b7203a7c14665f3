"""How masks, biases and states of a balancer lie in memory: as often strided as not.

Legend: M tokens.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import Array
from properties.strategies.arrays import LAYOUTS, Layout, laid_out

FEW = 4

__all__ = ["layout_for", "mask_laid_out"]


def layout_for(array: Array, more: int = 0) -> Layout:
    """A layout that follows from the shape, so that every one occurs; ``more`` tells arrays apart.

    No draw is spent on it: all others stay as they are. Up to FEW numbers are as they are read.
    """
    if array.size <= FEW:
        return "contiguous"
    return LAYOUTS[(sum(array.shape) + more) % len(LAYOUTS)]


def mask_laid_out(mask_M: Array | None, more: int = 0) -> Array | None:
    """The same mask; where it has gaps, what is between two rows says the opposite of the second.

    Code that ignores strides thus takes rows of padding for tokens.
    """
    if mask_M is None:
        return None
    layout = layout_for(mask_M, more)
    if layout == "reversed":
        return laid_out(mask_M, layout)
    if layout not in ("sliced", "strided"):
        return np.ascontiguousarray(mask_M)
    wide = np.ones(2 * len(mask_M) + 1, dtype=bool)
    wide[1::2] = mask_M
    wide[: 2 * len(mask_M) : 2] = ~mask_M
    return wide[1::2]
