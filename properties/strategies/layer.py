"""Inputs of the whole layer: small widths, every size different or all alike, thin or dense.

A dense bfloat16 layer loses about half of its output to rounding: cancellation in six projections
in a row. Where every row of a projection has one entry there is none, and the radius stays at a few
per cent; most cases are *thin* like that. The *short* ones are thin with numbers of a few digits:
what failures shrink to. (Elements drawn one by one make longer sequences of choices than a seed
does, so Hypothesis would never shrink to them.)

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width of a
routed expert, S shared experts, G hidden width of a shared expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, ExpertParameters, LayerConfig, LayerParameters
from properties.strategies.arrays import (
    amplitudes,
    laid_out,
    layouts,
    seeds,
)

Pattern = Literal["short", "thin", "dense"]

BETAS = ((4.0, 25.0), (1.0, 1.0), (0.5, 3.0), (25.0, 4.0), (3.3000123, 0.7000456), (100.0, 100.0))
EPSILONS = (1e-5, 1e-6, 1e-2)
ROUTED_SCALES = (1.0, 2.5, 0.125, 2.827)
LEADING = ((1,), (3,), (5,), (17,), (33,))
ANY_RANK = ((), (2, 3), (5,), (3, 2), (3, 1, 2), (2, 4), (2, 2, 3), (1,), (1, 5), (5, 1), (1, 1))
NO_TOKENS = ((0,), (0, 4), (4, 0, 2))
SEVERAL = ((2,), (3,), (5,), (17,))

# Distances of biases at which most tokens have one legal selection only, in bfloat16, too.
APART = (0.125, 1.0)

# Logits at which scores are far below any epsilon, and at which they are all 1.
OFFSET_LOGITS = (-45.0, -30.0, -22.0, 30.0)

# Numbers of shared experts: the report's layer has 2, and layers without any are usual.
SHARED = (1, 2, 0, 3)

# The exponent e of "weight 2^e and eps 4^e make the norm the identity" (see LayerInputs).
IDENTITY = 40


@dataclass(frozen=True)
class LayerInputs:
    """One call of the layer.

    With ``identity_norm`` the property replaces the norm's weight by 2^40 and its eps by 2^80, so
    that u / sqrt(mean(u^2) + eps) * weight is u, up to a share of mean(u^2) / 2^81.
    """

    x: Array
    parameters: LayerParameters
    config: LayerConfig
    training: bool
    identity_norm: bool = False


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer, without its tokens."""

    experts: int
    top_k: int
    model: int
    latent: int
    hidden: int
    shared: int
    shared_hidden: int


@dataclass(frozen=True)
class Regime:
    """What a topic asks of its seeded cases; each field lists what is drawn from.

    Amplitudes of x are powers of ten from ``smallest`` to ``largest``; ``steps`` are distances of
    neighbours among the biases, ``logits`` the size of logits; ``top_ks`` are cut to 1 … N, and
    ``widest`` is the largest width.
    """

    smallest: int = -4
    largest: int = 2
    patterns: tuple[Pattern, ...] = ("short", "thin", "dense")
    leading: tuple[tuple[int, ...], ...] = LEADING
    experts: tuple[int, ...] = (2, 4, 3, 5, 8, 6, 11, 16, 1)
    top_ks: tuple[int, ...] = (1, 2, 3, 5, 16)
    steps: tuple[float, ...] = (0.125, 0.0, 0.015625, 1.0)
    logits: tuple[float, ...] = (1.0, 4.0)
    square: tuple[bool, ...] = (False, True)
    widest: int = 12
    latent_fits: bool = False
    identity_norm: tuple[bool, ...] = (False, False, True)


def inputs() -> st.SearchStrategy[LayerInputs]:
    """Any layer, in a quarter of the cases with 257 experts, of which the last one is chosen."""
    many = Regime(leading=((2,),), experts=(257,), top_ks=(8, 1, 2, 257), steps=(0.125, 1.0))
    return st.one_of(*(_seeded(Regime()) for _ in range(3)), _seeded(many))


