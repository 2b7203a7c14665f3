"""Sizes of a layer and of a finer one at the same cost.

Legend: M tokens, N routed experts, K top_k, D the width of the coarse layer's experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from properties.strategies.optimality import uniform_seeds


@dataclass(frozen=True)
class LedgerInputs:
    """A layer of N experts of which each token takes K, split ``groups`` times as fine."""

    experts: int
    top_k: int
    groups: int
    tokens: int
    width: int

    @property
    def is_small(self) -> bool:
        """Whether all choices of the finer layer can be listed."""
        return self.groups * self.experts <= 12


def sizes() -> st.SearchStrategy[LedgerInputs]:
    """Half of them small enough to list every choice; the others up to 896 experts and 8 groups."""

    def seeded(seed: int) -> LedgerInputs:
        rng = np.random.default_rng(seed)
        if seed % 2:
            groups = int(rng.integers(1, 4))
            experts = int(rng.integers(1, 12 // groups + 1))
        else:
            groups = int(rng.integers(1, 9))
            experts = (2, 8, 112, 255, 448, 896)[int(rng.integers(6))]
        return LedgerInputs(
            experts=experts,
            top_k=int(rng.integers(0, min(experts, 32) + 1)),
            groups=groups,
            tokens=int(rng.integers(0, 5)),
            width=groups * int(rng.integers(1, 9)),
        )

    return uniform_seeds().map(seeded)
