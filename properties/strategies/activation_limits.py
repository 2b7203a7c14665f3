"""Inputs of SiTU-GLU at its limits: caps that are attained, ladders of caps, ascending rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.activation import EDGES, INFINITIES, ActivationInputs
from properties.strategies.activation_gradient import betas, one_of, shape, sizes
from properties.strategies.arrays import LAYOUTS
from properties.strategies.optimality import uniform_seeds

_LARGEST_EXPONENT = 40
_RUNGS = 5
_LARGEST_GATE = 40.0
_LARGEST_UP = 200.0


@dataclass(frozen=True)
class AttainInputs:
    """Caps with a product of few digits, and signs of up (any shape)."""

    beta_gate: float
    beta_up: float
    signs: Array


@dataclass(frozen=True)
class LimitInputs:
    """gate and up, and how the exponents of the two caps rise: both, or one after the other."""

    inputs: ActivationInputs
    lead: int

    def rungs(self, largest: float) -> Iterator[tuple[int, int]]:
        """Exponents of the caps on every rung, given the largest number of the compute format."""
        top = min(_LARGEST_EXPONENT, int(np.log2(largest)) // 2 - 3)
        low = min(3, top)
        for rung in np.linspace(low, top, _RUNGS).astype(int):
            yield int(np.clip(rung - self.lead, low, top)), int(np.clip(rung + self.lead, low, top))

    def with_caps(self, beta_gate: float, beta_up: float, largest: float) -> ActivationInputs:
        """The inputs with these caps, scaled so that gate times up stays below ``largest``."""
        fit = min(1.0, (largest / (2.0 * _LARGEST_GATE * _LARGEST_UP)) ** 0.5)
        gate, up = self.inputs.gate * fit, self.inputs.up * fit
        return replace(self.inputs, gate=gate, up=up, beta_gate=beta_gate, beta_up=beta_up)


def attain_inputs() -> st.SearchStrategy[AttainInputs]:
    """The report's caps in a quarter of the cases, else any that a format with 8 digits holds."""

    def seeded(seed: int) -> AttainInputs:
        rng = np.random.default_rng(seed)
        signs = rng.choice([-1.0, 1.0], shape(rng))
        if rng.random() < 0.25:
            return AttainInputs(4.0, 25.0, signs)
        first, second = rng.integers(1, 16, 2) * 2.0 ** rng.integers(-8, 5, 2)
        return AttainInputs(float(first), float(second), signs)

    return uniform_seeds().map(seeded)


def limit_inputs() -> st.SearchStrategy[LimitInputs]:
    """Gates up to 40, ups up to 200, each of any size below in some cases; three ladders."""

    def seeded(seed: int) -> LimitInputs:
        rng = np.random.default_rng(seed)
        of = shape(rng)
        gate, up = rng.uniform(-1.0, 1.0, (2, *of))
        gate, up = gate * _LARGEST_GATE, up * _LARGEST_UP
        if rng.random() < 0.5:
            gate, up = (z * 10.0 ** rng.uniform(-6.0, 0.0, of) for z in (gate, up))
        layouts = one_of(rng, LAYOUTS), one_of(rng, LAYOUTS)
        return LimitInputs(ActivationInputs(gate, up, *layouts, 1.0, 1.0), one_of(rng, (0, 9, -9)))

    return uniform_seeds().map(seeded)


def mono_inputs() -> st.SearchStrategy[ActivationInputs]:
    """A gate per row, and ups that ascend along it: across the caps, of any size, neighbours."""

    def seeded(seed: int) -> ActivationInputs:
        rng = np.random.default_rng(seed)
        beta_gate, beta_up = betas(rng)
        rows, columns = int(rng.integers(1, 7)), int(rng.integers(2, 97))
        gate = rng.uniform(-12.0, 12.0, (rows, 1)) * beta_gate
        up = np.sort(_row(rng, beta_up, (rows, columns)), axis=-1)
        plain = one_of(rng, LAYOUTS), one_of(rng, LAYOUTS)
        return ActivationInputs(np.repeat(gate, columns, 1), up, *plain, beta_gate, beta_up)

    return uniform_seeds().map(seeded)


def _row(rng: np.random.Generator, beta_up: float, of: tuple[int, int]) -> Array:
    kind = one_of(rng, ("across", "across", "neighbours", "any size", "edges"))
    if kind == "across":
        return rng.uniform(-6.0, 6.0, of) * beta_up
    if kind == "neighbours":
        # Steps of the order of one unit in the last place of float32, bfloat16 and float16.
        step = one_of(rng, (2.0**-23, 2.0**-10, 2.0**-7))
        start = rng.uniform(-3.0, 3.0, (of[0], 1)) * beta_up
        return start * (1.0 + np.arange(of[1]) * step)
    if kind == "any size":
        return sizes(rng, of)
    return rng.choice(np.array(EDGES + INFINITIES), of)