def shaped() -> st.SearchStrategy[LayerInputs]:
    """Tokens behind any number of leading axes, none included."""
    return _seeded(Regime(smallest=-1, leading=ANY_RANK, steps=APART))


def empty() -> st.SearchStrategy[LayerInputs]:
    """No tokens, behind one to three leading axes."""
    return _seeded(Regime(leading=NO_TOKENS))


def tiny() -> st.SearchStrategy[LayerInputs]:
    """Tokens of amplitude 1e-2 to 1e-4, whose routed sum is far below sqrt(eps)."""
    return _seeded(Regime(smallest=-4, largest=-2, identity_norm=(False,)))


def moderate() -> st.SearchStrategy[LayerInputs]:
    """Amplitudes at which the activation is neither linear nor all saturated."""
    return _seeded(Regime(smallest=-1, leading=SEVERAL, steps=APART))


def often_square() -> st.SearchStrategy[LayerInputs]:
    """Mostly as many latent as model dimensions, and routing that follows the logits closely."""
    regime = Regime(
        smallest=-1,
        patterns=("short", "thin"),
        experts=(2, 3, 4, 5, 8),
        top_ks=(1, 2, 3),
        leading=SEVERAL,
        steps=(0.015625, 0.0625),
        logits=(4.0,),
        square=(True, True, False),
    )
    return _seeded(regime)


def uneven() -> st.SearchStrategy[LayerInputs]:
    """Two or more experts per token, whose outputs differ in size by up to 2^12, none shared."""
    regime = Regime(
        smallest=-1,
        patterns=("short", "thin"),
        experts=(2, 3, 4, 5, 8),
        top_ks=(2, 3, 5),
        leading=SEVERAL,
        steps=APART,
        identity_norm=(False,),
    )
    return st.tuples(_seeded(regime), seeds()).map(lambda drawn: _spread_out(*drawn))


def exact_up_projection() -> st.SearchStrategy[LayerInputs]:
    """L <= D and an up projection whose products are exact: one entry ±1, ±2 or ±4 per row."""
    regime = Regime(
        smallest=-1,
        leading=SEVERAL,
        steps=APART,
        square=(True, True, False),
        latent_fits=True,
    )
    return st.tuples(_seeded(regime), seeds()).map(lambda drawn: _with_exact_up(*drawn))


# Cases -------------------------------------------------------------------------------------------


@st.composite
def _seeded(draw: st.DrawFn, regime: Regime) -> LayerInputs:
    sizes = draw(_sizes(regime))
    pattern = draw(st.sampled_from(regime.patterns))
    amplitude = draw(amplitudes(regime.smallest, regime.largest))
    gate_scale = draw(st.sampled_from(regime.logits)) * unit_logits(amplitude)
    step = draw(st.sampled_from(regime.steps))
    leading = draw(st.sampled_from(regime.leading))
    rng = np.random.default_rng(draw(seeds()))
    x = tokens_of(rng, (*leading, sizes.model), pattern, amplitude)
    parameters = parameters_of(rng, sizes, pattern, gate_scale, step)
    x, parameters = with_offset_logits(rng, x, parameters)
    return LayerInputs(
        x=laid_out(with_zeros(rng, x), draw(layouts())),
        parameters=parameters,
        config=draw(_configs(sizes.top_k)),
        training=draw(st.booleans()),
        identity_norm=draw(st.sampled_from(regime.identity_norm)),
    )


def tokens_of(
    rng: np.random.Generator, shape: Sequence[int], pattern: Pattern, amplitude: float
) -> Array:
    """Tokens of sizes up to ``amplitude``, zeros among the short ones."""
    if pattern == "short":
        return amplitude * rng.integers(-6, 7, shape) / 4
    sizes = amplitude * 2.0 ** rng.integers(-3, 1, (*shape[:-1], 1))
    tokens: Array = sizes * rng.standard_normal(shape)
    return tokens


