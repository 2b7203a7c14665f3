"""Where values reach memory.

In float64 these functions add nothing to the formulas. They name the places where an implementation
writes a tensor out, and so rounds it to its storage format: an array that carries an error radius
adds that one rounding in ``np.positive``.
"""

from __future__ import annotations

import numpy as np

from reference_numpy.arrays import Array

__all__ = ["projected", "stored"]


def stored(x: Array) -> Array:
    """Return x unchanged: the mark of a value that implementations write to memory."""
    return np.positive(x)


def projected(x: Array, weight: Array) -> Array:
    """Return the stored linear map x (…, M, I) by weight (…, O, I): x weight^T, (…, M, O).

    Leading axes broadcast, so a stack of weights (N, O, I) maps x (M, I) to (N, M, O).
    """
    return stored(np.matmul(x, np.swapaxes(weight, -1, -2)))
