"""Formulas of constants compared with the steps that people run.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import z3
from scipy.sparse import csgraph

from lp_oracle import (
    Interval,
    certify_routing,
    dual_objective,
    expert_interval,
    expert_step,
    token_interval,
    token_step,
)
from tests.lp_oracle.drawing import best_value, is_generic
from tests.proofs.encoding import EXPERT_SIDES, TOKEN_SIDES, Formula, Margins, Shape, Side, number

INTEGRAL = [
    Shape(*size) for size in [(2, 2, 1), (4, 2, 1), (3, 3, 2), (2, 4, 2), (3, 6, 2), (4, 4, 3)]
]
FRACTIONAL = [Shape(*size) for size in [(2, 3, 1), (2, 3, 2), (3, 2, 1), (2, 5, 4), (4, 3, 2)]]
SMALL = [shape for shape in INTEGRAL + FRACTIONAL if shape.entries <= 10]


class Comparison(NamedTuple):
    """What a formula of constants says, and what is true."""

    name: str
    said: bool
    true: bool


def drawn(seed: int, count: int, shapes: list[Shape]) -> Iterator[tuple[Shape, Any, Any]]:
    """Margins and increments that are small integers, so that order statistics often are equal."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        shape = shapes[rng.integers(len(shapes))]
        size = int(rng.integers(1, 3))
        yield (
            shape,
            rng.integers(-size, size + 1, (shape.m, shape.n)),
            rng.integers(-1, 2, shape.n),
        )


def constant(kind: type[Margins], shape: Shape, p_MN: Any, c_N: Any) -> Margins:
    """The formulas about these numbers."""
    rows = [[number(value) for value in row] for row in p_MN.tolist()]
    return kind(shape, rows, [number(value) for value in c_N.tolist()])


def holds(formula: Formula) -> bool:
    """Whether a formula without unknowns is true."""
    value = z3.simplify(formula)
    assert z3.is_true(value) or z3.is_false(value), value
    return z3.is_true(value)


def strictly_inside(interval: Interval, value: Any) -> Any:
    """In the relative interior, by the definition."""
    strictly = (interval.lower < value) & (value < interval.upper)
    return strictly | ((interval.lower == value) & (value == interval.upper))


def check_steps(kind: type[Margins]) -> Iterator[Comparison]:
    """All four rules of both sides, rows and columns one by one.

    A corner is what its step returns. Interior is compared with the oracle's interval, and wherever
    the midpoint or the linear rule returns the value, the formula must hold.
    """
    for shape, p_MN, c_N in drawn(0, 150, INTEGRAL + FRACTIONAL):
        margins = constant(kind, shape, p_MN, c_N)
        zeros_M, zeros_N = np.zeros(shape.m, int), np.zeros(shape.n, int)
        inside_M = strictly_inside(token_interval(p_MN, zeros_N, shape.top_k), 0)
        for rule, side in TOKEN_SIDES.items():
            said = [holds(margins.token_rule(i, side)) for i in range(shape.m)]
            step_M = token_step(p_MN, zeros_N, shape.top_k, rule=rule) == 0
            yield from _compare(f"token rule {rule}", side, said, step_M, inside_M)
        inside_N = strictly_inside(expert_interval(p_MN, zeros_M, shape.top_k), c_N)
        for rule, side in EXPERT_SIDES.items():
            if shape.is_integral or side == "upper":
                said = [holds(margins.expert_rule(j, side)) for j in range(shape.n)]
                step_N = expert_step(p_MN, zeros_M, shape.top_k, rule=rule) == c_N
                yield from _compare(f"expert rule {rule}", side, said, step_N, inside_N)


def _compare(
    name: str, side: Side, said: list[bool], steps: Any, inside: Any
) -> Iterator[Comparison]:
    for formula, step, within in zip(said, steps.tolist(), inside.tolist(), strict=True):
        yield Comparison(name, formula, within if side == "interior" else step)
        if step:
            yield Comparison(f"{name} returns it", formula, True)


def check_certificates(kind: type[Margins]) -> Iterator[Comparison]:
    """``certified`` is the verdict of the oracle, wherever the token step is exact."""
    rules = itertools.cycle(("k+1", "k", "midpoint"))
    for shape, p_MN, c_N in drawn(1, 200, INTEGRAL):
        zeros_N = np.zeros(shape.n, int)
        reduced_MN = p_MN - token_step(p_MN, zeros_N, shape.top_k, rule=next(rules))[:, None]
        verdict = certify_routing(reduced_MN, zeros_N, shape.top_k)
        said = holds(constant(kind, shape, reduced_MN, c_N).certified())
        yield Comparison("certified", said, verdict.optimal)


def check_cuts(kind: type[Margins]) -> Iterator[Comparison]:
    """Some cut is violated if and only if D > LP*."""
    for shape, p_MN, c_N in drawn(2, 60, SMALL):
        zeros_M, zeros_N = np.zeros(shape.m, int), np.zeros(shape.n, int)
        reduced_MN = p_MN - token_step(p_MN, zeros_N, shape.top_k, rule="k")[:, None]
        margins = constant(kind, shape, reduced_MN, c_N)
        cuts = itertools.product(subsets(shape.m), subsets(shape.n))
        said = any(holds(margins.is_violated(rows, columns)) for rows, columns in cuts)
        value = dual_objective(reduced_MN, zeros_M, zeros_N, shape.top_k)
        yield Comparison("D > LP*", said, value > best_value(reduced_MN, shape.top_k))


def subsets(size: int) -> list[tuple[int, ...]]:
    """All of them."""
    members = range(size)
    return [s for length in range(size + 1) for s in itertools.combinations(members, length)]


def check_tight_edges(kind: type[Margins]) -> Iterator[Comparison]:
    """Edges and trees counted without formulas; a forest has fewer edges; cycles by trying all."""
    for shape, p_MN, c_N in drawn(3, 200, INTEGRAL):
        margins = constant(kind, shape, p_MN, c_N)
        tight_MN = p_MN == 0
        degrees = np.concatenate([tight_MN.sum(axis=1), tight_MN.sum(axis=0)])
        edges, vertices = int(tight_MN.sum()), int((degrees > 0).sum())
        fewer = holds(margins.fewer_tight_edges_than_vertices())
        yield Comparison("fewer edges", fewer, edges == 0 or edges < vertices)
        if _is_forest(tight_MN):
            yield Comparison("fewer edges in a forest", fewer, True)
        covered = bool((degrees > 0).all())
        yield Comparison("every vertex", holds(margins.every_vertex_is_tight()), covered)
        if shape.entries <= 9:
            yield Comparison("no cycle", holds(margins.no_cycle_cancels()), is_generic(p_MN))


def _is_forest(edges_MN: Any) -> bool:
    m, n = edges_MN.shape
    graph = np.block([[np.zeros((m, m)), edges_MN], [np.zeros((n, m)), np.zeros((n, n))]])
    trees, _ = csgraph.connected_components(graph, directed=False)
    return bool(edges_MN.sum() == m + n - trees)


CHECKS = [check_steps, check_certificates, check_cuts, check_tight_edges]
