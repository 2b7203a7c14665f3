"""Inputs for one Quantile Balancing update, or for several that belong together.

Every class of scores on which an update might go wrong is drawn as a class of its own:

* ``eighths`` (multiples of 1/8, to be read), ``plain``, ``heavy`` (Cauchy logits: a few outweigh
  all others), ``hot`` (most tokens want the same experts), ``saturated`` (sigmoids that are 1 in
  float32);
* ties: ``lattice`` (few different logits), ``near`` (scores within 1e-6 of each other), ``tokens``
  (tokens that repeat each other), ``rows`` (tokens to which all experts are alike), ``columns``
  (experts to which all tokens are alike).

Shapes with k = n - 1 and with q = 1 are classes, too. The bias in force is 0, small, wide, far off,
on a lattice, or *settled*: what some updates of the same batch lead to, where each expert's atom of
required biases at its own old bias is largest.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

import reference_numpy as reference
from properties.protocol import Array
from properties.strategies.balancing import BatchInputs
from properties.strategies.optimality import uniform_seeds
from properties.strategies.shapes import SEEDS
from reference_numpy.balancing import Statistic

SIZES = (
    *((2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (5, 2), (7, 3), (8, 2), (16, 4), (33, 5)),
    *((60, 8), (64, 6), (256, 8), (257, 8), (896, 16)),
)
ALL_BUT_ONE = ((2, 1), (3, 2), (4, 3), (8, 7), (17, 16), (33, 32))
LOADS_OF_ONE = ((2, 1), (3, 1), (4, 2), (5, 1), (8, 2), (16, 4), (64, 8), (64, 2))
ELEMENTS, COUNTS = 6_000, 16_000

KINDS = (
    *("eighths", "plain", "heavy", "hot", "saturated"),
    *("lattice", "near", "tokens", "rows", "columns"),
)
SCALES = (1.0, 3.0, 0.1, 30.0, 1e-4)
BIASES = ("zero", "lattice", "small", "wide", "offset")
OTHERS = ("all", "one", "near", "unrelated", "upper half")
SPREADS = (0.1, 1.0, 1e-3, 10.0, 1e-6)
STEPS = (0.01, 1e-3, 0.1, 1e-5)
STATISTICS: tuple[Statistic, ...] = ("q+1", "q", "linear")
BINS = (1000, 64, 16, 3, 2)

_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class UpdateInputs:
    """A batch with K < N and a valid token, and what a property may need beside it.

    ``others`` are further biases (N,), the first of them nowhere below the batch's own;
    ``token_order`` (M,) and ``expert_order`` (N,) are permutations, ``times`` is how often to
    repeat the batch, ``num_bins`` is B.
    """

    batch: BatchInputs
    others: tuple[Array, Array]
    token_order: Array
    expert_order: Array
    times: int
    num_bins: int


def updates(
    *, integral: bool = False, settled: float = 0.3, steps: float = 0.5
) -> st.SearchStrategy[UpdateInputs]:
    """Inputs of every class; with ``integral``, q is an integer.

    ``settled`` and ``steps`` are shares: of biases that some updates have led to, and of others
    that are reached from the first in two steps on different experts. Everything follows from one
    uniform seed, so that the classes keep their shares. The smaller the seed, the smaller N, and
    the smaller its lowest bits, the smaller M: so failures shrink.
    """
    return uniform_seeds().map(lambda seed: _seeded(seed, integral, settled, steps))


def _seeded(seed: int, integral: bool, settled: float, steps: float) -> UpdateInputs:
    rng = np.random.default_rng(seed)
    tokens, num_experts, top_k = _shape(seed, rng, integral)
    logits = _logits(_one(KINDS, rng), rng, (tokens, num_experts))
    bias = _settled(rng, logits, top_k) if rng.random() < settled else _bias(rng, num_experts)
    others = _steps(rng, bias, logits) if rng.random() < steps else _neighbours(rng, bias)
    bins = [number for number in BINS if number * num_experts <= COUNTS]
    padded, mask = (logits, None) if rng.random() < 0.7 else _with_padding(rng, logits)
    return UpdateInputs(
        BatchInputs(padded, bias, top_k, mask),
        others,
        rng.permutation(len(padded)),
        rng.permutation(num_experts),
        int(rng.integers(2, 4)),
        int(rng.choice(bins)),
    )


def _shape(seed: int, rng: np.random.Generator, integral: bool) -> tuple[int, int, int]:
    """(M, N, K), as ``updates`` says."""
    sizes = (SIZES, SIZES, SIZES, ALL_BUT_ONE, LOADS_OF_ONE)[rng.integers(5)]
    num_experts, top_k = sizes[seed * len(sizes) // SEEDS]
    step = num_experts // math.gcd(num_experts, top_k)
    if sizes is LOADS_OF_ONE:
        return step, num_experts, top_k
    most = max(min(300, ELEMENTS // num_experts) * (seed % 16 + 1) // 16, step)
    if integral or rng.random() < 0.7:
        return step * int(rng.integers(1, most // step + 1)), num_experts, top_k
    return int(rng.integers(1, most + 1)), num_experts, top_k


def _logits(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    tokens, num_experts = shape
    scale = _one(SCALES, rng)
    logits: Array = np.multiply(scale, rng.standard_normal(shape))
    if kind in ("rows", "columns"):
        alike = rng.random((tokens, 1) if kind == "rows" else num_experts) < 0.5
        shared = logits[:, :1] if kind == "rows" else logits[:1]
        chosen: Array = np.where(alike, shared, logits)
        return chosen
    if kind == "eighths":
        return rng.integers(-32, 33, shape) / 8.0
    if kind == "heavy":
        return np.clip(rng.standard_cauchy(shape), -1e4, 1e4)
    if kind == "hot":
        return logits + 2.0 * rng.standard_normal(num_experts)
    if kind == "saturated":
        return np.where(rng.random(shape) < 0.5, rng.choice([18.0, 30.0, 40.0], shape), logits)
    if kind in ("lattice", "near"):
        steps: Array = np.multiply(1e-6 if kind == "near" else 0.0, rng.integers(-1, 2, shape))
        halves: Array = np.round(2.0 * rng.standard_normal(shape))
        return halves / 2.0 + steps
    if kind == "tokens":
        return logits[rng.integers(0, max(tokens // 3, 1), tokens)]
    return logits


def _settled(rng: np.random.Generator, logits: Array, top_k: int) -> Array:
    bias, statistic = np.zeros(logits.shape[1]), _one(STATISTICS, rng)
    for _ in range(int(rng.integers(1, 10))):
        bias = reference.quantile_update(logits, bias, top_k=top_k, statistic=statistic)
    return bias


def _bias(rng: np.random.Generator, num_experts: int) -> Array:
    kind, drawn = _one(BIASES, rng), rng.standard_normal(num_experts)
    if kind == "lattice":
        return np.round(2.0 * drawn) / 4.0
    if kind == "offset":
        return 34.5 + 1e-4 * drawn
    return np.multiply({"zero": 0.0, "small": 0.1, "wide": 3.0}[kind], drawn)


def _steps(rng: np.random.Generator, bias: Array, logits: Array) -> tuple[Array, Array]:
    """Some experts raised, then others, too: up in two steps what is one step down.

    The step is small beside the differences of scores. Where an update hardly contracts, as it does
    near a fixed point, a reversed order shows on the way around.
    """
    num_experts = bias.shape[0]
    order = rng.permutation(num_experts)
    first, second = 1, num_experts - 1
    if num_experts > 3:
        first, second = np.sort(rng.permutation(num_experts - 1)[:2] + 1)
    step = _one(STEPS, rng) * float(np.ptp(reference.scores(logits)))
    above = bias.copy()
    above[order[:first]] += step
    other = above.copy()
    other[order[first:second]] += step
    return above, other


def _neighbours(rng: np.random.Generator, bias: Array) -> tuple[Array, Array]:
    """One bias nowhere below, and any other."""
    above = bias + np.abs(_moved(_one(OTHERS, rng), rng, bias) - bias)
    return above, _moved(_one(OTHERS, rng), rng, bias)


def _moved(kind: str, rng: np.random.Generator, bias: Array) -> Array:
    """Another bias: noise on all experts, on one, on the upper ones, or unrelated."""
    noise: Array = np.multiply(_one(SPREADS, rng), rng.standard_normal(bias.shape[0]))
    if kind == "one":
        noise[rng.permutation(bias.shape[0])[1:]] = 0.0
    if kind == "near":
        noise *= 1e-2
    if kind == "upper half":
        noise[bias < np.median(bias)] = 0.0
    return noise if kind == "unrelated" else bias + noise


def _with_padding(rng: np.random.Generator, logits: Array) -> tuple[Array, Array]:
    """The same tokens among masked rows, which would change every quantile if they counted."""
    tokens, num_experts = logits.shape
    rows = tokens + int(rng.integers(1, tokens + 2))
    mask = np.zeros(rows, dtype=bool)
    mask[rng.permutation(rows)[:tokens]] = True
    padded = np.tile(np.linspace(9.0, -9.0, num_experts), (rows, 1))
    padded[mask] = logits
    return padded, mask


def _one(choices: tuple[_Choice, ...], rng: np.random.Generator) -> _Choice:
    return choices[rng.integers(len(choices))]
