"""Classes of score matrices: patterns full of ties, exact perturbations of them, and reals.

Scores are *generic* if no alternating cycle cancels: for distinct rows i_1 … i_r and distinct
columns j_1 … j_r, r >= 2, the sum of s(i_t, j_t) - s(i_t, j_t+1) (indices cyclic) is not zero. How
that is guaranteed differs:

* ``perturbed``: s = L 2^p + 2^e with p = M N, integers L of one of the ``PATTERNS``, and e a
  permutation of 0 … p - 1. A cycle has every entry at most once, so its sum is a multiple of 2^p
  plus a signed sum of distinct powers of two. The latter lies strictly between -2^p and 2^p and is
  not zero, for its least power divides all others properly. So every cycle is at least 1 in size,
  exactly, whatever L is: duplicated tokens and constant rows too. All scores are integers below
  2^53: float64 holds them.
* ``REALS``: continuous distributions of reals with at least 31 random bits. Each cycle is a
  hyperplane, so genericity holds with probability one for reals, and a cancellation within float
  spacing has a probability of about 2^-31 per cycle or less. It is not assumed: the properties
  prove every optimum they accept, and count what they cannot decide as unknown.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from properties.protocol import Array

__all__ = [
    "MIAN_CHOWLA",
    "PATTERNS",
    "REALS",
    "Pattern",
    "drawn_scores",
    "perturbed",
    "tied_scores",
]

Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, int]], Array]

# A Sidon set: the sums of two members are all different.
MIAN_CHOWLA = (0, 1, 3, 7, 12, 20, 30, 44, 65, 80, 96, 122, 147, 181, 203, 251)

# On a level of CLOSE, scores and their perturbation add up to 2 at most: less than 1e-6 of it.
CLOSE = 2**21


# Integers with ties --------------------------------------------------------------------------


class Pattern(NamedTuple):
    """Integer scores 0 <= L < 2^bits, and the most edges that their exact perturbation may have.

    float64 would hold p = 53 - bits edges; fewer leave guard bits, so that a descent in float64 can
    tell the perturbations apart.
    """

    draw: Draw
    bits: int
    edges: int


def _lattice(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.integers(0, rng.choice([2, 4, 16, 1024]), shape)


def _equal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.full(shape, rng.integers(4))


def _duplicated_tokens(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """At most half as many different rows as tokens, but one for a single token."""
    m, n = shape
    different = max(1, m // 2)
    return _lattice(rng, (different, n))[rng.integers(different, size=m)]


def _constant_rows(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """At least one token, maybe all, to whom all experts are alike."""
    scores_MN = _lattice(rng, shape)
    rows = rng.permutation(shape[0])[: rng.integers(shape[0]) + 1]
    scores_MN[rows] = scores_MN[rows, :1]
    return scores_MN


def _constant_columns(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """At least one expert, maybe all, whom all tokens like alike."""
    return _constant_rows(rng, shape[::-1]).T


def _heavy_tail(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Log-uniform from 1 to 2^12: few edges outweigh all others."""
    return np.floor(2.0 ** (12.0 * rng.random(shape))).astype(np.int64)


def _close(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """One or two levels; on a level all scores lie within 1e-6 of each other, relative to it."""
    levels = rng.integers(1, rng.choice([2, 3]), shape, endpoint=False)
    return levels * CLOSE + rng.integers(0, 2, shape)


def _one_wins(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Every token likes the same expert best, by more than it tells any two others apart."""
    scores_MN = rng.integers(0, rng.choice([1, 2, 4]), shape)
    scores_MN[:, rng.integers(shape[1])] += 8
    return scores_MN


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "lattice": Pattern(_lattice, bits=10, edges=40),
        "all equal": Pattern(_equal, bits=2, edges=40),
        "duplicated tokens": Pattern(_duplicated_tokens, bits=10, edges=40),
        "constant rows": Pattern(_constant_rows, bits=10, edges=40),
        "constant columns": Pattern(_constant_columns, bits=10, edges=40),
        "heavy tail": Pattern(_heavy_tail, bits=13, edges=36),
        "close": Pattern(_close, bits=23, edges=28),
        "one expert wins": Pattern(_one_wins, bits=4, edges=40),
    }
)


def tied_scores(pattern: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """int64 scores (M, N) of that pattern, with whatever ties it has."""
    return PATTERNS[pattern].draw(rng, shape)


def perturbed(pattern: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """The pattern with its ties broken: generic int64 scores below 2^53, of any such shape.

    Raises ValueError for more edges than the pattern leaves bits for.
    """
    m, n = shape
    chosen = PATTERNS[pattern]
    if m * n > chosen.edges:
        raise ValueError(f"{m} x {n} scores are too many; {pattern!r} leaves {chosen.edges} bits")
    exponents = rng.permutation(m * n).reshape(shape)
    scores_MN: Array = chosen.draw(rng, shape) * 2 ** (m * n) + 2**exponents
    return scores_MN


# Reals ---------------------------------------------------------------------------------------


def _uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """On [0, 1)."""
    return rng.random(shape)


def _heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """exp of normal: few edges outweigh all others."""
    heavy: Array = np.exp(2.0 * rng.standard_normal(shape))
    return heavy


def _hot(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Sigmoids of logits with expert offsets: most tokens want the same experts."""
    logits: Array = rng.standard_normal(shape) + 2.0 * rng.standard_normal(shape[1])
    return 1.0 / (1.0 + np.exp(-logits))


def _within_a_millionth(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """1 plus less than 1e-6: 31 random bits after the equal ones."""
    return 1.0 + rng.random(shape) / CLOSE


def _one_real_wins(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Every token likes the same expert best."""
    scores_MN = rng.random(shape)
    scores_MN[:, rng.integers(shape[1])] += 1.0
    return scores_MN


REALS: Mapping[str, Draw] = MappingProxyType(
    {
        "uniform": _uniform,
        "heavy": _heavy,
        "hot": _hot,
        "within 1e-6": _within_a_millionth,
        "one wins": _one_real_wins,
    }
)


def drawn_scores(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """float64 scores (M, N) from one of the continuous distributions."""
    return REALS[kind](rng, shape)
