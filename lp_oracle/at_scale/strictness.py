"""Multipliers whose margins are strict, where the optimum is the only one.

Augmentation ends with the edges of a forest tight. If no other assignment is as good, there are
multipliers with p >= e > 0 where x = 1 and p <= -e where x = 0, for some e: potentials d with
d_v <= d_u + cost - e along every residual arc u -> v. They are shortest distances for costs lowered
by e, and exist unless a cycle of the residual graph, another assignment, costs less than e per arc.

Legend of shapes: V vertices, A arcs of the residual graph.
"""

from __future__ import annotations

import numpy as np

from lp_oracle.at_scale.augmentation import Augmentation
from lp_oracle.problem import Array

# In levels of 2^-48 of the largest score: e from about 4e-6 down to 1e-13 of it.
_MARGINS: tuple[int, ...] = tuple(1 << exponent for exponent in range(30, 4, -5))
_SWEEPS = 300


def make_strict(solved: Augmentation) -> int:
    """Shift the multipliers of a complete x until every margin is strict; the least one, or 0.

    0 means that nothing was changed: x is not the only optimum, or too nearly not.
    """
    if solved.parts > 1 or solved.top_k == solved.n:
        return 0
    tails, heads, cost_A = solved.arcs()
    order = np.argsort(heads, kind="stable")
    tails, heads, cost_A = tails[order], heads[order], cost_A[order]
    for margin in _MARGINS:
        distance_V = _distances(tails, heads, cost_A - margin, solved.m + solved.n)
        if distance_V is not None and np.ptp(distance_V) < solved.reach - margin:
            solved.shift(distance_V)
            return margin
    return 0


def _distances(tails: Array, heads: Array, cost_A: Array, vertices: int) -> Array | None:
    """Shortest distances (V,) from a vertex joined to all at cost 0 (Bellman and Ford).

    Arcs are sorted by head. None if they have not settled after many sweeps: for a negative cycle,
    or for very long paths.
    """
    starts = np.flatnonzero(np.diff(heads, prepend=-1))
    targets = heads[starts]
    distance_V = np.zeros(vertices, dtype=np.int64)
    for _ in range(_SWEEPS):
        nearer = np.minimum.reduceat(distance_V[tails] + cost_A, starts)
        if (nearer >= distance_V[targets]).all():
            return distance_V
        distance_V[targets] = np.minimum(distance_V[targets], nearer)
    return None
