"""Experts in groups: the best groups first, then the best experts in them.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array
from properties.strategies.arrays import LAYOUTS
from properties.strategies.optimality import uniform_seeds
from properties.strategies.routing import EXACT_LOGITS, RoutingInputs, any_inputs, chosen
from properties.strategies.routing_extremes import infinite_inputs, poisoned_inputs
from properties.strategies.routing_sizes import EXPERTS, TOKENS
from properties.strategies.shapes import SEEDS

__all__ = ["GroupedInputs", "divided", "far", "grouped", "of_few_levels", "poisoned"]

# (M, N, G, T), smallest first; DeepSeek-V3's 256 experts in 8 groups, of which 4, among them. The
# last have more tokens than a block has room for at so many experts.
SHAPES = (
    (1, 4, 2, 1),
    (2, 6, 2, 1),
    (1, 6, 3, 2),
    (0, 8, 4, 2),
    (3, 10, 5, 2),
    (4, 8, 4, 2),
    (5, 12, 3, 1),
    (17, 12, 2, 2),
    (9, 32, 8, 3),
    (33, 24, 4, 2),
    (7, 160, 8, 5),
    (9, 64, 32, 5),
    (19, 256, 8, 4),
    (131, 16, 4, 2),
    (3, 384, 16, 4),
    (3, 896, 7, 3),
    (67, 896, 28, 9),
    (269, 256, 8, 4),
)
TOP_KS = (1, 2, 3, 4, 6, 8, 9, 10, 12, 16, 22, 24)

# Of the cases, those of other sizes; and those whose scores have few values, so that groups tie, or
# tie by their best expert and differ by the second; and those with two good experts to a group, all
# others shut out by a bias that is as low as what masks are made of, or lower.
SIZES_SHARE, LEVELS_SHARE, LOW_SHARE = 0.4, 0.25, 0.15
LEVELS = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
LOW = (-1e4, -2e9, -1e12, -1e30, -np.inf)


@dataclass(frozen=True)
class GroupedInputs:
    """Inputs, how many groups there are and may be chosen from, and where NaN is put (M, N)."""

    routing: RoutingInputs
    num_groups: int
    top_groups: int
    nan: Array | None = None


def grouped() -> st.SearchStrategy[GroupedInputs]:
    """Any class of scores with a finite bias; K up to all experts of the T groups."""

    def seeded(seed: int) -> GroupedInputs:
        rng = np.random.default_rng([seed, 7])
        m, n, groups, top_groups = SHAPES[seed * len(SHAPES) // SEEDS]
        if rng.random() < SIZES_SHARE:
            m, n = chosen(rng, TOKENS), max(4, EXPERTS[seed * len(EXPERTS) // SEEDS] // 4 * 4)
            groups, top_groups = divided(rng, n)
        candidates = n // groups * top_groups
        top_k = min(chosen(rng, (*TOP_KS, min(candidates, 128))), candidates)
        kind = rng.random()
        if kind < LEVELS_SHARE:
            routing = of_few_levels(rng, m, n, top_k)
        elif kind < LEVELS_SHARE + LOW_SHARE:
            routing = _mostly_shut_out(rng, (m, n), top_k, groups, top_groups)
        else:
            digits = chosen(rng, (5, 17))
            routing = _with_finite_bias(any_inputs(rng, m, n, top_k, digits), n)
        return GroupedInputs(routing, groups, top_groups)

    return uniform_seeds().map(seeded)


def far() -> st.SearchStrategy[GroupedInputs]:
    """Rows of extreme and infinite logits, in any groups."""

    def seeded(seed: int) -> GroupedInputs:
        return _in_groups(np.random.default_rng([seed, 8]), infinite_inputs(seed))

    return uniform_seeds().map(seeded)


def poisoned() -> st.SearchStrategy[GroupedInputs]:
    """Some rows with NaN, in any groups."""

    def seeded(seed: int) -> GroupedInputs:
        inputs = poisoned_inputs(seed)
        return _in_groups(np.random.default_rng([seed, 9]), inputs.routing, inputs.nan)

    return uniform_seeds().map(seeded)


def divided(rng: np.random.Generator, num_experts: int) -> tuple[int, int]:
    """(G, T): any number of groups of two experts or more each, and any number of them open."""
    possible = [g for g in range(1, num_experts // 2 + 1) if num_experts % g == 0]
    groups = chosen(rng, possible)
    return groups, int(rng.integers(1, groups + 1))


def _in_groups(
    rng: np.random.Generator, inputs: RoutingInputs, nan: Array | None = None
) -> GroupedInputs:
    """The inputs in groups, all open as often as not; a single expert is left out of odd N."""
    n = len(inputs.bias)
    n -= n % 2 if n > 3 else 0
    groups, top_groups = divided(rng, n) if n > 3 else (1, 1)
    if rng.random() < 0.3:
        top_groups = groups
    routing = _with_finite_bias(inputs, n)
    routing = replace(routing, top_k=min(inputs.top_k, n // groups * top_groups))
    return GroupedInputs(routing, groups, top_groups, None if nan is None else nan[:, :n])


def _with_finite_bias(inputs: RoutingInputs, num_experts: int) -> RoutingInputs:
    """The first experts, with a finite bias."""
    bias = np.where(np.isfinite(inputs.bias), inputs.bias, -4.0)
    return replace(inputs, logits=inputs.logits[:, :num_experts], bias=bias[:num_experts])


def of_few_levels(rng: np.random.Generator, m: int, n: int, top_k: int) -> RoutingInputs:
    """Two to four values of scores, one of them in few places, and a bias of few values or none."""
    some = rng.choice(chosen(rng, (LEVELS, EXACT_LOGITS)), int(rng.integers(2, 4)), replace=False)
    logits = np.where(rng.random((m, n)) < 0.2, some[-1], rng.choice(some[:-1], (m, n)))
    bias = chosen(rng, (np.zeros(n), np.zeros(n), 0.25 * rng.integers(-1, 2, n)))
    return RoutingInputs(logits, bias, top_k, chosen(rng, LAYOUTS))


def _mostly_shut_out(
    rng: np.random.Generator, shape: tuple[int, int], top_k: int, groups: int, top_groups: int
) -> RoutingInputs:
    """Two experts to a group have a usual bias, all others one of LOW; -inf is never chosen."""
    low, logits = chosen(rng, LOW), rng.standard_normal(shape)
    bias = np.full((groups, shape[1] // groups), low)
    good = np.argsort(rng.random(bias.shape), axis=1)[:, :2]
    np.put_along_axis(bias, good, 0.25 * rng.standard_normal((groups, 2)), axis=1)
    least = max(1, 2 * top_groups if np.isinf(low) else top_k)
    return RoutingInputs(logits, bias.reshape(-1), min(top_k, least), chosen(rng, LAYOUTS))
