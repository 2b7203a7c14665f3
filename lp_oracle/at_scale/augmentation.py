"""Augmentation: from good multipliers and nearly exact loads to the optimum.

With multipliers alpha, beta the margins p = s - alpha - beta decide every edge but those with
p = 0: x = 1 where p > 0, x = 0 where p < 0. What is missing for optimality are rows of sum k and
columns of sum q. A vertex has *excess* if a unit must leave it: an expert with too many tokens, a
token with too few experts. Units travel along residual arcs,

    expert j -> token i   where x_ij > 0   (i gives j up)    at cost  p_ij >= 0
    token i -> expert j   where x_ij < 1   (i takes j)       at cost -p_ij >= 0

from vertices with excess to vertices with the opposite. A phase finds the distances d from all
excess at once (Dijkstra), adds d to alpha and subtracts it from beta, which keeps all costs >= 0
and makes all shortest paths cost 0, and then sends as much as fits along arcs of cost 0 (maximum
flow). This is the primal-dual method for minimum cost flow of Ford and Fulkerson (1962). It ends
with an optimum for every load and any ties; for q = a / g in lowest terms a unit is 1/g of an edge.

A phase looks at near edges only: within their reach no path can use another.

Legend of shapes: M tokens, N routed experts, V = M + N vertices, tokens first, E near edges, A arcs
of the residual graph.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy  # which imports its parts when they are first used

from lp_oracle.at_scale.grid import token_blocks
from lp_oracle.at_scale.near_edges import gather_near_edges, middle_multipliers
from lp_oracle.problem import Array

# Shortest paths are computed in float64, which holds integers exactly up to 2^53.
LARGEST = 2**52

# At first; the work of a phase grows with it, and the number of times that all scores are looked
# through shrinks.
NEAR_PER_TOKEN = 5

# Edges that served for fewer phases than this were too few of them.
FEW_PHASES = 4

PATIENCE = 32


class OverflowingMultipliersError(ArithmeticError):
    """Multipliers outgrew the integers that are computed with exactly; use coarser levels."""


class Augmentation:
    """Multipliers in levels, and an x that satisfies complementary slackness but lacks units.

    ``alpha`` (M,) and ``beta`` (N,) are int64. On the near ``edges`` x is ``units`` (E,) / parts;
    elsewhere it is decided by the sign of p. ``excess`` (V,) is in units. ``phases`` counts the
    work.
    """

    def __init__(self, levels_MN: Array, top_k: int, parts: int, beta_N: Array) -> None:
        """Start at beta, with every alpha_i at the middle of its interval.

        Raises ValueError if the units do not fit the 32 bits of the flow solver.
        """
        self.levels = levels_MN
        self.m, self.n = levels_MN.shape
        self.top_k, self.parts = top_k, parts
        if self.m * top_k * parts >= 2**31:
            raise ValueError(
                f"{self.m} tokens * {top_k} experts in parts of 1/{parts} exceed 2^31 units of "
                "flow; use fewer tokens, or a number of them that makes m * top_k / n an integer"
            )
        self.alpha = middle_multipliers(levels_MN, beta_N, top_k)
        self.beta = beta_N
        self.phases = 0
        self.edges = gather_near_edges(levels_MN, self.alpha, self.beta, NEAR_PER_TOKEN)
        self.units = np.where(self.margins() > 0, parts, 0)
        self.excess = self._excess()

    def complete(self, progress: Callable[[str], None], *, patient: bool) -> bool:
        """Run phases until nothing is missing: then x and the multipliers are optimal.

        Unless ``patient``, give up, and return False, once ``PATIENCE`` phases have moved less than
        an eighth of what was missing. Raises OverflowingMultipliersError.
        """
        per_token, phases_here, before = NEAR_PER_TOKEN, 0, int(self.parts * self.m * self.n)
        while (missing := int(np.maximum(self.excess, 0).sum())) > 0:
            progress(f"phase {self.phases}: {missing} units to move")
            reach = self.reach
            if reach >= 0 and self._phase(reach):
                phases_here += 1
                if self.phases % PATIENCE == 0:
                    if not patient and 8 * missing > 7 * before:
                        return False
                    before = missing
                continue
            if phases_here < FEW_PHASES:
                per_token *= 2
            self._gather(per_token)
            phases_here = 0
        return True

    @property
    def reach(self) -> int:
        """Edges that are not near have margins beyond this, on their old side of zero."""
        return self.edges.reach(self.alpha, self.beta)

    def margins(self) -> Array:
        """p of the near edges, (E,)."""
        return self.edges.margins(self.levels, self.alpha, self.beta)

    def arcs(self) -> tuple[Array, Array, Array]:
        """Tail, head and cost (A,) of the residual arcs of the near edges."""
        margin_E = self.margins()
        takes, gives = self.units < self.parts, self.units > 0
        token, expert = self.edges.token, self.m + self.edges.expert
        tails = np.concatenate([token[takes], expert[gives]])
        heads = np.concatenate([expert[takes], token[gives]])
        return tails, heads, np.concatenate([-margin_E[takes], margin_E[gives]])

    def shift(self, distance_V: Array) -> None:
        """Add d to alpha and subtract it from beta: an arc u -> v then costs d_u - d_v more."""
        self.alpha = self.alpha + distance_V[: self.m]
        self.beta = self.beta - distance_V[self.m :]
        if max(np.abs(self.alpha).max(), np.abs(self.beta).max()) >= LARGEST:
            raise OverflowingMultipliersError("the multipliers need more than 52 bits")

    def assignment(self) -> Array:
        """x (M, N): booleans for parts = 1, else float64 multiples of 1 / parts."""
        x_MN: Array = np.empty(self.levels.shape, dtype=np.bool_ if self.parts == 1 else np.float64)
        for block in token_blocks(self.m, self.n):
            x_MN[block] = self.levels[block] - self.alpha[block, None] > self.beta
        x_MN[self.edges.token, self.edges.expert] = self.units / self.parts
        return x_MN

    def _phase(self, reach: int) -> bool:
        """Move some units, if any excess can get where it is missing within ``reach``."""
        tails, heads, cost_A = self.arcs()
        size = self.m + self.n
        graph = scipy.sparse.csr_array(
            (cost_A.astype(np.float64), (tails, heads)), shape=(size, size)
        )
        sources = np.flatnonzero(self.excess > 0)
        distance_V = scipy.sparse.csgraph.dijkstra(
            graph, indices=sources, min_only=True, limit=float(reach)
        )
        arrived = distance_V[self.excess < 0]
        arrived = arrived[np.isfinite(arrived)]
        if not arrived.size:
            return False
        self.shift(np.minimum(distance_V, arrived.max()).astype(np.int64))
        self._flow()
        self.phases += 1
        return True

    def _flow(self) -> None:
        """Send as much as fits along arcs of cost 0."""
        tight = np.flatnonzero(self.margins() == 0)
        token, expert = self.edges.token[tight], self.m + self.edges.expert[tight]
        vertices = np.arange(self.m + self.n)
        source, sink = self.m + self.n, self.m + self.n + 1
        tails = np.concatenate([token, expert, np.full_like(vertices, source), vertices])
        heads = np.concatenate([expert, token, vertices, np.full_like(vertices, sink)])
        ends = np.maximum(self.excess, 0), np.maximum(-self.excess, 0)
        room = np.concatenate([self.parts - self.units[tight], self.units[tight], *ends])
        used = room > 0
        graph = scipy.sparse.csr_array(
            (room[used].astype(np.int32), (tails[used], heads[used])), shape=(sink + 1, sink + 1)
        )
        flow = scipy.sparse.csgraph.maximum_flow(graph, source, sink).flow
        self.units[tight] += np.asarray(flow[token, expert]).ravel()
        self.excess = self._excess()

    def _gather(self, per_token: int) -> None:
        """Choose anew which edges are near; x stays what it is."""
        tied = np.flatnonzero(self.margins() == 0)
        token, expert, units = self.edges.token[tied], self.edges.expert[tied], self.units[tied]
        self.edges = gather_near_edges(self.levels, self.alpha, self.beta, per_token)
        self.units = np.where(self.margins() > 0, self.parts, 0)
        self.units[self.edges.positions_of(token, expert)] = units
        self.excess = self._excess()

    def _excess(self) -> Array:
        token_units = np.bincount(self.edges.token, self.units, self.m).astype(np.int64)
        expert_units = np.bincount(self.edges.expert, self.units, self.n).astype(np.int64)
        wanted = self.m * self.top_k * self.parts // self.n
        lacking_M = self.parts * (self.top_k - self.edges.row_sums) - token_units
        beyond_N = self.parts * self.edges.column_sums + expert_units - wanted
        return np.concatenate([lacking_M, beyond_N])
