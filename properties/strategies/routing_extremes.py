"""Logits and biases far out, infinite or NaN, and biases that differ by little under an offset.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import LAYOUTS
from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import SPECIAL_LOGITS, RoutingInputs, any_inputs, chosen
from properties.strategies.shapes import SEEDS

__all__ = [
    "PoisonedInputs",
    "all_chosen",
    "infinite",
    "infinite_inputs",
    "one_chosen",
    "poisoned",
    "poisoned_inputs",
    "small_gaps",
    "walled",
]

# (M, N), smallest first.
SHAPES = (
    (1, 2),
    (1, 3),
    (2, 3),
    (3, 3),
    (2, 5),
    (5, 8),
    (17, 6),
    (9, 16),
    (33, 5),
    (16, 32),
    (7, 64),
    (17, 128),
    (5, 257),
    (3, 384),
    (9, 896),
)
TOP_KS = (1, 2, 3, 4, 6, 8, 9, 10, 12, 16, 22, 24)

FAR_LOGITS = (*SPECIAL_LOGITS, np.inf, -np.inf, -88.0, -104.0, -745.0, -1e30)

# The worst that a finite expert may have, against -inf: stand-ins for -inf are among them.
LOW_BIASES = (0.0, -0.5, -3.0, -100.0, -1e4, -1e9, -1e30)

OFFSETS = (34.5, -34.5, 100.0, 10.0)
SPREADS = (1e-4, 3e-4, 1e-3)

POISONS = ("row", "one", "best", "all but one", "padding")


@dataclass(frozen=True)
class PoisonedInputs:
    """Inputs, and where (M, N) NaN takes the place of a logit."""

    routing: RoutingInputs
    nan: Array


def infinite() -> st.SearchStrategy[RoutingInputs]:
    """Rows at one extreme, between two of them, or mixed from all; ±inf is an extreme."""
    return uniform_seeds().map(infinite_inputs)


def infinite_inputs(seed: int) -> RoutingInputs:
    """The inputs of a seed: rows of extreme logits, under a bias that often leaves them tied."""
    rng, (m, n) = np.random.default_rng(seed), _shape(seed)
    logits = np.empty((m, n))
    for row in logits:
        levels = rng.choice(FAR_LOGITS, int(rng.integers(1, 4)))
        row[:] = rng.choice(levels if rng.random() < 0.8 else FAR_LOGITS, n)
    bias = chosen(rng, (np.zeros(n), 0.5 * rng.integers(-1, 3, n), rng.standard_normal(n)))
    return RoutingInputs(logits, bias, _top_k(rng, n), chosen(rng, LAYOUTS))


def poisoned() -> st.SearchStrategy[PoisonedInputs]:
    """Some rows with NaN: wholly, once, at the best expert, everywhere but once, or as padding.

    A single token is poisoned, too: then nothing is left but its ids.
    """
    return uniform_seeds().map(poisoned_inputs)


def poisoned_inputs(seed: int) -> PoisonedInputs:
    """The inputs of a seed, with their poison."""
    rng, (m, n) = np.random.default_rng(seed), _shape(seed)
    inputs = any_inputs(rng, m, n, _top_k(rng, n))
    nan, kind = np.zeros((m, n), dtype=bool), chosen(rng, POISONS)
    if kind == "padding":
        nan[m // 2 :] = True
        return PoisonedInputs(inputs, nan)
    rows = rng.permutation(m)[: max(1, m // 4)]
    some = rng.integers(n, size=len(rows))
    if kind == "best":
        some = np.argmax(inputs.logits[rows], axis=1)
    nan[rows, some] = True
    if kind in ("row", "all but one"):
        nan[rows] = ~nan[rows] if kind == "all but one" else True
    return PoisonedInputs(inputs, nan)


def walled() -> st.SearchStrategy[RoutingInputs]:
    """Experts shut out by a bias of -inf, the best ones often among them; K or more are left."""

    def seeded(seed: int) -> RoutingInputs:
        rng, (m, n) = np.random.default_rng(seed), _shape(seed)
        top_k = min(_top_k(rng, n), n - 1)
        open_experts = int(rng.integers(top_k, n))
        shut = rng.permutation(n)[open_experts:]
        logits = rng.choice(SPECIAL_LOGITS[:-1], (m, n)) + rng.integers(-8, 9, (m, n)) / 8.0
        logits[:, shut] = rng.choice((0.0, 30.0, 1e4, 1e30), (m, len(shut)))
        bias = chosen(rng, LOW_BIASES) * (1.0 + rng.integers(0, 4, n) / 4.0)
        bias[shut] = -np.inf
        return RoutingInputs(logits, bias, top_k, chosen(rng, LAYOUTS))

    return uniform_seeds().map(seeded)


def small_gaps() -> st.SearchStrategy[RoutingInputs]:
    """A bias with a large common offset and a spread of 1e-4, under scores that are all but equal.

    The bias decides under equal logits; else scores with as little spread decide with it.
    """

    def seeded(seed: int) -> RoutingInputs:
        rng, (m, n) = np.random.default_rng(seed), _shape(seed)
        spread = chosen(rng, SPREADS)
        logits = np.repeat(rng.integers(-24, 25, (m, 1)) / 8.0, n, axis=1)
        if rng.random() < 0.5:
            logits = logits + 4.0 * spread * rng.standard_normal((m, n))
        steps = rng.permutation(n) if rng.random() < 0.5 else rng.integers(0, 4, n)
        bias = chosen(rng, OFFSETS) + spread * steps / max(1, int(steps.max()))
        return RoutingInputs(logits, bias, min(_top_k(rng, n), n - 1), chosen(rng, LAYOUTS))

    return uniform_seeds().map(seeded)


def all_chosen() -> st.SearchStrategy[RoutingInputs]:
    """K = N, any class of scores."""

    def seeded(seed: int) -> RoutingInputs:
        rng, (m, n) = np.random.default_rng(seed), _shape(seed)
        return any_inputs(rng, m, n, n)

    return uniform_seeds().map(seeded)


def one_chosen() -> st.SearchStrategy[RoutingInputs]:
    """K = 1, with scores from 1 down past the epsilon of the normaliser."""

    def seeded(seed: int) -> RoutingInputs:
        rng, (m, n) = np.random.default_rng(seed), _shape(seed)
        if rng.random() < 0.5:
            return any_inputs(rng, m, n, 1)
        logits = rng.uniform(-60.0, 4.0, (m, 1)) + rng.uniform(-1.0, 1.0, (m, n))
        bias = 0.25 * rng.integers(-2, 3, n)
        return RoutingInputs(logits.round(3), bias, 1, chosen(rng, LAYOUTS))

    return uniform_seeds().map(seeded)


def _shape(seed: int) -> tuple[int, int]:
    """The smaller the seed, the smaller the shape: so failures shrink."""
    return SHAPES[seed * len(SHAPES) // SEEDS]


def _top_k(rng: np.random.Generator, num_experts: int) -> int:
    return min(chosen(rng, TOP_KS), num_experts)
