"""Sweeps: each input of SiTU-GLU runs over every number of a 16-bit format, the other stays.

A tanh or a sigmoid from a table or from pieces of polynomials may be wrong for a few of the 65,536
numbers only, where no random drawing ever comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.activation_gradient import betas, one_of
from properties.strategies.optimality import uniform_seeds

_BESIDE = (1.0, -0.5, 3.0, -20.0, 1e-3)


@dataclass(frozen=True)
class Sweep:
    """The gate beside which up is swept, the up beside which the gate is, caps and cotangent.

    ``low_bits`` (65536,) are the lower halves of the numbers where the format has 32 bits or more:
    the upper halves run through all their values.
    """

    gate: float
    up: float
    beta_gate: float
    beta_up: float
    cotangent: float
    low_bits: Array

    def numbers(self, storage: np.dtype[Any]) -> Array:
        """Every number of a format of up to 16 bits, NaN and infinities included, as float64.

        Of a wider one 65,536 numbers: one for every sign, exponent and 7 leading digits of float32.
        """
        with np.errstate(invalid="ignore"):
            if storage.itemsize <= 2:
                count = 1 << (8 * storage.itemsize)
                bits = np.arange(count, dtype=f"u{storage.itemsize}")
                return bits.view(storage).astype(np.float64)
            high = np.arange(1 << 16, dtype=np.uint32) << 16
            return (high | self.low_bits).view(np.float32).astype(np.float64)


def sweeps() -> st.SearchStrategy[Sweep]:
    """Both inputs, each beside one of a few numbers or any within three caps."""
    return uniform_seeds().map(_seeded)


def _seeded(seed: int) -> Sweep:
    rng = np.random.default_rng(seed)
    beta_gate, beta_up = (4.0, 25.0) if rng.random() < 0.75 else betas(rng)
    gate, up = (
        one_of(rng, _BESIDE) if rng.random() < 0.5 else float(rng.uniform(-3.0, 3.0) * cap)
        for cap in (beta_gate, beta_up)
    )
    # Numbers of a wide format with few digits, infinities among them, and others in between.
    low_bits = rng.integers(0, 1 << 16, 1 << 16, dtype=np.uint32)
    low_bits[rng.random(1 << 16) < 0.5] = 0
    return Sweep(gate, up, beta_gate, beta_up, float(rng.uniform(0.5, 2.0)), low_bits)
