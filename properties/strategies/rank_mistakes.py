"""Ways to compute ceil(m k / n) that go wrong for some m, and loads q at which each of them shows.

Each works at the sizes that tests like to use: powers of two, or few tokens. Which totals they get
wrong, among all integral q below 2^24 of six published models, is on docs/rank-arithmetic.md.

Legend: m tokens, k = top_k, n experts, q = m k / n, integral here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from properties.protocol import Array

__all__ = ["END", "MISTAKES", "load_step", "loads_that_show", "total", "wrong_ranks"]

# A float32 count stands still at 2^24, so loads are drawn up to there and just past it.
END = 2**24

Mistake: TypeAlias = Callable[[Array, int, int], Array]

# m k is below 2^53, so the quotient is exact; and m (k/n) is never off by a half.
EXACT_IN_FLOAT64 = ("ceil(m k / n)", "round(m (k/n))")

_CANDIDATES = 4096


def _floats(f: Any) -> dict[str, Mistake]:
    """The formulas with every number in the format ``f``."""
    return {
        "ceil(m (k/n))": lambda m, k, n: np.ceil(f(m) * f(k / n)),
        "ceil(m k / n)": lambda m, k, n: np.ceil(f(m) * f(k) / f(n)),
        "ceil(m / (n/k))": lambda m, k, n: np.ceil(f(m) / f(n / k)),
        "ceil(m / n k)": lambda m, k, n: np.ceil(f(m) / f(n) * f(k)),
        "floor(m (k/n))": lambda m, k, n: np.floor(f(m) * f(k / n)),
        "round(m (k/n))": lambda m, k, n: np.round(f(m) * f(k / n)),
        "m - floor(m (1 - k/n))": lambda m, k, n: m - np.int64(np.floor(f(m) * f(1 - k / n))),
    }


def _int32(values: Array) -> Array:
    """What is left of integers that are kept in 32 bits: they wrap around."""
    return values.astype(np.int64).astype(np.int32).astype(np.int64)


def _wrapped(m: Array, k: int, n: int) -> Array:
    return -(-_int32(m * k) // n)


def _whole_groups(m: Array, k: int, n: int) -> Array:
    return m // n * k


def _rounded_ratio(m: Array, k: int, n: int) -> Array:
    return np.ceil(m * float(np.float32(k / n)))


def _rounded_total(m: Array, k: int, n: int) -> Array:
    return -(-m.astype(np.float32).astype(np.int64) * k // n)


MISTAKES: Mapping[str, Mistake] = MappingProxyType(
    {
        **{f"float32 {formula}": rule for formula, rule in _floats(np.float32).items()},
        **{
            f"float64 {formula}": rule
            for formula, rule in _floats(np.float64).items()
            if formula not in EXACT_IN_FLOAT64
        },
        "float64 ceil(m float32(k/n))": _rounded_ratio,
        "float32 m, integers from there": _rounded_total,
        "int32 ceil(m k / n)": _wrapped,
        "integer m // n k": _whole_groups,
    }
)


def load_step(top_k: int, num_experts: int) -> int:
    """The loads q = m k / n of whole tokens are the multiples of this."""
    return top_k // math.gcd(top_k, num_experts)


def total(loads: Array, top_k: int, num_experts: int) -> Array:
    """The number of tokens m whose target load is that q; int64, exact."""
    tokens: Array = np.asarray(loads, np.int64) * num_experts // top_k
    return tokens


def wrong_ranks(mistake: str, loads: Array, top_k: int, num_experts: int) -> Array:
    """The ranks that ``mistake`` computes where the loads are wanted; int64."""
    tokens = total(loads, top_k, num_experts)
    ranks: Array = MISTAKES[mistake](tokens, top_k, num_experts).astype(np.int64)
    return ranks


def loads_that_show(rng: np.random.Generator, top_k: int, num_experts: int) -> dict[str, int]:
    """For each mistake that occurs at this k/n, a random load below 2^24 at which it shows.

    Half of the candidates are uniform, half as likely at any order of magnitude.
    """
    step = load_step(top_k, num_experts)
    most = (END - 1) // step
    uniform = rng.integers(1, most + 1, _CANDIDATES)
    scaled = np.exp2(rng.random(_CANDIDATES) * math.log2(most)).astype(np.int64)
    candidates = step * np.concatenate((uniform, scaled))
    found = {}
    for name in MISTAKES:
        showing = candidates[wrong_ranks(name, candidates, top_k, num_experts) != candidates]
        if showing.size:
            found[name] = int(rng.choice(showing))
    return found
