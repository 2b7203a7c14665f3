"""Calls of the experts beyond the size of a tile, and at the sizes kernels have paths of their own.

A single seed decides each case, as in :mod:`properties.strategies.experts_seeded`.

Legend: M tokens, N experts, K top_k, L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, ExpertParameters
from properties.strategies.experts import ExpertInputs, Sizes, chosen_ids
from properties.strategies.experts_seeded import by_size, drawn_at, ranked
from properties.strategies.optimality import uniform_seeds
from properties.strategies.shapes import SEEDS

__all__ = ["ALIGNED", "LONGER", "LONG_SIZES", "SPLIT", "as_long_as_a_tile", "at_size"]

SCALES = (1.0, 1.0, 0.1)

# Rows and widths on both sides of the tiles and chunks that kernels work in.
LONG = (63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 300)
WIDE = ((31, 64), (64, 31), (65, 33), (33, 130), (130, 17), (64, 96), (128, 128), (1, 129))

LONG_SIZES = by_size(
    [
        *(
            Sizes(m, n, k, *widths)
            for m, (n, k), widths in product(LONG, ((1, 1), (2, 1), (3, 2), (7, 3), (5, 4)), WIDE)
            if m * n * widths[0] * widths[1] <= 3_000_000
        ),
        *(
            Sizes(m, n, k, *widths)
            for m, (n, k), widths in product(
                (9, 23, 40), ((16, 9), (17, 12), (33, 10), (20, 17)), ((31, 64), (65, 33), (7, 96))
            )
        ),
    ]
)

# Both widths multiples of 64, by way of 128 and not; and one inner dimension of many tiles.
ALIGNED = tuple(
    Sizes(3, 2, slots, *widths)
    for slots, widths in zip(
        (1, 1, 1, 1, 2), ((64, 64), (128, 128), (192, 64), (64, 192), (640, 4)), strict=True
    )
)

# Beyond 512 tokens, 512 experts, 256 hidden units and 17 slots; more tiles than a group of them;
# two of them exactly full; more slots than a block sorts, or 16 bits number; more tokens than
# float16 counts; more busy experts than multiprocessors, beside more tokens than 16, and more
# experts than three a thread; as many as bytes number; second tiles in all three directions.
LONGER = (
    *(Sizes(1030, 2, 1, 5, 3), Sizes(9, 20, 18, 5, 270)),
    *(Sizes(577, 1, 1, 3, 70), Sizes(128, 1, 1, 3, 2), Sizes(150, 64, 8, 3, 2)),
    *(Sizes(32800, 3, 2, 1, 1), Sizes(2100, 1, 1, 3, 2)),
    *(Sizes(18, 144, 9, 2, 2), Sizes(2, 896, 24, 2, 2)),
    *(Sizes(17, 256, 2, 3, 2), Sizes(130, 1, 1, 136, 144)),
)

# Sums so long that they are split; of one sign, which shows in what format they are added up.
SPLIT = (Sizes(3, 2, 2, 1088, 3), Sizes(2, 1, 1, 3, 1100))

# So many experts may be busy without all of them being so.
MANY_BUSY = 128

# Every how many seeds one is that long.
ONE_LONGER = 3


def as_long_as_a_tile(fewest_slots: int = 1) -> st.SearchStrategy[ExpertInputs]:
    """More rows and columns than a tile or a chunk, by one or a few; more slots than eight."""
    long, longer = (
        tuple(sizes for sizes in table if sizes.top_k >= fewest_slots)
        for table in (LONG_SIZES, by_size(LONGER))
    )

    def seeded(seed: int) -> ExpertInputs:
        sizes = ranked(seed, longer if seed % ONE_LONGER == ONE_LONGER - 1 else long)
        return drawn_at(np.random.default_rng(seed), sizes, SCALES)

    return uniform_seeds().map(seeded)


def at_size(long: int) -> st.SearchStrategy[tuple[ExpertInputs, ...]]:
    """One call of each aligned, longer and split size, and ``long`` of those about a tile.

    The sizes about a tile are drawn from as many parts of their table, small and large ones alike.
    """

    def seeded(seed: int) -> tuple[ExpertInputs, ...]:
        rng = np.random.default_rng(seed)
        each = (
            _all_busy(rng, drawn_at(rng, sizes, SCALES, ("any",))) for sizes in (*ALIGNED, *LONGER)
        )
        split = (_of_one_sign(rng, sizes) for sizes in SPLIT)
        ranks = (np.arange(long) + rng.random(long)) * (SEEDS / long)
        return *each, *split, *(drawn_at(rng, ranked(int(at), LONG_SIZES), SCALES) for at in ranks)

    return uniform_seeds().map(seeded)


def _all_busy(rng: np.random.Generator, inputs: ExpertInputs) -> ExpertInputs:
    """The last expert has a token; so has every other one where a table of 128 is too short."""
    experts, slots = len(inputs.parameters.gate_proj), inputs.expert_ids.size
    ids = np.array(inputs.expert_ids)
    if MANY_BUSY < experts <= slots:
        ids = (rng.permutation(experts)[np.arange(slots) % experts]).reshape(ids.shape)
    elif experts - 1 not in ids:
        ids[0, 0] = experts - 1
    return replace(inputs, expert_ids=ids)


def _of_one_sign(rng: np.random.Generator, sizes: Sizes) -> ExpertInputs:
    """No sum cancels, and no activation is near its caps."""
    m, n, k, latent, hidden = sizes

    def positive(*shape: int) -> Array:
        return rng.uniform(0.5, 1.0, shape)

    into, out = (n, hidden, latent), (n, latent, hidden)
    return ExpertInputs(
        x=positive(m, latent) / np.sqrt(latent),
        expert_ids=chosen_ids(rng, sizes, "any"),
        weights=positive(m, k),
        parameters=ExpertParameters(
            gate_proj=positive(*into) / np.sqrt(latent),
            up_proj=positive(*into) / np.sqrt(latent),
            down_proj=positive(*out) / np.sqrt(hidden),
        ),
        beta_gate=4.0,
        beta_up=25.0,
        cotangent=positive(m, latent),
    )
