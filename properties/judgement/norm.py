"""What RMSNorm is asked in narrow formats: nothing where the literal formula leaves their range.

Legend: L the normalised width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.protocol import Array
from properties.strategies.norm import NormInputs
from properties.subject import Subject

__all__ = ["bounded_weight", "largest_of_rows", "within_range"]


def within_range(subject: Subject, inputs: NormInputs) -> NormInputs:
    """The inputs with rows, weight and eps moved to where no step of the formula overflows.

    In bfloat16, float32 and float64 all that is drawn is in that range, but for rows beyond 1e17.
    """
    largest = largest_of_rows(subject, inputs.x.shape[-1])
    return replace(
        inputs,
        x=np.clip(inputs.x, -largest, largest),
        weight=bounded_weight(subject, inputs),
        eps=min(inputs.eps, subject.arithmetic.computed.largest / 8),
    )


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
