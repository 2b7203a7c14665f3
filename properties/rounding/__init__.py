"""Error radii by running error analysis: float64 values with the distance implementations may have.

    arithmetic = Arithmetic(compute="bfloat16", accumulate="float32", storage="bfloat16")
    expected = reference_numpy.rms_norm(Ball.exact(x, arithmetic), Ball.exact(w, arithmetic))
    worst = ratio(actual, expected).max()     # at most 1 for a correct implementation

The reference is not written twice: a :class:`Ball` takes over the NumPy functions that it uses.
"""

from __future__ import annotations

from properties.rounding import elementwise, reductions, structure
from properties.rounding.arithmetic import ALLOWANCES, Allowance, Arithmetic
from properties.rounding.ball import Ball, ratio
from properties.rounding.decision import Decision

__all__ = [
    "ALLOWANCES",
    "Allowance",
    "Arithmetic",
    "Ball",
    "Decision",
    "elementwise",
    "ratio",
    "reductions",
    "structure",
]
