"""Layers called at size, in turn, from any memory, and at the ends of the range of hidden states.

A single seed decides each case, as in :mod:`properties.strategies.layer_seeded`.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width of a
routed expert, S shared experts, G hidden width of a shared expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, LayerConfig
from properties.strategies.arrays import LAYOUTS, laid_out
from properties.strategies.layer import (
    APART,
    BETAS,
    EPSILONS,
    ROUTED_SCALES,
    LayerInputs,
    Pattern,
    Sizes,
    parameters_of,
    tokens_of,
    unit_logits,
)
from properties.strategies.layer_seeded import COTANGENTS, LONG_ROUNDOFF, positive
from properties.strategies.optimality import uniform_seeds
from properties.strategies.shapes import SEEDS

Choice = TypeVar("Choice")

__all__ = [
    "EverySize",
    "LongGradients",
    "SizedInputs",
    "any_memory",
    "at_size",
    "far_off",
    "in_a_row",
    "long_gradients",
]

PATTERNS: tuple[Pattern, ...] = ("thin", "short", "dense")

# Dense sums cancel, and of a hundred terms added in a format as coarse as this one nothing is left.
DENSE_ROUNDOFF = 2.0**-12
SPARSE_WIDTH = 32

# Powers of ten far from 1: the square of the first is 1e-16, and of the last 1e12.
FAR = (-8, -7, -6, 4, 5, 6)

LOSS_SCALES = (1.0, 2.0**-20, 2.0**20)


class Call(NamedTuple):
    """M, and all other sizes."""

    tokens: int
    layer: Sizes


def _call(m: int, n: int, k: int, d: int, latent: int, h: int, s: int, g: int) -> Call:
    return Call(m, Sizes(n, k, d, latent, h, s, g))


# Around the sizes of tiles and chunks, one or a few more or less, by the work they are. Experts
# beyond 512, some of 10 and more slots, tokens beyond 512 and more of them than 128 for an expert.
SIZES = (
    _call(5, 4, 2, 5, 3, 4, 4, 2),
    _call(1, 9, 4, 70, 66, 5, 1, 34),
    _call(3, 600, 17, 12, 20, 4, 1, 3),
    _call(65, 5, 1, 9, 33, 7, 1, 65),
    _call(533, 2, 1, 66, 4, 3, 1, 7),
    _call(70, 3, 2, 20, 13, 17, 5, 9),
    _call(21, 33, 12, 33, 50, 12, 2, 5),
    _call(130, 2, 2, 24, 40, 65, 1, 30),
    _call(33, 3, 1, 130, 65, 33, 2, 17),
    # Multiples of 16, of 64 and of 128, for which kernels have paths of their own; likewise powers
    # of two of experts, blocks of 1024 slots, and more tokens than float16 counts, in full tiles.
    _call(3, 2, 1, 32, 16, 16, 1, 16),
    _call(3, 2, 1, 64, 64, 64, 1, 64),
    _call(3, 2, 2, 192, 64, 128, 1, 64),
    _call(150, 64, 8, 5, 3, 2, 0, 2),
    _call(9, 128, 4, 6, 4, 3, 1, 3),
    # Second tiles both ways, of the router and of the up projection; more tokens than a block of
    # 16 at more experts than 128; several shared experts of an aligned width; one token with many.
    _call(140, 76, 12, 132, 3, 2, 2, 16),
    _call(18, 130, 1, 5, 3, 2, 1, 2),
    _call(1, 3, 2, 5, 3, 2, 5, 2),
    _call(2112, 1, 1, 3, 2, 2, 1, 4),
)

# Which sum of the backward pass is long, and how long: a running sum in bfloat16 ends at 256 terms.
LONG_SUMS = ("tokens", "model", "latent", "hidden", "shared_hidden")
LONG, MANY = 1024, 600

# What calls in turn and from any memory are made of: small, and of every width its own or square.
SMALL = (
    _call(1, 2, 1, 3, 2, 1, 1, 4),
    _call(2, 3, 2, 4, 4, 4, 1, 4),
    _call(3, 5, 2, 6, 4, 3, 2, 5),
    _call(7, 8, 3, 7, 5, 9, 1, 3),
    _call(9, 6, 6, 8, 8, 8, 2, 8),
    _call(17, 12, 10, 9, 12, 5, 3, 2),
)


@dataclass(frozen=True, repr=False)
class SizedInputs:
    """A layer, and a cotangent of its output, of the shape of x."""

    layer: LayerInputs
    cotangent: Array

    def __repr__(self) -> str:
        """The sizes; a report shows the values as the implementation was given them."""
        parameters = self.layer.parameters
        (n, d), (_, h, latent) = parameters.gate_weight.shape, parameters.experts.gate_proj.shape
        s, g, _ = parameters.shared_experts.gate_proj.shape
        m, k = self.layer.x.size // d, self.layer.config.top_k
        return f"SizedInputs(M={m}, N={n}, K={k}, D={d}, L={latent}, H={h}, S={s}, G={g})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same where Hypothesis prints what it drew, instead of every field."""
        del cycle
        printer.text(repr(self))


