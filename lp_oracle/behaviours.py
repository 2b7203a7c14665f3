"""Pinned instances of what balancing does besides jamming: it rises, swings, waits and misaverages.

Like ``instances``, whose order of "smaller" is used here: integer scores, descents from beta = 0,
every value exact. Fractional loads with a rule that does not minimise; loads that grow more uneven
while the dual falls; a batch split over two ranks; a price war between near-ties.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from lp_oracle.descent import ExpertRule, TokenRule
from lp_oracle.problem import Array

Rows = tuple[tuple[int, ...], ...]


def _matrix(rows: Rows) -> Array:
    return np.array(rows, dtype=np.int64)


@dataclass(frozen=True)
class OffMinimiser:
    """A fractional load, and where each expert rule but the ceil(q)-th ends, whatever the token
    rule: ``ends`` are dual values that repeat for ever. ``start`` is the dual value at beta = 0.
    """

    rows: Rows
    top_k: int
    optimum: Fraction
    start: Fraction
    ends: Mapping[ExpertRule, Fraction]
    fact: str

    @property
    def scores(self) -> Array:
        """The scores as a new int64 array (M, N)."""
        return _matrix(self.rows)


@dataclass(frozen=True)
class UnevenLoads:
    """Loads (N,) at the start and after the first round, both with strict margins, and the dual
    value by round until the optimum is certified.
    """

    rows: Rows
    top_k: int
    token_rule: TokenRule
    expert_rule: ExpertRule
    optimum: Fraction
    loads: tuple[tuple[int, ...], ...]
    dual_values: tuple[Fraction, ...]
    fact: str

    @property
    def scores(self) -> Array:
        """The scores as a new int64 array (M, N)."""
        return _matrix(self.rows)


@dataclass(frozen=True)
class SplitBatch:
    """One update of Eq. 14 from b = 0, of the whole batch and as the mean over its two ``parts``.

    ``pooled`` and ``averaged`` are beta (N,), not centred, and the loads that they give.
    """

    rows: Rows
    top_k: int
    parts: tuple[tuple[int, ...], tuple[int, ...]]
    optimum: Fraction
    pooled: tuple[Fraction, ...]
    averaged: tuple[Fraction, ...]
    pooled_loads: tuple[int, ...]
    averaged_loads: tuple[int, ...]
    fact: str

    @property
    def scores(self) -> Array:
        """The scores as a new int64 array (M, N)."""
        return _matrix(self.rows)


@dataclass(frozen=True)
class PriceWar:
    """Scores ``size`` * ``wanted`` + ``near``: divided by ``size``, near-ties within 1/size.

    The optimum is ``wanted_optimum`` * size + ``near_optimum``, and beats every other assignment by
    1. The rules reach its dual value in round ``size``, after falling by 1 in each.
    """

    wanted: Rows
    near: Rows
    top_k: int
    token_rule: TokenRule
    expert_rule: ExpertRule
    wanted_optimum: int
    near_optimum: int
    fact: str

    def scores(self, size: int) -> Array:
        """The scores of one member as a new int64 array (M, N); ValueError for a size below 2."""
        if size < 2:
            raise ValueError(
                f"size = {size} must be at least 2: with 1 the near-ties are no nearer"
            )
        return size * _matrix(self.wanted) + _matrix(self.near)

    def optimum(self, size: int) -> int:
        """LP* of that member."""
        return self.wanted_optimum * size + self.near_optimum


FRACTION_OFF_MINIMISER = OffMinimiser(
    rows=((0, 0, 1), (0, 1, 0)),
    top_k=1,
    optimum=Fraction(4, 3),
    start=Fraction(2),
    ends=MappingProxyType(
        {"q+1": Fraction(2), "midpoint": Fraction(5, 3), "linear": Fraction(14, 9)}
    ),
    fact="With q = 2/3 every statistic but the ceil(q)-th ends above the optimum.",
)

FRACTION_RISES = OffMinimiser(
    rows=((0, 1, 1), (1, 0, 1)),
    top_k=1,
    optimum=Fraction(2),
    start=Fraction(2),
    ends=MappingProxyType(
        {"q+1": Fraction(8, 3), "midpoint": Fraction(7, 3), "linear": Fraction(20, 9)}
    ),
    fact="With q = 2/3 every statistic but the ceil(q)-th leaves the optimum that it starts at.",
)

UNEVEN_LOADS = UnevenLoads(
    rows=((0, 0, 2, 5), (0, 0, 3, 5), (0, 4, 3, 4), (2, 0, 2, 1)),
    top_k=2,
    token_rule="k+1",
    expert_rule="linear",
    optimum=Fraction(22),
    loads=((1, 1, 3, 3), (1, 1, 4, 2)),
    dual_values=(Fraction(27), Fraction(23), Fraction(22), Fraction(22), Fraction(22)),
    fact="The first update brings the dual nearer to the optimum and max/min load from 3 to 4.",
)

LOCAL_MEAN = SplitBatch(
    rows=((0, 1), (0, 2), (0, 2), (2, 0)),
    top_k=1,
    parts=((0, 1), (2, 3)),
    optimum=Fraction(6),
    pooled=(Fraction(0), Fraction(3, 2)),
    averaged=(Fraction(1, 2), Fraction(5, 4)),
    pooled_loads=(2, 2),
    averaged_loads=(1, 3),
    fact="The mean over two ranks of their quantiles is not the quantile of the batch.",
)

PRICE_WAR = PriceWar(
    wanted=((0, 0, 0, 1), (1, 1, 0, 0), (1, 1, 0, 0), (1, 1, 0, 0)),
    near=((0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q",
    wanted_optimum=3,
    near_optimum=2,
    fact="Three tokens bid for two experts, and outbid each other by the near-tie only.",
)
