"""SiTU-GLU at the sizes kernels have paths of their own, and behind axes that do not merge.

Legend: B batches, S positions, H hidden units.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from properties.strategies.activation import BETAS, ActivationInputs
from properties.strategies.activation_gradient import GradientInputs
from properties.strategies.apart import APART
from properties.strategies.optimality import uniform_seeds

__all__ = ["SIZES", "at_sizes", "behind_axes"]

# Powers of two from 32 to 4096 elements, and more than one block of threads that are none; tiles
# that are full, one way and both; tiles beyond the first both ways; and the same with three and
# four axes, each longer than 1.
SIZES: tuple[tuple[int, ...], ...] = (
    *((32,), (64,), (128,), (256,), (512,), (1024,), (2048,), (4096,), (1100,), (2500,)),
    *((4, 32), (32, 4), (2, 256), (64, 64), (128, 128), (3, 1024), (2, 2048), (2, 4096), (3, 1100)),
    *((65, 130), (130, 65), (40, 300), (96, 33)),
    *((2, 3, 70), (3, 2, 130), (2, 33, 64), (4, 8, 128), (2, 2, 1100), (2, 2, 3, 96)),
)

STACKS = ((2, 3, 5), (3, 2, 40), (2, 5, 33), (2, 2, 3, 4), (3, 33, 2))


def at_sizes() -> st.SearchStrategy[tuple[GradientInputs, ...]]:
    """One call of each size."""

    def seeded(seed: int) -> tuple[GradientInputs, ...]:
        rng = np.random.default_rng([seed, 1])
        return tuple(_around_caps(rng, shape) for shape in SIZES)

    return uniform_seeds().map(seeded)


def behind_axes() -> st.SearchStrategy[tuple[tuple[str, GradientInputs], ...]]:
    """One call of each kind of view, of shapes that differ from case to case."""

    def seeded(seed: int) -> tuple[tuple[str, GradientInputs], ...]:
        rng = np.random.default_rng([seed, 2])
        start = int(rng.integers(len(STACKS)))
        return tuple(
            (name, _around_caps(rng, STACKS[(start + place) % len(STACKS)]))
            for place, name in enumerate(APART)
        )

    return uniform_seeds().map(seeded)


def _around_caps(rng: np.random.Generator, shape: tuple[int, ...]) -> GradientInputs:
    """gate and up within three caps, and a cotangent about 1."""
    beta_gate, beta_up = BETAS[int(rng.integers(len(BETAS)))]
    gate, up = rng.uniform(-3.0, 3.0, (2, *shape))
    forward = ActivationInputs(
        gate * beta_gate, up * beta_up, "contiguous", "contiguous", beta_gate, beta_up
    )
    return GradientInputs(forward, rng.standard_normal(shape), "contiguous")