@dataclass(frozen=True)
class LongGradients:
    """A layer one of whose sums is as long as is asked for: 1024, or 600 tokens, if that is fine.

    The norm is the identity, whose gradient has no term that is subtracted. Experts differ by
    factors of 8, so that the router's gradients keep their signs from token to token.
    """

    seed: int

    def sized(self, roundoff: float) -> SizedInputs:
        """That layer for sums in a format of that unit roundoff."""
        longest = int(LONG_ROUNDOFF / roundoff)
        rng = np.random.default_rng([self.seed, 5])
        model, latent, hidden, shared_hidden = (int(width) for width in rng.integers(2, 7, 4))
        sizes = Sizes(3, 2, model, latent, hidden, 1, shared_hidden)
        width = LONG_SUMS[self.seed % len(LONG_SUMS)]
        tokens = 2
        if width == "tokens":
            tokens = min(MANY, longest)
        else:
            sizes = replace(sizes, **{width: min(LONG, longest)})
        layer = positive(rng, sizes, identity_norm=True)
        experts = layer.parameters.experts
        powers = 8.0 ** np.arange(sizes.experts)[:, None, None]
        experts = replace(experts, down_proj=powers * experts.down_proj)
        x, cotangent = rng.choice([0.75, 1.0, 1.25], (2, tokens, sizes.model))
        cotangent = cotangent * 2.0**-8  # so that float16 holds what an identity norm makes of it
        parameters = replace(layer.parameters, experts=experts)
        return SizedInputs(replace(layer, x=x, parameters=parameters), cotangent)


@dataclass(frozen=True)
class EverySize:
    """One layer of each of SIZES, but for those of which a narrow sum leaves nothing."""

    seed: int

    def layers(self, roundoff: float) -> tuple[SizedInputs, ...]:
        """Those layers for sums in a format of that unit roundoff."""
        rng = np.random.default_rng([self.seed, 1])
        if roundoff < DENSE_ROUNDOFF:
            return tuple(_drawn(rng, call, (0, -1, 1)) for call in SIZES)
        calls = [call for call in SIZES if _widest(call.layer) <= SPARSE_WIDTH]
        return tuple(_drawn(rng, call, (0, -1, 1), PATTERNS[:2]) for call in calls)


def at_size() -> st.SearchStrategy[EverySize]:
    """One layer of each size: tokens, experts, slots and columns of a tile or a table, or more."""
    return uniform_seeds().map(EverySize)


def far_off() -> st.SearchStrategy[SizedInputs]:
    """Hidden states of amplitude 1e-8 to 1e-6 and 1e4 to 1e6, cotangents of 2^-32 to 2^30."""

    def seeded(seed: int) -> SizedInputs:
        rng = np.random.default_rng([seed, 2])
        inputs = _drawn(rng, _ranked(seed, SMALL), FAR)
        return replace(inputs, cotangent=_one_of(rng, LOSS_SCALES) * inputs.cotangent)

    return uniform_seeds().map(seeded)


def any_memory() -> st.SearchStrategy[SizedInputs]:
    """Small layers in contiguous memory, to be laid out in every way."""

    def seeded(seed: int) -> SizedInputs:
        rng = np.random.default_rng([seed, 3])
        inputs = _drawn(rng, _ranked(seed, SMALL), (0, 0, -1, -2))
        return SizedInputs(
            replace(inputs.layer, x=inputs.layer.x.copy()), np.array(inputs.cotangent)
        )

    return uniform_seeds().map(seeded)


def in_a_row() -> st.SearchStrategy[tuple[SizedInputs, SizedInputs, SizedInputs]]:
    """A layer, another one of the same sizes throughout, and one of any smaller sizes."""

    def seeded(seed: int) -> tuple[SizedInputs, SizedInputs, SizedInputs]:
        rng = np.random.default_rng([seed, 4])
        sizes, smaller = (_ranked(s, SMALL) for s in (seed, int(rng.integers(seed + 1))))
        scales = (0, 0, 1, -2)
        return _drawn(rng, sizes, scales), _drawn(rng, sizes, scales), _drawn(rng, smaller, scales)

    return uniform_seeds().map(seeded)


def long_gradients() -> st.SearchStrategy[LongGradients]:
    """One of four widths is 1024, or there are 600 tokens; all terms of a sum have one sign."""
    return uniform_seeds().map(LongGradients)


def _drawn(
    rng: np.random.Generator,
    call: Call,
    exponents: Sequence[int],
    patterns: Sequence[Pattern] = PATTERNS,
) -> SizedInputs:
    """Such a pattern, at one of these powers of ten, with biases that decide most choices."""
    pattern, amplitude = _one_of(rng, patterns), 10.0 ** _one_of(rng, exponents)
    gate_scale = _one_of(rng, (1.0, 4.0)) * unit_logits(amplitude)
    shape = (call.tokens, call.layer.model)[call.tokens == 1 :]  # a single token without its axis
    x = laid_out(tokens_of(rng, shape, pattern, amplitude), _one_of(rng, LAYOUTS))
    beta_gate, beta_up = _one_of(rng, BETAS)
    layer = LayerInputs(
        x=x,
        parameters=parameters_of(rng, call.layer, pattern, gate_scale, _one_of(rng, APART)),
        config=LayerConfig(
            call.layer.top_k,
            beta_gate,
            beta_up,
            _one_of(rng, EPSILONS),
            _one_of(rng, ROUTED_SCALES),
        ),
        training=bool(rng.integers(2)),
        identity_norm=bool(rng.integers(3) == 0),
    )
    kept = rng.random((*shape[:-1], 1)) < 0.9
    cotangent = kept * _one_of(rng, COTANGENTS) * rng.standard_normal(shape)
    return SizedInputs(layer, laid_out(cotangent, _one_of(rng, LAYOUTS)))


def _widest(sizes: Sizes) -> int:
    """The longest sum of a forward pass."""
    return max(sizes.model, sizes.latent, sizes.hidden, sizes.shared * sizes.shared_hidden)


def _ranked(seed: int, table: Sequence[Call]) -> Call:
    return table[seed * len(table) // SEEDS]


def _one_of(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]
