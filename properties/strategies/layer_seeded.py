"""Layers that one uniform seed decides, so that every case is another one.

The smallest seeds are the readable ones: few experts, short numbers, small widths. The parameters
are made as those of :mod:`properties.strategies.layer`, of which this is the seeded face.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width of a
routed expert, S shared experts, G hidden width of a shared expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, ExpertParameters, LayerConfig
from properties.strategies.arrays import LAYOUTS, laid_out
from properties.strategies.layer import (
    ANY_RANK,
    APART,
    BETAS,
    EPSILONS,
    NO_TOKENS,
    ROUTED_SCALES,
    SEVERAL,
    SHARED,
    LayerInputs,
    Regime,
    Sizes,
    parameters_of,
    tokens_of,
    unit_logits,
    with_silence,
    with_zeros,
)
from properties.strategies.layer_router import long_router
from properties.strategies.optimality import READABLE_SEEDS, uniform_seeds

Choice = TypeVar("Choice")

# Amplitudes of cotangents; training scales its loss.
COTANGENTS = (1.0, 2.0**-12, 2.0**10)

# Offsets next to which steps of 2^-12 vanish in bfloat16; 2^-12 is 64 times what float32 can tell.
OFFSETS = (34.5, 0.75, -3.25)
FINE_STEP = 2.0**-12

# More terms of equal size than a running sum in bfloat16 can count, which is 256.
LONG = 1024

# A sum of n equal terms is wrong by up to n u times itself: no more than this is asked for.
LONG_ROUNDOFF = 1.0 / 8.0

__all__ = [
    "GradientInputs",
    "LongInputs",
    "NanInputs",
    "ScaleInputs",
    "WideInputs",
    "fine_biases",
    "generic",
    "gradients",
    "long_sums",
    "modes",
    "positive",
    "routers",
    "scales",
    "sparse",
    "wide",
    "with_lost_tokens",
]


@dataclass(frozen=True)
class GradientInputs:
    """A layer and a cotangent of its output, of the shape of x."""

    layer: LayerInputs
    cotangent: Array


@dataclass(frozen=True)
class ScaleInputs:
    """A layer and a signed power of two, at least 2 in size."""

    layer: LayerInputs
    factor: float


@dataclass(frozen=True)
class NanInputs:
    """A layer, a cotangent, and which of the tokens (M,) of x (M, D) are lost: NaN or infinite."""

    layer: LayerInputs
    cotangent: Array
    lost: Array
    value: float


@dataclass(frozen=True)
class WideInputs:
    """A layer that is too large to read, and so is not printed; ``width`` names what is long."""

    layer: LayerInputs
    width: str

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        del cycle
        printer.text(f"WideInputs(width={self.width!r}, …)")  # Hypothesis warns of long ones


@dataclass(frozen=True)
class LongInputs:
    """A layer whose ``width`` is as long as is asked for, 1024 if the accumulate format is fine."""

    sizes: Sizes
    width: str
    identity_norm: bool
    seed: int

    def layer(self, roundoff: float) -> LayerInputs:
        """That layer for sums in a format of that unit roundoff."""
        length = min(LONG, int(LONG_ROUNDOFF / roundoff))
        sizes = replace(self.sizes, **{self.width: length})
        return positive(np.random.default_rng(self.seed), sizes, self.identity_norm)


def gradients() -> st.SearchStrategy[GradientInputs]:
    """Any layer, a third of them so small that eps decides, some without tokens."""

    def seeded(seed: int) -> GradientInputs:
        rng = np.random.default_rng(seed)
        regime = (Regime(smallest=-1), Regime(smallest=-4, largest=-2), Regime())[seed % 3]
        leading = NO_TOKENS if rng.random() < 0.06 else ANY_RANK
        layer = _layer(
            seed, rng, replace(regime, leading=leading, steps=(*APART, *APART, 0.015625, 0.0))
        )
        cotangent = _cotangent(rng, layer.x)
        layer = _with_twins(layer) if rng.random() < 0.25 else layer
        return GradientInputs(with_silence(np.random.default_rng([seed, 7]), layer), cotangent)

    return uniform_seeds().map(seeded)


def _with_twins(layer: LayerInputs) -> LayerInputs:
    """The same layer, its experts in pairs with one router row and one bias: all ties are exact."""
    parameters = layer.parameters
    first_N = np.arange(len(parameters.gate_weight)) // 2 * 2
    return replace(
        layer,
        parameters=replace(
            parameters,
            gate_weight=parameters.gate_weight[first_N],
            e_score_correction_bias=parameters.e_score_correction_bias[first_N],
        ),
    )


def sparse() -> st.SearchStrategy[GradientInputs]:
    """More experts than are chosen, whose choice is clear: biases far apart."""
    regime = Regime(
        smallest=-1, experts=(4, 5, 8, 11, 16), top_ks=(1, 2, 3), leading=SEVERAL, steps=APART
    )

    def seeded(seed: int) -> GradientInputs:
        rng = np.random.default_rng(seed)
        layer = _layer(seed, rng, regime)
        return GradientInputs(layer, _cotangent(rng, layer.x))

    return uniform_seeds().map(seeded)


def generic() -> GradientInputs:
    """Five tokens, three of eight experts each, every width its own: one instance.

    The seed and the amplitude are among those whose gradients stand out of all rounding, also where
    every operation rounds to bfloat16 or to float16.
    """
    rng = np.random.default_rng(623)
    sizes = Sizes(experts=8, top_k=3, model=6, latent=4, hidden=5, shared=2, shared_hidden=3)
    parameters = parameters_of(rng, sizes, "thin", 1.0, APART[0])
    layer = LayerInputs(
        x=tokens_of(rng, (5, sizes.model), "thin", 0.0625),
        parameters=parameters,
        config=LayerConfig(sizes.top_k, routed_scale=2.5),
        training=True,
    )
    return GradientInputs(layer, rng.standard_normal(layer.x.shape))


def modes() -> st.SearchStrategy[LayerInputs]:
    """Several tokens whose selection bias matters."""
    return _layers(Regime(smallest=-1, experts=(3, 4, 5, 8, 16), leading=SEVERAL, steps=APART))


def scales() -> st.SearchStrategy[ScaleInputs]:
    """Amplitudes at which eps matters and at which it does not, and a norm that is one."""

    def seeded(seed: int) -> ScaleInputs:
        rng = np.random.default_rng(seed)
        regime = Regime(smallest=-3, leading=SEVERAL, steps=APART, identity_norm=(False,))
        factor = float(rng.choice([-1.0, 1.0]) * _one_of(rng, (2.0, 8.0, 64.0)))
        return ScaleInputs(_layer(seed, rng, regime), factor)

    return uniform_seeds().map(seeded)


def routers() -> st.SearchStrategy[LayerInputs]:
    """Logits alone, small and large, of any tokens or none; half are longer than a tile."""

    def seeded(seed: int) -> LayerInputs:
        rng = np.random.default_rng(seed)
        leading = NO_TOKENS if rng.random() < 0.1 else ANY_RANK
        experts = (257,) if rng.random() < 0.1 else (2, 3, 5, 8, 16, 1)
        regime = Regime(experts=experts, leading=leading, square=(False, True, True), widest=40)
        if seed >= READABLE_SEEDS and rng.random() < 0.5:
            return long_router(rng)
        return _layer(seed, rng, replace(regime, logits=(1.0, 4.0, 2.0**11)))

    return uniform_seeds().map(seeded)


def fine_biases() -> st.SearchStrategy[LayerInputs]:
    """Biases with a common offset and steps of 2^-12, next to logits of about 2^-10."""

    def seeded(seed: int) -> LayerInputs:
        rng = np.random.default_rng(seed)
        regime = Regime(
            smallest=-1,
            largest=1,
            patterns=("short", "thin"),
            experts=(4, 5, 8, 16),
            top_ks=(1, 2, 3),
            leading=SEVERAL,
            steps=(FINE_STEP,),
            logits=(2.0**-10,),
            identity_norm=(False,),
        )
        layer = _layer(seed, rng, regime)
        bias = layer.parameters.e_score_correction_bias + _one_of(rng, OFFSETS)
        return replace(layer, parameters=replace(layer.parameters, e_score_correction_bias=bias))

    return uniform_seeds().map(seeded)


def wide() -> st.SearchStrategy[WideInputs]:
    """More than 8 of more experts per token, and widths up to 48."""
    regime = Regime(
        patterns=("short", "thin", "thin"),
        experts=(12, 17, 24, 33),
        top_ks=(9, 10, 11),
        leading=((2,), (3,), (5,)),
        steps=APART,
        widest=48,
    )

    def seeded(seed: int) -> WideInputs:
        return WideInputs(_layer(seed, np.random.default_rng(seed), regime), "all")

    return uniform_seeds().map(seeded)


def with_lost_tokens() -> st.SearchStrategy[NanInputs]:
    """Several tokens, of which at least one is lost and at least one is not."""

    def seeded(seed: int) -> NanInputs:
        rng = np.random.default_rng(seed)
        layer = _layer(seed, rng, Regime(smallest=-1, leading=SEVERAL, steps=APART))
        tokens = len(layer.x)
        lost = rng.random(tokens) < 0.4
        lost[rng.permutation(tokens)[:2]] = [True, False]
        value = float(_one_of(rng, (np.nan, np.inf, -np.inf)))
        return NanInputs(layer, _cotangent(rng, layer.x), lost, value)

    return uniform_seeds().map(seeded)


def long_sums() -> st.SearchStrategy[LongInputs]:
    """One width, which is named, is long; every term of a sum has one sign: nothing cancels."""

    def seeded(seed: int) -> LongInputs:
        rng = np.random.default_rng(seed)
        width = ("model", "latent", "hidden", "shared_hidden")[seed % 4]
        sizes = _sizes(rng, Regime(experts=(2, 3), top_ks=(1, 2)))
        sizes = replace(sizes, shared=max(1, sizes.shared))
        # Behind the norm an error that all of u shares cannot be seen.
        identity = width == "hidden" or rng.random() < 0.3
        return LongInputs(sizes, width, bool(identity), seed)

    return uniform_seeds().map(seeded)


# Cases -------------------------------------------------------------------------------------------


def _layers(regime: Regime) -> st.SearchStrategy[LayerInputs]:
    return uniform_seeds().map(lambda seed: _layer(seed, np.random.default_rng(seed), regime))


def _layer(seed: int, rng: np.random.Generator, regime: Regime) -> LayerInputs:
    """One case of a regime; a readable one for the smallest seeds."""
    if seed < READABLE_SEEDS:
        regime = replace(regime, patterns=("short",), widest=min(regime.widest, 6))
        regime = replace(regime, experts=regime.experts[:2], leading=regime.leading[:2])
    sizes = _sizes(rng, regime)
    pattern = _one_of(rng, regime.patterns)
    amplitude = 10.0 ** int(rng.integers(regime.smallest, regime.largest + 1))
    gate_scale = _one_of(rng, regime.logits) * unit_logits(amplitude)
    shape = (*_one_of(rng, regime.leading), sizes.model)
    x = with_zeros(np.random.default_rng([seed, 6]), tokens_of(rng, shape, pattern, amplitude))
    return LayerInputs(
        x=laid_out(x, _one_of(rng, LAYOUTS)),
        parameters=parameters_of(rng, sizes, pattern, gate_scale, _one_of(rng, regime.steps)),
        config=_config(rng, sizes.top_k),
        training=bool(rng.integers(2)),
        identity_norm=_one_of(rng, regime.identity_norm),
    )


def _one_of(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]


def _config(rng: np.random.Generator, top_k: int) -> LayerConfig:
    beta_gate, beta_up = _one_of(rng, BETAS)
    return LayerConfig(
        top_k, beta_gate, beta_up, _one_of(rng, EPSILONS), _one_of(rng, ROUTED_SCALES)
    )


def _sizes(rng: np.random.Generator, regime: Regime) -> Sizes:
    """Four different widths, or, in a square case, one for all."""
    experts = _one_of(rng, regime.experts)
    top_k = min(experts, _one_of(rng, regime.top_ks))
    widths = [int(width) + 1 for width in rng.permutation(regime.widest)[:4]]
    if _one_of(rng, regime.square):
        widths = [int(rng.integers(2, 7))] * 4
    model, latent, hidden, shared_hidden = widths
    return Sizes(experts, top_k, model, latent, hidden, _one_of(rng, SHARED), shared_hidden)


def _cotangent(rng: np.random.Generator, x: Array) -> Array:
    """Of one size for all tokens but the few that the loss leaves out."""
    kept = rng.random((*x.shape[:-1], 1)) < 0.9
    cotangent: Array = kept * _one_of(rng, COTANGENTS) * rng.standard_normal(x.shape)
    return laid_out(cotangent, _one_of(rng, LAYOUTS))


def positive(rng: np.random.Generator, sizes: Sizes, identity_norm: bool) -> LayerInputs:
    """Positive tokens and parameters of few digits, with rows that sum to about 1."""

    def few(shape: Sequence[int]) -> Array:
        choices: Array = rng.choice([0.75, 1.0, 1.25], tuple(shape))
        return choices

    def average(array: Array) -> Array:
        return few(array.shape) * 2.0 ** -np.round(np.log2(array.shape[-1]))

    made = parameters_of(rng, sizes, "short", 1.0, 1.0)

    def averages(experts: ExpertParameters) -> ExpertParameters:
        return ExpertParameters(
            average(experts.gate_proj), average(experts.up_proj), average(experts.down_proj)
        )

    parameters = replace(
        made,
        gate_weight=average(made.gate_weight),
        routed_expert_down_proj=average(made.routed_expert_down_proj),
        experts=averages(made.experts),
        routed_expert_norm=few(made.routed_expert_norm.shape),
        routed_expert_up_proj=average(made.routed_expert_up_proj),
        shared_experts=averages(made.shared_experts),
    )
    return LayerInputs(
        x=few((2, sizes.model)),
        parameters=parameters,
        config=LayerConfig(sizes.top_k),
        training=bool(rng.integers(2)),
        identity_norm=identity_norm,
    )
