"""The edges whose margin p = s - alpha - beta is near zero: all that late work has to look at.

Multipliers that have drifted by less than ``within`` since the edges were gathered cannot have
changed the sign of the margin of another edge: x stays 1 where p > within, 0 where p < -within.

All numbers are int64 levels of a ``ScoreGrid``. Legend of shapes: M tokens, N routed experts, E
near edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lp_oracle.at_scale.grid import token_blocks
from lp_oracle.problem import Array

# Beyond any margin: an edge that is within this is any edge.
EVERYWHERE = 2**60

_SAMPLED_TOKENS = 512


@dataclass(frozen=True, eq=False)
class NearEdges:
    """The edges with abs(p) <= ``within`` when the multipliers were ``alpha`` and ``beta``.

    ``token`` and ``expert`` (E,) name them, in the order of the matrix. ``row_sums`` (M,) and
    ``column_sums`` (N,) count the edges with p > within.
    """

    token: Array
    expert: Array
    within: int
    row_sums: Array
    column_sums: Array
    alpha: Array
    beta: Array

    def reach(self, alpha_M: Array, beta_N: Array) -> int:
        """All other edges have margins beyond this, of their old sign, at these multipliers."""
        moved_M, moved_N = self.alpha - alpha_M, self.beta - beta_N
        drift = max(moved_M.max() + moved_N.max(), -(moved_M.min() + moved_N.min()))
        return int(self.within - drift)

    def margins(self, levels_MN: Array, alpha_M: Array, beta_N: Array) -> Array:
        """p (E,) at these multipliers."""
        p: Array = levels_MN[self.token, self.expert] - alpha_M[self.token] - beta_N[self.expert]
        return p

    def positions_of(self, token: Array, expert: Array) -> Array:
        """Where the edges named by ``token`` and ``expert`` are found among these; all must be."""
        n = len(self.beta)
        return np.searchsorted(self.token * n + self.expert, token * n + expert)


def gather_near_edges(levels_MN: Array, alpha_M: Array, beta_N: Array, per_token: int) -> NearEdges:
    """About ``per_token`` edges per token, those of the least abs(p), and all edges with p = 0."""
    within = _width(levels_MN, alpha_M, beta_N, per_token)
    tokens, experts, row_sums = [], [], []
    column_sums = np.zeros(levels_MN.shape[1], dtype=np.int64)
    for block, p in _margin_blocks(levels_MN, alpha_M, beta_N):
        above = p > within
        row_sums.append(np.count_nonzero(above, axis=1))
        column_sums += np.count_nonzero(above, axis=0)
        token, expert = np.nonzero(np.abs(p, out=p) <= within)
        tokens.append(token + block.start)
        experts.append(expert)
    return NearEdges(
        token=np.concatenate(tokens),
        expert=np.concatenate(experts),
        within=within,
        row_sums=np.concatenate(row_sums),
        column_sums=column_sums,
        alpha=alpha_M,
        beta=beta_N,
    )


def middle_multipliers(levels_MN: Array, beta_N: Array, top_k: int) -> Array:
    """alpha (M,): the middle between the k-th and (k+1)-th largest of s_i - beta.

    For k = N, where every edge is chosen, just below the least.
    """
    m, n = levels_MN.shape
    alpha_M = np.empty(m, dtype=np.int64)
    for block in token_blocks(m, n):
        reduced = levels_MN[block] - beta_N
        if top_k == n:
            alpha_M[block] = reduced.min(axis=1) - 1
            continue
        reduced.partition((n - top_k - 1, n - top_k), axis=1)
        alpha_M[block] = (reduced[:, n - top_k - 1] + reduced[:, n - top_k]) // 2
    return alpha_M


def _margin_blocks(
    levels_MN: Array, alpha_M: Array, beta_N: Array
) -> Iterator[tuple[slice, Array]]:
    for block in token_blocks(*levels_MN.shape):
        p = levels_MN[block] - beta_N
        p -= alpha_M[block, None]
        yield block, p


def _width(levels_MN: Array, alpha_M: Array, beta_N: Array, per_token: int) -> int:
    """The quantile of abs(p) over evenly spaced tokens that leaves so many edges per token."""
    m, n = levels_MN.shape
    if per_token >= n:
        return EVERYWHERE
    rows = np.arange(0, m, max(1, m // _SAMPLED_TOKENS))
    p = levels_MN[rows] - alpha_M[rows, None] - beta_N
    sizes = np.abs(p, out=p).ravel()
    rank = len(rows) * per_token
    return int(np.partition(sizes, rank)[rank])
