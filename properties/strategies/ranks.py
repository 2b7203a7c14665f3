"""Counts and batches that show which rank a rule reads: experts that meet q exactly, or miss by 1.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N, always integral here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import seeds

# (K, N) that are not dyadic. With the first five, float32(M K/N) passes q at some integral q: with
# 1/56 = 16/896 first at M = 168.
RATIOS = (
    *((1, 56), (3, 10), (1, 7), (8, 60), (6, 160), (1, 3), (3, 7), (2, 5), (1, 48), (16, 896)),
    *((8, 16), (2, 8)),  # where m k / n is exact in floats, roundings of half a rank alternate
)
ELEMENTS = 50_000

WANTED, UNWANTED = 2.0, -2.0


@dataclass(frozen=True)
class RankInputs:
    """Experts that come short of q by one (-1 in ``surplus`` (N,)), meet it (0) or pass it (1).

    ``loads`` are several values of q for the same K/N.
    """

    top_k: int
    surplus: Array
    loads: tuple[int, ...]

    @property
    def num_experts(self) -> int:
        """N."""
        return int(self.surplus.shape[0])

    def tokens(self, load: int) -> int:
        """The number of tokens M whose target load q is that one."""
        return load * self.num_experts // self.top_k

    def logits(self, load: int) -> Array:
        """Two values (M, N): each token wants more than K experts, so that its cutoff is wanted.

        Expert j is wanted by q tokens, by q - 1, or, where it has a surplus, by all of them.
        """
        tokens = self.tokens(load)
        logits = np.full((tokens, self.num_experts), UNWANTED)
        first = 0
        for expert, surplus in enumerate(self.surplus):
            times = tokens if surplus > 0 else load + int(surplus)
            logits[np.arange(first, first + times) % tokens, expert] = WANTED
            first += times
        return logits


@dataclass(frozen=True)
class CountInputs:
    """Such experts as counts: q + surplus of each stand in bin ``near``, the rest in ``far``.

    Where ``spread`` is set, some of the former, fewer than q, stand in bin 0 instead.
    """

    experts: RankInputs
    num_bins: int
    near: int
    far: int
    spread: bool

    def counts(self, load: int) -> Array:
        """Counts (N, B), int64, of M tokens with that q."""
        before = load + self.experts.surplus
        aside = np.maximum(before - 1, 0) // 2 if self.spread else np.zeros_like(before)
        counts = np.zeros((self.experts.num_experts, self.num_bins), dtype=np.int64)
        counts[:, 0] += aside
        counts[:, self.near] += before - aside
        counts[:, self.far] += self.experts.tokens(load) - before
        return counts


@st.composite
def counts(draw: st.DrawFn) -> CountInputs:
    """Counts around q, from q = 1 to the largest whose M K an int32 holds: beyond 2^24 for N < 128.

    A float32 count stands still from 2^24 on, so q and q - 1 are one number to it.
    """
    top_k, num_experts = draw(st.sampled_from(RATIOS))
    step = top_k // math.gcd(top_k, num_experts)
    most = (2**31 - 1) // num_experts // step
    times = draw(st.lists(st.integers(1, 40), min_size=3, max_size=3, unique=True))
    times.append(draw(st.integers(1, most) | st.just(min(2**24 // step + 1, most))))
    surplus = np.random.default_rng(draw(seeds())).integers(-1, 2, num_experts)
    surplus[:3] = (-1, 0, 1)
    near = draw(st.integers(0, 8))
    return CountInputs(
        experts=RankInputs(top_k, surplus, tuple(step * time for time in times)),
        num_bins=draw(st.sampled_from([16, 64])),
        near=near,
        far=near + draw(st.integers(5, 7)),
        spread=draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn) -> RankInputs:
    """Batches around q, at two numbers of tokens."""
    top_k, num_experts = draw(st.sampled_from([r for r in RATIOS if _anchors(*r) + 2 <= r[1]]))
    step = top_k // math.gcd(top_k, num_experts)
    period = num_experts // math.gcd(top_k, num_experts)
    most = max(ELEMENTS // (period * num_experts), 3)
    times = draw(st.lists(st.integers(1, min(most, 40)), min_size=2, max_size=2, unique=True))
    surplus = np.zeros(num_experts, dtype=np.int64)
    surplus[: _anchors(top_k, num_experts)] = 1
    surplus[-1] = -1
    order = np.random.default_rng(draw(seeds())).permutation(num_experts)
    return RankInputs(top_k, surplus[order], tuple(step * time for time in times))


def _anchors(top_k: int, num_experts: int) -> int:
    """How many experts all tokens must want, so that each token wants more than K.

    The others are wanted by K (1 - anchors/N) per token on average, spread evenly.
    """
    return math.ceil(2 * num_experts / (num_experts - top_k))
