"""Batches divided among ranks: who has which tokens, and how the world is arranged.

One uniform seed decides a case. The smallest seeds are the readable ones: two or three experts and
a few tokens, in eighths.

Legend: M tokens, N routed experts, K top_k, B histogram bins, W ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, ExpertParameters
from properties.strategies import experts_seeded, layer_seeded
from properties.strategies.balancing import BatchInputs
from properties.strategies.balancing_state import ALL_BUT
from properties.strategies.experts import ExpertInputs
from properties.strategies.layer_seeded import GradientInputs
from properties.strategies.optimality import READABLE_SEEDS, uniform_seeds

Choice = TypeVar("Choice")

# (N, K) with K < N, and the most tokens for each.
SIZES = (
    *((2, 1, 60), (3, 1, 60), (3, 2, 60), (4, 1, 60), (5, 2, 60), (7, 3, 60), (8, 2, 60)),
    *((16, 4, 60), (33, 5, 60), (64, 6, 60), (256, 8, 40), (896, 16, 12)),
)
READABLE_SIZES = ((2, 1), (3, 1), (3, 2))
BINS = (1000, 64, 16, 3, 2)
MOST_BINS = 60_000
SCALES = (1.0, 3.0, 0.1, 30.0, 1e-4)
ROUNDS = 2
MANY_TOKENS, SMALL_LAYER = 130, 400

# In one of how many cases of the experts, and of the layer, a token is NaN or infinite.
SPOILT = 4
SPOILT_LAYERS = 3
MOST_GROUPS = 4

# In one of how many cases there are more experts than a byte numbers, how many at least, and which
# projections are small enough for so many of them.
NUMEROUS = 8
MANY_EXPERTS = 400
MOST_NUMBERS = 64

# Tokens that a rank has counted: few, or all but three just past what 8, 11, 16 and 24 bits hold.
TOTALS = (0, 0, 1, 40, *(ALL_BUT + 2**bits + 1 for bits in (8, 11, 16, 24)))

# Token counts of a batch of which an update's traffic must not depend.
SWEEP = (64, 4096, 65_536)

__all__ = [
    "SWEEP",
    "BadToken",
    "LifeInputs",
    "ParallelExperts",
    "ParallelLayer",
    "RoundsInputs",
    "Split",
    "TrafficInputs",
    "lives",
    "parallel_experts",
    "parallel_layers",
    "rounds",
    "split_of",
    "traffic",
]


@dataclass(frozen=True)
class Split:
    """Ranks ``tensor_parallel`` at a time have the same tokens; ``rows`` are theirs, by group.

    Each entry of ``rows`` lists a group's micro-batches, each an array of row numbers. Experts are
    divided among ``expert_parallel`` ranks, or the whole world where that is None.
    """

    world: int
    tensor_parallel: int
    expert_parallel: int | None
    rows: tuple[tuple[Array, ...], ...]

    def parts(self, rank: int) -> tuple[Array, ...]:
        """The micro-batches of a rank."""
        return self.rows[rank // self.tensor_parallel]

    def own(self, rank: int) -> Array:
        """All rows of a rank."""
        return np.concatenate(self.parts(rank))

    @property
    def firsts(self) -> range:
        """The first rank of each group."""
        return range(0, self.world, self.tensor_parallel)


@dataclass(frozen=True)
class RoundsInputs:
    """Batches between updates, each divided anew; ``seed`` decides how, in a world of any size.

    The batches' bias is where the balancer starts; later batches meet the one it has made.
    """

    batches: tuple[BatchInputs, ...]
    num_bins: int
    seed: int


@dataclass(frozen=True)
class LifeInputs:
    """A batch, and the ``totals`` of counts that each of up to four groups of ranks may load.

    ``numbers`` says in which bins they are (see ``counts_around``), ``seed`` who has which tokens.
    """

    batch: BatchInputs
    num_bins: int
    totals: tuple[int, ...]
    numbers: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class TrafficInputs:
    """Sizes of a balancer, and a seed of logits and of how they are divided."""

    num_experts: int
    top_k: int
    num_bins: int
    seed: int


@dataclass(frozen=True)
class BadToken:
    """A token, and the NaN or infinity that all of its numbers become."""

    row: int
    value: float


@dataclass(frozen=True)
class ParallelExperts:
    """One call of the experts, a seed of how its tokens are divided, and perhaps a bad token."""

    inputs: ExpertInputs
    seed: int
    bad: BadToken | None = None


@dataclass(frozen=True)
class ParallelLayer:
    """One call of the layer, forward and backward, a seed of how its tokens are divided.

    Perhaps there is a bad token, among those of x with its leading axes flattened.
    """

    inputs: GradientInputs
    seed: int
    bad: BadToken | None = None

    @property
    def batched(self) -> bool:
        """Whether each rank is given its tokens as a batch of one sequence."""
        return self.seed // 4 % 2 == 1


def rounds() -> st.SearchStrategy[RoundsInputs]:
    """Two batches of one balancer, with ties, masks and hot experts, tokens perhaps none."""
    return uniform_seeds().map(_rounds)


def lives() -> st.SearchStrategy[LifeInputs]:
    """Small balancers; half of the groups load counts that few formats hold, some load none."""

    def seeded(seed: int) -> LifeInputs:
        rng = np.random.default_rng(seed)
        num_experts, top_k = _one_of(rng, ((2, 1), (3, 1), (3, 2), (5, 2), (8, 3)))
        logits = rng.integers(-8, 9, (int(rng.integers(1, 9)), num_experts)) / 4.0
        bias = np.round(rng.standard_normal(num_experts) * _one_of(rng, (0.0, 1.0)) * 8.0) / 8.0
        totals = [_one_of(rng, TOTALS) for _ in range(MOST_GROUPS)]
        numbers = [int(number) for number in rng.integers(6**8, size=MOST_GROUPS)]
        batch = BatchInputs(logits, bias, top_k)
        return LifeInputs(batch, _one_of(rng, (4, 2, 64)), tuple(totals), tuple(numbers), seed)

    return uniform_seeds().map(seeded)


def traffic() -> st.SearchStrategy[TrafficInputs]:
    """A few experts, whose logits stay small at 65,536 tokens."""

    def sized(seed: int) -> TrafficInputs:
        rng = np.random.default_rng(seed)
        num_experts = int(rng.integers(2, 9))
        top_k = int(rng.integers(1, num_experts))
        return TrafficInputs(num_experts, top_k, _one_of(rng, (64, 100, 1000, 2)), seed)

    return uniform_seeds().map(sized)


def parallel_experts() -> st.SearchStrategy[ParallelExperts]:
    """Any number of experts, whoever they are crowded at, and at times many tokens.

    In one of four cases a token turns bad, if there are others; in one of eight, if
    experts are small, there are 400 or more of them.
    """
    calls = experts_seeded.any_call_or_many_tokens()
    return st.builds(_varied, calls, uniform_seeds())


def _varied(inputs: ExpertInputs, seed: int) -> ParallelExperts:
    spoilt = seed % SPOILT == SPOILT - 1
    few = inputs.parameters.gate_proj[0].size <= MOST_NUMBERS
    if seed % NUMEROUS == 1 and few:
        inputs = _with_more_experts(np.random.default_rng((seed, 3)), inputs)
    return ParallelExperts(inputs, seed, _bad_token(seed, len(inputs.x)) if spoilt else None)


def _with_more_experts(rng: np.random.Generator, inputs: ExpertInputs) -> ExpertInputs:
    """Copies of the experts, each by a factor of its own; ids of a token stay different."""
    experts = len(inputs.parameters.gate_proj)
    copies = -(-MANY_EXPERTS // experts)
    factors = rng.choice([-1.0, -0.5, 0.5, 1.0], (copies * experts, 1, 1))
    parts = {
        part.name: np.concatenate([getattr(inputs.parameters, part.name)] * copies)
        for part in fields(inputs.parameters)
    }
    parts["down_proj"] = factors * parts["down_proj"]
    copy_M1 = rng.integers(copies // 2, copies, (len(inputs.expert_ids), 1))
    return replace(
        inputs,
        parameters=ExpertParameters(**parts),
        expert_ids=inputs.expert_ids + experts * copy_M1,
    )


def _bad_token(seed: int, tokens: int) -> BadToken | None:
    """One of these tokens, if there are others."""
    rng = np.random.default_rng((seed, 2))
    if tokens < 2:
        return None
    return BadToken(int(rng.integers(tokens)), _one_of(rng, (np.nan, np.inf, -np.inf)))


def parallel_layers() -> st.SearchStrategy[ParallelLayer]:
    """Any layer, a third of them so small that eps decides, and at times many tokens.

    In one of three cases a token turns bad, if there are others.
    """
    return st.builds(_with_many_tokens, layer_seeded.gradients(), uniform_seeds())


def _with_many_tokens(inputs: GradientInputs, seed: int) -> ParallelLayer:
    """Small layers, one in four of them with 130 tokens: its own, under changing signs."""
    layer, width = inputs.layer, inputs.layer.x.shape[-1]
    sizes = layer.parameters.gate_weight.size + layer.parameters.experts.gate_proj.size
    if seed % 4 == 3 and layer.x.size and sizes <= SMALL_LAYER:
        rng = np.random.default_rng((seed, 1))
        signs = rng.choice([-1.0, 1.0], (MANY_TOKENS, width))
        x, cotangent = (
            signs * np.resize(np.reshape(array, (-1, width)), (MANY_TOKENS, width))
            for array in (layer.x, inputs.cotangent)
        )
        inputs = replace(inputs, layer=replace(layer, x=x), cotangent=cotangent)
    spoilt, x = seed % SPOILT_LAYERS == 0, inputs.layer.x
    bad = _bad_token(seed, x.size // x.shape[-1]) if spoilt else None
    return ParallelLayer(inputs, seed, bad)


def split_of(seed: int, tokens: int, world: int, *, arranged: bool) -> Split:
    """How ``tokens`` are divided; replicated, and experts grouped, only where ``arranged``.

    Evenly, unevenly, with some groups empty, or all to one; in the order of the batch or mixed;
    in one to three micro-batches, empty ones included.
    """
    rng = np.random.default_rng((seed, world))
    replicas, sharing = 1, None
    if arranged:
        replicas = _one_of(rng, (1, 1, 2, world))
        sharing = _one_of(rng, (None, 1, 2, 2, world))
    counts = _counts(rng, tokens, world // replicas)
    order = np.arange(tokens) if rng.random() < 0.5 else rng.permutation(tokens)
    own = np.split(order, np.cumsum(counts)[:-1])
    rows = tuple(tuple(np.split(part, _cuts(rng, len(part)))) for part in own)
    return Split(world, replicas, sharing, rows)


def _counts(rng: np.random.Generator, tokens: int, groups: int) -> Array:
    kind = _one_of(rng, ("even", "uneven", "uneven", "some empty", "one"))
    if kind == "even":
        return np.diff(np.arange(groups + 1) * tokens // groups)
    shares = rng.dirichlet(np.ones(groups))
    if kind == "some empty":
        shares[rng.permutation(groups)[: max(1, groups // 2)]] = 0.0
    elif kind == "one":
        shares = np.arange(groups) == rng.integers(groups)
    total = shares.sum()
    even = np.full(groups, 1.0 / groups)
    counts: Array = rng.multinomial(tokens, shares / total if total > 0.0 else even)
    return counts


def _cuts(rng: np.random.Generator, rows: int) -> Array:
    cuts: Array = np.sort(rng.integers(0, rows + 1, int(rng.integers(3))))
    return cuts


def _rounds(seed: int) -> RoundsInputs:
    rng = np.random.default_rng(seed)
    if seed < READABLE_SEEDS:
        num_experts, top_k = READABLE_SIZES[seed * len(READABLE_SIZES) // READABLE_SEEDS]
        batches = [_readable(rng, num_experts, top_k) for _ in range(ROUNDS)]
        return RoundsInputs(tuple(batches), _one_of(rng, BINS), seed)
    num_experts, top_k, most = _one_of(rng, SIZES)
    bias = rng.standard_normal(num_experts) * _one_of(rng, (0.0, 0.1, 1.0))
    drawn = [_batch(rng, num_experts, top_k, most) for _ in range(ROUNDS)]
    batches = [BatchInputs(logits, bias, top_k, mask) for logits, mask in drawn]
    fits = tuple(bins for bins in BINS if bins * num_experts <= MOST_BINS)
    return RoundsInputs(tuple(batches), _one_of(rng, fits), seed)


def _readable(rng: np.random.Generator, num_experts: int, top_k: int) -> BatchInputs:
    tokens = int(rng.integers(0, 5))
    logits = rng.integers(-8, 9, (tokens, num_experts)) / 8.0
    mask = rng.random(tokens) < 0.7 if rng.random() < 0.3 else None
    return BatchInputs(logits, np.zeros(num_experts), top_k, mask)


def _batch(
    rng: np.random.Generator, num_experts: int, top_k: int, most: int
) -> tuple[Array, Array | None]:
    """Logits (M, N) and a mask (M,); M as it comes, or with an integer load."""
    tokens = int(rng.integers(0, most + 1))
    step = num_experts // math.gcd(num_experts, top_k)
    if step <= most and rng.random() < 0.5:
        tokens = step * int(rng.integers(1, most // step + 1))
    logits = rng.standard_normal((tokens, num_experts)) * _one_of(rng, SCALES)
    logits = logits + np.linspace(1.5, -1.5, num_experts) * _one_of(rng, (0.0, 0.0, 1.0))
    if rng.random() < 0.25:
        logits = np.round(logits)
    mask = None
    if rng.random() < 0.5:
        mask = rng.random(tokens) < _one_of(rng, (0.7, 0.7, 0.1, 0.0))
        logits[~mask] = np.linspace(9.0, -9.0, num_experts)
    return logits, mask


def _one_of(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]
