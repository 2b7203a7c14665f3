"""Numerical gradients that every vector-Jacobian product is held against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEP = 1e-3


def central_differences(value: Callable[[], float], array: Floats) -> tuple[Floats, Floats]:
    """(slope, error) of d value / d array; ``value`` reads ``array``, which is restored.

    Two five-point stencils, one twice as wide, extrapolated. Their difference over 15 is the
    truncation error of the finer one, which bounds that of the extrapolation.
    """
    slope, error = np.zeros_like(array), np.zeros_like(array)
    for index in np.ndindex(array.shape):
        here, half = array[index], {}
        for step in (1, 2, 4):
            array[index] = here + step * STEP
            above = value()
            array[index] = here - step * STEP
            half[step] = (above - value()) / (2 * step * STEP)
        array[index] = here
        fine, coarse = (4 * half[1] - half[2]) / 3, (4 * half[2] - half[4]) / 3
        slope[index], error[index] = fine + (fine - coarse) / 15, abs(fine - coarse) / 15
    return slope, error


@pytest.fixture
def check_gradient() -> Callable[[Callable[[], float], Floats, Floats], None]:
    """Assert that ``gradient`` is that of ``value`` within the error the differences have."""

    def check(value: Callable[[], float], array: Floats, gradient: Floats) -> None:
        slope, error = central_differences(value, array)
        assert gradient.shape == array.shape
        # A value of some hundred terms errs by 1e-14 of its size, which the step divides.
        rounding = 2e-14 / STEP * (1.0 + abs(value()) + np.abs(slope).max(initial=0.0))
        assert (np.abs(gradient - slope) <= error + rounding).all(), (gradient, slope, error)

    return check
