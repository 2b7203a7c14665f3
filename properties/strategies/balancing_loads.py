"""Tokens that load every expert alike: what is left to change is the bias.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

import math

import numpy as np

from properties.protocol import Array

__all__ = ["equal_loads"]

# Scores of the wanted experts and of the others are 0.6 and more apart: far beyond any small bias.
WANTED, UNWANTED, NOISE = 3.0, -2.0, 0.25


def equal_loads(rng: np.random.Generator, num_experts: int, top_k: int, most: int) -> Array:
    """Logits (M, N) of at most ``most`` tokens, unless the fewest are more, each expert's load q.

    By how much an expert is wanted differs, and so do the required biases.
    """
    fewest = num_experts // math.gcd(num_experts, top_k)
    tokens = fewest * int(rng.integers(1, max(most // fewest, 1) + 1))
    places_MK = (np.arange(tokens)[:, None] * top_k + np.arange(top_k)) % num_experts
    logits = UNWANTED + NOISE * np.clip(rng.standard_normal((tokens, num_experts)), -2.0, 2.0)
    wanted = WANTED + NOISE * np.clip(rng.standard_normal((tokens, top_k)), -2.0, 2.0)
    np.put_along_axis(logits, places_MK, wanted, axis=1)
    shuffled: Array = logits[rng.permutation(tokens)]
    return shuffled
