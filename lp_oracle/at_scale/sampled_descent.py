"""Midpoint rounds, first on samples of the tokens: multipliers close to the optimum, cheaply.

A round on every fourth token costs a quarter and is off by the noise of a quantile of q / 4 scores.

All numbers are int64 levels of a ``ScoreGrid``. Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from lp_oracle.at_scale.grid import token_blocks
from lp_oracle.at_scale.near_edges import middle_multipliers
from lp_oracle.problem import Array

SAMPLED_ROUNDS = 4
FULL_ROUNDS = 3

_STRIDES = (64, 16, 4)
_LEAST_LOAD = 4
_SEED = 0


def starting_multipliers(levels_MN: Array, top_k: int) -> Array:
    """beta (N,) after midpoint rounds on growing samples and on all tokens; 0 for top_k = N."""
    beta_N = np.zeros(levels_MN.shape[1], dtype=np.int64)
    if top_k == levels_MN.shape[1]:
        return beta_N
    for sample in _samples(levels_MN, top_k):
        beta_N = _rounds(sample, beta_N, top_k, SAMPLED_ROUNDS)
    return _rounds(levels_MN, beta_N, top_k, FULL_ROUNDS)


def _samples(levels_MN: Array, top_k: int) -> Iterator[Array]:
    """1/64, 1/16 and 1/4 of the tokens, nested; random ones, since batches can be periodic."""
    m, n = levels_MN.shape
    order = np.random.default_rng(_SEED).permutation(m)
    for count in (m // stride for stride in _STRIDES):
        if count * top_k >= _LEAST_LOAD * n:
            yield levels_MN[np.sort(order[:count])]


def _rounds(levels_MN: Array, beta_N: Array, top_k: int, rounds: int) -> Array:
    levels_NM = np.ascontiguousarray(levels_MN.T)
    for _ in range(rounds):
        alpha_M = middle_multipliers(levels_MN, beta_N, top_k)
        beta_N = _middle_of_experts(levels_NM, alpha_M, top_k)
    return beta_N


def _middle_of_experts(levels_NM: Array, alpha_M: Array, top_k: int) -> Array:
    """beta (N,): the middle of the interval of minimisers, then centred."""
    n, m = levels_NM.shape
    load = Fraction(m * top_k, n)
    ranks = m - math.floor(load) - 1, m - math.ceil(load)
    beta_N = np.empty(n, dtype=np.int64)
    for block in token_blocks(n, m):
        reduced = levels_NM[block] - alpha_M
        reduced.partition(ranks, axis=1)
        beta_N[block] = (reduced[:, ranks[0]] + reduced[:, ranks[1]]) // 2
    centred: Array = beta_N - int(beta_N.mean())
    return centred
