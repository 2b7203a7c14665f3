"""Oracles for the balanced assignment problem that share nothing with each other or with lp_oracle.

All take integer scores, so that their values can be compared exactly; all return x in whole parts
of 1/g, where q = a/g in lowest terms: x g, integers.

Legend of shapes: M tokens, N routed experts, K top_k; q = M K / N.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog

Array = NDArray[Any]


def load_of(scores_MN: Array, top_k: int) -> Fraction:
    m, n = scores_MN.shape
    return Fraction(m * top_k, n)


def worth(scores_MN: Array, top_k: int, parts_MN: Array) -> Fraction:
    """sum s x of a feasible x; AssertionError if it is not feasible."""
    load = load_of(scores_MN, top_k)
    parts = load.denominator
    assert (parts_MN >= 0).all()
    assert (parts_MN <= parts).all()
    assert (parts_MN.sum(axis=1) == top_k * parts).all()
    assert (parts_MN.sum(axis=0) == load.numerator).all()
    return Fraction(int((scores_MN * parts_MN).sum()), parts)


def brute_force(scores_MN: Array, top_k: int) -> Array:
    """The best of all matrices of whole parts whose rows and columns have the right sums."""
    m, n = scores_MN.shape
    load = load_of(scores_MN, top_k)
    parts = load.denominator
    rows = [
        row for row in itertools.product(range(parts + 1), repeat=n) if sum(row) == top_k * parts
    ]
    matrices = (np.array(choice) for choice in itertools.product(rows, repeat=m))
    feasible = (x_MN for x_MN in matrices if (x_MN.sum(axis=0) == load.numerator).all())
    return max(feasible, key=lambda x_MN: int((scores_MN * x_MN).sum()))


def copied_columns(scores_MN: Array, top_k: int) -> Array:
    """Hungarian method on K copies of every token and q of every expert; see OPT-COPIES."""
    m, n = scores_MN.shape
    tokens = np.repeat(np.arange(m), top_k)
    experts = np.repeat(np.arange(n), int(load_of(scores_MN, top_k)))
    rows, columns = linear_sum_assignment(scores_MN[tokens][:, experts], maximize=True)
    counts_MN = np.zeros((m, n), dtype=np.int64)
    for row, column in zip(rows, columns, strict=True):
        counts_MN[tokens[row], experts[column]] += 1
    return counts_MN


def min_cost_flow(scores_MN: Array, top_k: int) -> Array:
    """OR-tools: K g units leave every token, a arrive at every expert, at most g along an edge.

    Skips the test where OR-tools is not installed.
    """
    flows = pytest.importorskip("ortools.graph.python.min_cost_flow")
    m, n = scores_MN.shape
    load = load_of(scores_MN, top_k)
    parts = load.denominator
    network = flows.SimpleMinCostFlow()
    edges = network.add_arcs_with_capacity_and_unit_cost(
        np.repeat(np.arange(m), n),
        np.tile(np.arange(m, m + n), m),
        np.full(m * n, parts),
        -scores_MN.ravel(),
    )
    supplies = np.repeat([top_k * parts, -load.numerator], [m, n])
    network.set_nodes_supplies(np.arange(m + n), supplies)
    assert network.solve() == network.OPTIMAL
    x_MN: Array = np.asarray(network.flows(edges)).reshape(m, n)
    return x_MN


def highs(scores_MN: Array, top_k: int, method: str) -> Array:
    """HiGHS on the program as it is written, with a dense matrix, rounded to whole parts."""
    m, n = scores_MN.shape
    load = load_of(scores_MN, top_k)
    sums = np.vstack([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    totals = [top_k] * m + [float(load)] * n
    solution = linprog(-scores_MN.ravel(), A_eq=sums, b_eq=totals, bounds=(0, 1), method=method)
    assert solution.status == 0, solution.message
    x_MN: Array = np.rint(solution.x.reshape(m, n) * load.denominator).astype(np.int64)
    return x_MN
