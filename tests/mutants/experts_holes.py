"""Experts whose results are no numbers, and agree with each other for that."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


class _NoNumbers(Reference):
    def experts(self, x: Array, *arguments: Any, **options: Any) -> Array:
        return np.full_like(super().experts(x, *arguments, **options), np.nan)


class NaNInAnyOrder(_NoNumbers):
    """Every output is NaN, whatever the order of the tokens."""

    killed_by = "DSP-PERMUTE"


class NaNOfEqualExperts(_NoNumbers):
    """Every output is NaN, as is that of one expert in place of several equal ones."""

    killed_by = "DSP-SAME"
