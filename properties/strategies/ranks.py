"""Counts and batches that show which rank a rule reads: experts that meet q exactly, or miss by 1.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N, always integral here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.optimality import uniform_seeds
from properties.strategies.rank_mistakes import END, load_step, loads_that_show
from properties.strategies.shapes import SEEDS

# (K, N) of published models.
PUBLISHED = ((6, 64), (8, 256), (8, 384), (10, 512), (22, 512), (16, 896))

# (K, N) by size. Where m k/n is exact in floats, as with (2, 8), a half rank is rounded both ways.
# In float64, each of (14, 48), (15, 48), (20, 48) and (22, 60) shows a mistake that others do not.
RATIOS = (
    *((1, 3), (2, 5), (1, 7), (3, 7), (2, 8), (3, 10), (8, 16), (1, 48), (14, 48), (15, 48)),
    *((20, 48), (1, 56), (8, 60), (22, 60), (6, 64), (6, 160), (8, 384), (22, 512), (16, 896)),
    *((16, 1024), (22, 1100)),
)
ELEMENTS, MOST_EXPERTS = 50_000, 896
LEAST_BINS = 16

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
    ``asked_bins`` is the number of bins to ask for; an implementation may have another of its own,
    of at least ``LEAST_BINS``.
    """

    experts: RankInputs
    asked_bins: int
    near: int
    far: int
    spread: bool

    def counts(self, load: int, num_bins: int) -> Array:
        """Counts (N, B), int64, of M tokens with that q."""
        before = load + self.experts.surplus
        aside = np.maximum(before - 1, 0) // 2 if self.spread else np.zeros_like(before)
        counts = np.zeros((self.experts.num_experts, num_bins), dtype=np.int64)
        counts[:, 0] += aside
        counts[:, self.near] += before - aside
        counts[:, self.far] += self.experts.tokens(load) - before
        return counts


def counts() -> st.SearchStrategy[CountInputs]:
    """Counts around three small q, at two where mistakes show, at any q, and just past 2^24.

    The smaller the seed, the fewer experts.
    """

    def seeded(seed: int) -> CountInputs:
        rng = np.random.default_rng(seed)
        top_k, num_experts = RATIOS[seed * len(RATIOS) // SEEDS]
        step = load_step(top_k, num_experts)
        showing = list(loads_that_show(rng, top_k, num_experts).values())
        loads = [step * int(times) for times in 1 + rng.permutation(40)[:3]]
        loads += [showing[i] for i in rng.permutation(len(showing))[:2]]
        loads.append(step * int(rng.integers(1, END // step + 1)))
        loads.append(_past_the_end(step))
        return _counts(rng, top_k, num_experts, loads)

    return uniform_seeds().map(seeded)


def published_counts() -> st.SearchStrategy[tuple[CountInputs, ...]]:
    """For each published k/n: the least q, one at which each mistake shows, and the two about 2^24.

    Nothing of this is left to chance, except which of the loads that show a mistake is taken.
    """

    def seeded(seed: int) -> tuple[CountInputs, ...]:
        rng = np.random.default_rng(seed)
        drawn = []
        for top_k, num_experts in PUBLISHED:
            step = load_step(top_k, num_experts)
            showing = loads_that_show(rng, top_k, num_experts)
            loads = dict.fromkeys([step, *showing.values(), (END - 1) // step * step])
            drawn.append(_counts(rng, top_k, num_experts, [*loads, _past_the_end(step)]))
        return tuple(drawn)

    return uniform_seeds().map(seeded)


def _counts(
    rng: np.random.Generator, top_k: int, num_experts: int, loads: list[int]
) -> CountInputs:
    surplus = rng.integers(-1, 2, num_experts)
    surplus[:3] = (-1, 0, 1)
    near = int(rng.integers(0, 9))
    return CountInputs(
        experts=RankInputs(top_k, surplus, tuple(loads)),
        asked_bins=int(rng.choice([LEAST_BINS, 64])),
        near=near,
        far=near + int(rng.integers(5, 8)),
        spread=bool(rng.integers(2)),
    )


def _past_the_end(step: int) -> int:
    """The first odd load beyond 2^24, if there are odd ones: no float32 is equal to it."""
    times = END // step + 1
    return step * (times if times % 2 else times + 1)


def batches() -> st.SearchStrategy[RankInputs]:
    """Batches around q, at two numbers of tokens; the smaller the seed, the fewer experts."""
    ratios = [r for r in RATIOS if _anchors(*r) + 2 <= r[1] <= MOST_EXPERTS]

    def seeded(seed: int) -> RankInputs:
        rng = np.random.default_rng(seed)
        top_k, num_experts = ratios[seed * len(ratios) // SEEDS]
        step = load_step(top_k, num_experts)
        period = num_experts // math.gcd(top_k, num_experts)
        most = min(max(ELEMENTS // (period * num_experts), 2), 40)
        times = 1 + rng.permutation(most)[:2]
        surplus = np.zeros(num_experts, dtype=np.int64)
        surplus[: _anchors(top_k, num_experts)] = 1
        surplus[-1] = -1
        order = rng.permutation(num_experts)
        return RankInputs(top_k, surplus[order], tuple(step * int(time) for time in times))

    return uniform_seeds().map(seeded)


def _anchors(top_k: int, num_experts: int) -> int:
    """How many experts all tokens must want, so that each token wants more than K.

    The others are wanted by K (1 - anchors/N) per token on average, spread evenly.
    """
    return math.ceil(2 * num_experts / (num_experts - top_k))
