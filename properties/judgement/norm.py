"""What RMSNorm is asked in narrow formats: nothing where the literal formula leaves their range.

Legend: L the normalised width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.protocol import Array
from properties.strategies.norm import NormInputs
from properties.subject import Subject

# A sum has at most this share of 1/roundoff terms, so that its radius is a part of it.
LONGEST_SUM = 0.5

SMALL_EPS = 1e-6

# How many times the smallest number the root mean square of a row is that keeps its digits.
DIGITS = 64.0

__all__ = ["bounded_weight", "largest_of_rows", "within_range"]


def within_range(subject: Subject, inputs: NormInputs) -> NormInputs:
    """The inputs with rows, weight and eps moved to where no step of the formula overflows.

    In bfloat16, float32 and float64 all that is drawn is in that range, but for rows beyond 1e17.
    Rows are cut where a sum over more of them would tell nothing in the format of accumulation. An
    eps of 0 becomes ``SMALL_EPS`` where the mean square of a row is 0 or next to it.
    """
    longest = int(LONGEST_SUM / subject.arithmetic.accumulated.roundoff)
    inputs = replace(inputs, x=inputs.x[..., :longest], weight=inputs.weight[:longest])
    largest = largest_of_rows(subject, inputs.x.shape[-1])
    x = np.clip(inputs.x, -largest, largest)
    eps = min(inputs.eps, subject.arithmetic.computed.largest / 8)
    if eps == 0.0 and _nearly_zero(subject, x):
        eps = SMALL_EPS
    return replace(inputs, x=x, weight=bounded_weight(subject, inputs), eps=eps)


def _nearly_zero(subject: Subject, x: Array) -> bool:
    """Whether storing a row or squaring it leaves too few digits of its mean square."""
    arithmetic = subject.arithmetic
    smallest = max(
        arithmetic.stored.smallest_normal,
        float(np.sqrt(arithmetic.computed.smallest_normal)),
        float(np.sqrt(arithmetic.accumulated.smallest_normal)),
    )
    root = np.sqrt(np.mean(np.square(x), axis=-1))
    return bool(np.any(root < DIGITS * smallest))


def largest_of_rows(subject: Subject, width: int) -> float:
    """Half the largest number of storage; less where the squares of a row would be too many.

    They add up to a quarter of the largest number of compute and of accumulation.
    """
    arithmetic = subject.arithmetic
    squares = min(arithmetic.computed.largest, arithmetic.accumulated.largest) / 4
    return float(min(arithmetic.stored.largest / 2, np.sqrt(squares / width)))


def bounded_weight(subject: Subject, inputs: NormInputs) -> Array:
    """The weight, so that x / rho, at most sqrt(L), times it stays within half of storage."""
    arithmetic = subject.arithmetic
    largest = min(arithmetic.stored.largest, arithmetic.computed.largest)
    heaviest = largest / (2 * np.sqrt(inputs.x.shape[-1]))
    return np.clip(inputs.weight, -heaviest, heaviest)
