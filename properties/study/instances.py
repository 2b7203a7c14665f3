"""The instances of the study: seeded one by one, so that any of them can be drawn again alone.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from properties.protocol import Array

__all__ = ["CLASSES", "DrawnClass", "Instance", "draw", "router_scores"]


@dataclass(frozen=True)
class DrawnClass:
    """A class of instances: whether q is an integer, and whether scores tie."""

    name: str
    integral: bool
    ties: bool


CLASSES: tuple[DrawnClass, ...] = (
    DrawnClass("generic, q integral", integral=True, ties=False),
    DrawnClass("ties, q integral", integral=True, ties=True),
    DrawnClass("generic, q fractional", integral=False, ties=False),
)


@dataclass(frozen=True, eq=False)
class Instance:
    """Scores (M, N), float64 or int64, and top_k < N."""

    scores: Array
    top_k: int


def draw(number: int, seed: int, index: int) -> Instance:
    """Instance ``index`` of ``CLASSES[number]``: 3 <= N <= 12, 3 <= M <= 24, 1 <= top_k < N.

    Generic scores are uniform on [0, 1): an alternating cycle cancels with probability 0, up to the
    53 bits. Tied ones are integers 0 … 3.
    """
    wanted = CLASSES[number]
    rng = np.random.default_rng([seed, number, index])
    while True:
        n = int(rng.integers(3, 13))
        top_k = int(rng.integers(1, n))
        m = int(rng.integers(3, 25))
        if wanted.integral:
            step = n // math.gcd(n, top_k)
            m = step * max(1, m // step)
        if m >= 3 and (m * top_k % n == 0) == wanted.integral:
            break
    scores = rng.integers(0, 4, (m, n)) if wanted.ties else rng.random((m, n))
    return Instance(scores, top_k)


def router_scores(seed: tuple[int, ...], shape: tuple[int, int], spread: float) -> Array:
    """Sigmoids of standard normal logits (M, N) plus ``spread`` times a normal number per expert.

    The spread makes experts hot that everybody wants, so that b = 0 is far from balanced.
    """
    rng = np.random.default_rng(seed)
    logits: Array = rng.standard_normal(shape) + spread * rng.standard_normal(shape[1])
    return 1.0 / (1.0 + np.exp(-logits))
