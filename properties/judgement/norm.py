"""What RMSNorm is asked in narrow formats: nothing where the literal formula leaves their range.

Legend: L the normalised width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.strategies.norm import NormInputs
from properties.subject import Subject

__all__ = ["within_range"]


def within_range(subject: Subject, inputs: NormInputs) -> NormInputs:
    """The inputs with rows, weight and eps moved to where no step of the formula overflows.

    The squares of a row add up to a quarter of the largest number of compute and accumulation; eps
    is at most an eighth of compute's; and x / rho, at most sqrt(L), times the weight stays within
    half of what storage holds. In bfloat16, float32 and float64 all that is drawn is in that range,
    but for rows beyond 1e17.
    """
    arithmetic = subject.arithmetic
    width = inputs.x.shape[-1]
    squares = min(arithmetic.computed.largest, arithmetic.accumulated.largest) / 4
    largest = min(arithmetic.stored.largest / 2, np.sqrt(squares / width))
    heaviest = min(arithmetic.stored.largest, arithmetic.computed.largest) / (2 * np.sqrt(width))
    return replace(
        inputs,
        x=np.clip(inputs.x, -largest, largest),
        weight=np.clip(inputs.weight, -heaviest, heaviest),
        eps=min(inputs.eps, arithmetic.computed.largest / 8),
    )