def with_zeros(rng: np.random.Generator, x: Array) -> Array:
    """The tokens, all of them 0 in a twentieth of the cases and some in a sixth: padding."""
    kind = rng.random()
    if kind < 1 / 20:
        return np.zeros_like(x)
    if kind < 1 / 20 + 1 / 6:
        return np.where(rng.random((*x.shape[:-1], 1)) < 0.4, 0.0, x)
    return x


def with_offset_logits(
    rng: np.random.Generator, x: Array, parameters: LayerParameters
) -> tuple[Array, LayerParameters]:
    """In an eighth of the cases all logits are off by one of OFFSET_LOGITS: x ends with a 1."""
    offset = float(rng.choice(OFFSET_LOGITS))
    if rng.random() >= 1 / 8 or x.shape[-1] < 2:
        return x, parameters
    x, gate_weight = x.copy(), parameters.gate_weight.copy()
    x[..., -1], gate_weight[:, -1] = 1.0, offset
    return x, replace(parameters, gate_weight=gate_weight)


def with_silence(rng: np.random.Generator, layer: LayerInputs) -> LayerInputs:
    """The same layer, often with down projections of 0, norm weights of about 0, or far logits."""
    parameters, kind = layer.parameters, rng.random()
    if kind < 0.1 and layer.x.size:
        x, parameters = with_offset_logits(rng, layer.x, parameters)
        return replace(layer, x=x, parameters=parameters)
    experts, norm_L = parameters.experts, parameters.routed_expert_norm
    if kind < 0.3:
        share = 0.5 if kind < 0.2 else 1.0
        kept = rng.random((len(experts.down_proj), 1, 1)) >= share
        experts = replace(experts, down_proj=kept * experts.down_proj)
    elif kind < 0.45:
        factor_L = rng.choice([0.0, 2.0**-20, 1.0], norm_L.shape)
        norm_L = factor_L * norm_L
    parameters = replace(parameters, experts=experts, routed_expert_norm=norm_L)
    return replace(layer, parameters=parameters)


def unit_logits(amplitude: float) -> float:
    """What keeps logits of large tokens from saturating the sigmoid; small tokens stay small."""
    return float(2.0 ** -np.ceil(np.log2(max(amplitude, 1.0))))


def _configs(top_k: int) -> st.SearchStrategy[LayerConfig]:
    return st.builds(
        lambda betas, eps, scale: LayerConfig(top_k, betas[0], betas[1], eps, scale),
        st.sampled_from(BETAS),
        st.sampled_from(EPSILONS),
        st.sampled_from(ROUTED_SCALES),
    )


@st.composite
def _sizes(draw: st.DrawFn, regime: Regime) -> Sizes:
    """Four different widths in 1 … 12, or, in a square case, one for all."""
    experts = draw(st.sampled_from(regime.experts))
    top_k = min(experts, draw(st.sampled_from(regime.top_ks)))
    if draw(st.sampled_from(regime.square)):
        width = draw(st.integers(2, 6))
        widths = [width] * 4
    else:
        every = st.integers(1, regime.widest)
        widths = draw(st.lists(every, min_size=4, max_size=4, unique=True))
        if regime.latent_fits:
            widths[:2] = sorted(widths[:2], reverse=True)
    model, latent, hidden, shared_hidden = widths
    shared = draw(st.sampled_from(SHARED))
    return Sizes(experts, top_k, model, latent, hidden, shared, shared_hidden)


