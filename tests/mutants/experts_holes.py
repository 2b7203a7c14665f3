"""Experts whose results are no numbers, and agree with each other for that."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


class NaNInAnyOrder(Reference):
    """Every output is NaN, whatever the order of the tokens."""

    killed_by = "DSP-PERMUTE"

    def experts(self, x: Array, *arguments: Any, **options: Any) -> Array:
        return np.full_like(super().experts(x, *arguments, **options), np.nan)


class NaNOfEqualExperts(NaNInAnyOrder):
    """Every output is NaN, as is that of one expert in place of several equal ones."""

    killed_by = "DSP-SAME"
