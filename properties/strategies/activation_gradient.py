"""Inputs of SiTU-GLU and its VJP from one seed each: every case is another one.

Where a derivative is wrong shows by region: near the origin its slopes are 1 and 1/2, across the
caps they fall to 0, and past them only rounding is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.activation import (
    BETAS,
    EDGES,
    EXPONENTS,
    INFINITIES,
    LARGE_SHAPES,
    ActivationInputs,
)
from properties.strategies.arrays import LAYOUTS, Layout
from properties.strategies.optimality import uniform_seeds

# Of the 2^24 seeds, those below give up to four multiples of 1/8, and the first few a single one:
# failures shrink towards them.
_READABLE_SEEDS = 2**21
_SINGLE_SEEDS = 2**10

# Exponents of caps, and of those beyond any that a model is known to have.
CAPS, FAR_CAPS = (-2.0, 8.0), (-10.0, 14.0)

# Shapes of as many rows as columns, and those of a single element.
_SQUARES = ((7, 7), (7, 7), (1, 1), (1, 1, 1))

_REGIONS = ("across", "inside", "saturating", "any size", "edges")
_MOST_EDGES = 96
_INTEGERS = 4

Item = TypeVar("Item")


@dataclass(frozen=True)
class GradientInputs:
    """The inputs of a forward call, a cotangent of their shape, and the layout to hand it over in.

    The cotangent may be larger than a gradient in a storage format allows.
    """

    forward: ActivationInputs
    cotangent: Array
    cotangent_layout: Layout


@dataclass(frozen=True)
class LinearInputs:
    """Two cotangents of integers up to 4, and the sizes at which to hand them over.

    ``scale`` in [0, 1] stands for the powers of two from the smallest to the largest that fits.
    """

    forward: ActivationInputs
    first: Array
    second: Array
    scale: float

    def units(self, largest: float, smallest: float) -> tuple[float, float]:
        """Powers of two to multiply integers with, given the largest cotangent and the smallest.

        With the first, at most 1, the sum of both fits; the second is anywhere that one fits.
        """
        low, high = np.log2(smallest), np.floor(np.log2(largest / _INTEGERS)) - 1.0
        anywhere = np.floor(low + self.scale * max(high - low, 0.0))
        return float(2.0 ** min(high, 0.0)), float(2.0**anywhere)


def forward_inputs(*, infinite: bool = False) -> st.SearchStrategy[ActivationInputs]:
    """gate and up by region, with caps of the list or any others.

    infinite: whether infinities are among the numbers.
    """

    return uniform_seeds().map(lambda seed: _forward(seed, np.random.default_rng(seed), infinite))


def gradient_inputs(
    *, infinite: bool = False, nan: bool = False
) -> st.SearchStrategy[GradientInputs]:
    """The same with a cotangent of one size, or of any sizes, zeros among them.

    nan: whether NaN is put into some places of gate, up and cotangent.
    """

    def seeded(seed: int) -> GradientInputs:
        rng = np.random.default_rng(seed)
        forward = _forward(seed, rng, infinite)
        if seed < _READABLE_SEEDS:
            return GradientInputs(forward, _eighths(rng, 2, forward.gate.shape), "contiguous")
        cotangent = _cotangent(rng, forward.gate.shape)
        if nan:
            gate, up, cotangent = (
                _sprinkled(rng, values, (np.nan,))
                for values in (forward.gate, forward.up, cotangent)
            )
            forward = replace(forward, gate=gate, up=up)
        return GradientInputs(forward, cotangent, one_of(rng, LAYOUTS))

    return uniform_seeds().map(seeded)


def linear_inputs() -> st.SearchStrategy[LinearInputs]:
    """By region, with two cotangents of small integers."""

    def seeded(seed: int) -> LinearInputs:
        rng = np.random.default_rng(seed)
        forward = _seeded(rng, infinite=False)
        first, second = rng.integers(-_INTEGERS, _INTEGERS + 1, (2, *forward.gate.shape))
        return LinearInputs(forward, first.astype(float), second.astype(float), float(rng.random()))

    return uniform_seeds().map(seeded)


def alive_inputs() -> st.SearchStrategy[GradientInputs]:
    """Gates in (0, 3 b1], ups on either side up to 20 b2, cotangents from 1/2 to 2 in size."""

    def seeded(seed: int) -> GradientInputs:
        rng = np.random.default_rng(seed)
        beta_gate, beta_up = betas(rng)
        of = (int(rng.integers(1, 5)), int(rng.integers(1, 65)))
        gate = beta_gate * 3.0 * (1.0 - rng.random(of))
        up, cotangent = rng.uniform(0.0, 20.0, of), rng.uniform(0.5, 2.0, of)
        up, cotangent = (z * rng.choice([-1.0, 1.0], of) for z in (up, cotangent))
        plain: Layout = "contiguous"
        forward = ActivationInputs(gate, up * beta_up, plain, plain, beta_gate, beta_up)
        return GradientInputs(forward, cotangent, plain)

    return uniform_seeds().map(seeded)


def one_of(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    """One of the items, each equally often."""
    return items[int(rng.integers(len(items)))]


def betas(rng: np.random.Generator) -> tuple[float, float]:
    """Half of the time a pair of the list, else any two caps: from 1/4 to 256, or far off."""
    kind = rng.random()
    if kind < 0.5:
        return one_of(rng, BETAS)
    gate, up = 2.0 ** rng.uniform(*(FAR_CAPS if kind < 0.65 else CAPS), 2)
    return float(gate), float(up)


def shape(rng: np.random.Generator) -> tuple[int, ...]:
    """One to four axes, lengths on every side of vector registers, at times no elements."""
    kind = one_of(rng, ("row", "row", "matrix", "square", "stack", "empty", "long", "large"))
    if kind == "row":
        return (int(rng.integers(1, 71)),)
    if kind == "square":
        return one_of(rng, _SQUARES)
    if kind == "long":
        return one_of(rng, ((131, 3), (3, 131), (2, 1, 3, 5)))
    if kind == "large":
        return one_of(rng, LARGE_SHAPES)
    if kind == "empty":
        return one_of(rng, ((0,), (0, 5), (3, 0), (2, 0, 4)))
    high = (6, 34) if kind == "matrix" else (4, 5, 18)
    return tuple(int(size) for size in rng.integers(1, high))


def sizes(rng: np.random.Generator, of: tuple[int, ...]) -> Array:
    """Numbers of either sign and any power of ten: one for all, or one for each."""
    signed = rng.uniform(-1.0, 1.0, of)
    each = bool(rng.random() < 0.5)
    return signed * 10.0 ** rng.uniform(*EXPONENTS, of if each else ())


def _forward(seed: int, rng: np.random.Generator, infinite: bool) -> ActivationInputs:
    if seed >= _READABLE_SEEDS:
        return _seeded(rng, infinite)
    of = (1 if seed < _SINGLE_SEEDS else int(rng.integers(1, 5)),)
    gate, up = _eighths(rng, 16, of), _eighths(rng, 64, of)
    return ActivationInputs(gate, up, "contiguous", "contiguous", *BETAS[0])


def _eighths(rng: np.random.Generator, largest: int, of: tuple[int, ...]) -> Array:
    return rng.integers(-8 * largest, 8 * largest + 1, of) / 8.0


def _seeded(rng: np.random.Generator, infinite: bool) -> ActivationInputs:
    beta_gate, beta_up = betas(rng)
    gate, up = _pair(rng, beta_gate, beta_up)
    if infinite:
        gate, up = (_sprinkled(rng, z, INFINITIES) for z in (gate, up))
    return ActivationInputs(
        gate, up, one_of(rng, LAYOUTS), one_of(rng, LAYOUTS), beta_gate, beta_up
    )


def _pair(rng: np.random.Generator, beta_gate: float, beta_up: float) -> tuple[Array, Array]:
    region = one_of(rng, _REGIONS)
    if region == "edges":
        count = int(rng.integers(1, _MOST_EDGES))
        gate, up = rng.choice(np.array(EDGES), (2, count))
        return gate, up
    of = shape(rng)
    if region == "any size":
        return sizes(rng, of), sizes(rng, of)
    gate, up = rng.uniform(-1.0, 1.0, (2, *of))
    if region == "saturating":
        # Where 1 - tanh^2 leaves a few digits, one, and none: from 3 caps on.
        gate, up = (np.sign(z) * (3.0 + 9.0 * np.abs(z)) for z in (gate, up))
        return gate * beta_gate, up * beta_up
    gate_caps, up_caps = (12.0, 3.0) if region == "across" else (1.0, 0.3)
    return gate * (gate_caps * beta_gate), up * (up_caps * beta_up)


def _cotangent(rng: np.random.Generator, of: tuple[int, ...]) -> Array:
    kind = one_of(rng, ("normal", "normal", "ones", "some zeros", "any size"))
    if kind == "any size":
        return sizes(rng, of)
    if kind == "ones":
        return np.ones(of)
    normal = rng.standard_normal(of)
    return np.where(rng.random(of) < 0.3, 0.0, normal) if kind == "some zeros" else normal


def _sprinkled(rng: np.random.Generator, values: Array, others: tuple[float, ...]) -> Array:
    """A copy with some of the others in a tenth of the places of half of the arrays."""
    if rng.random() < 0.5:
        return values
    return np.where(rng.random(values.shape) < 0.1, rng.choice(others, values.shape), values)