def parameters_of(
    rng: np.random.Generator, sizes: Sizes, pattern: Pattern, gate_scale: float, step: float
) -> LayerParameters:
    """Random parameters; ``step`` is the distance of neighbours among the biases.

    From 257 experts on, one more than a byte can number, the last one has the largest bias.
    """

    def array(*shape: int) -> Array:
        return matrices(rng, shape, pattern)

    signs = rng.choice([-1.0, 1.0], sizes.latent)
    ladder = rng.permutation(sizes.experts) - (sizes.experts - 1) / 2
    ladder[256:] += sizes.experts
    return LayerParameters(
        gate_weight=gate_scale * _gate_weight(rng, (sizes.experts, sizes.model), pattern),
        e_score_correction_bias=step * ladder,
        routed_expert_down_proj=array(sizes.latent, sizes.model),
        experts=_expert_parameters(array, sizes.experts, sizes.hidden, sizes.latent),
        routed_expert_norm=signs * _magnitudes(rng, sizes.latent, pattern),
        routed_expert_up_proj=array(sizes.model, sizes.latent),
        shared_experts=_expert_parameters(array, sizes.shared, sizes.shared_hidden, sizes.model),
    )


def matrices(rng: np.random.Generator, shape: Sequence[int], pattern: Pattern) -> Array:
    """A stack of matrices (…, O, I) that keep the size of what they map, about.

    Short and thin ones have one entry per row, between 1/2 and 2 in size, in a column that goes
    round, so that each column is met where there are rows enough.
    """
    *stack, rows, columns = shape
    if pattern == "dense":
        dense: Array = rng.standard_normal(shape) / np.sqrt(columns)
        return dense
    entries = rng.choice([-1.0, 1.0], (*stack, rows)) * _magnitudes(rng, (*stack, rows), pattern)
    start = rng.integers(columns, size=(*stack, 1))
    place = rng.permuted((start + np.arange(rows)) % columns, axis=-1)
    here = place[..., None] == np.arange(columns)
    thin: Array = np.where(here, entries[..., None], 0.0)
    return thin


def _magnitudes(rng: np.random.Generator, shape: Any, pattern: Pattern) -> Array:
    """Numbers from 1/2 to 2."""
    few = rng.choice([0.5, 1.0, 1.5, 2.0], shape)
    magnitudes: Array = few if pattern == "short" else 2.0 ** rng.uniform(-1, 1, shape)
    return magnitudes


def _gate_weight(rng: np.random.Generator, shape: Sequence[int], pattern: Pattern) -> Array:
    """Dense in any case; short ones tie now and then."""
    if pattern == "short":
        short: Array = rng.integers(-4, 5, shape) * 2.0 ** -round(2 + np.log2(shape[-1]) / 2)
        return short
    return matrices(rng, shape, "dense")


def _expert_parameters(
    array: Callable[..., Array], count: int, hidden: int, width: int
) -> ExpertParameters:
    return ExpertParameters(
        gate_proj=array(count, hidden, width),
        up_proj=array(count, hidden, width),
        down_proj=array(count, width, hidden),
    )


# Cases made of others ----------------------------------------------------------------------------


def _spread_out(inputs: LayerInputs, seed: int) -> LayerInputs:
    """The same layer with experts of very different sizes and silent shared experts."""
    parameters = inputs.parameters
    experts, shared = parameters.experts, parameters.shared_experts
    sizes = 2.0 ** np.random.default_rng(seed).integers(-6, 7, (len(experts.down_proj), 1, 1))
    changed = replace(
        parameters,
        experts=replace(experts, down_proj=experts.down_proj * sizes),
        shared_experts=replace(shared, down_proj=np.zeros_like(shared.down_proj)),
    )
    return replace(inputs, parameters=changed)


def _with_exact_up(inputs: LayerInputs, seed: int) -> LayerInputs:
    """The same layer with an up projection of signed powers of two."""
    shape = inputs.parameters.routed_expert_up_proj.shape
    rng = np.random.default_rng(seed)
    up = np.sign(matrices(rng, shape, "thin")) * 2.0 ** rng.integers(0, 3, (shape[0], 1))
    return replace(inputs, parameters=replace(inputs.parameters, routed_expert_up_proj=up))
