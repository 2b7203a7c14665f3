"""Shapes of assignment problems by class, each class ordered by size so that failures shrink.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

__all__ = ["SEEDS", "SHAPES", "Shape", "ShapeClasses", "any_shapes", "balanced_shapes", "shape_of"]

Shape: TypeAlias = tuple[int, int, int]
ShapeClasses: TypeAlias = Mapping[str, tuple[Shape, ...]]

# How many seeds there are: the seed's rank among them decides the size.
SEEDS = 2**24

# Every (M, N, K) with K < N and an integer q up to 48 x 12.
SHAPES: tuple[Shape, ...] = tuple(
    sorted(
        (
            (m, n, k)
            for m in range(2, 49)
            for n in range(2, 13)
            for k in range(1, n)
            if m * k % n == 0
        ),
        key=lambda shape: (shape[0] * shape[1], shape),
    )
)

# The first class of a mapping is drawn this many times as often as each other one.
FIRST_SHARE = 8


@cache
def balanced_shapes(most_edges: int) -> ShapeClasses:
    """K < N and integer q: mostly pairwise different, and the edge cases as classes of their own.

    ``most_edges`` bounds M N.
    """
    known = [shape for shape in SHAPES if shape[0] * shape[1] <= most_edges]
    classes = {
        "different": tuple(s for s in known if len(set(s)) == 3),
        "k = 1": tuple(s for s in known if s[2] == 1),
        "k = n - 1": tuple(s for s in known if s[2] == s[1] - 1),
        "q = 1": tuple(s for s in known if s[0] * s[2] == s[1]),
        "square": tuple(s for s in known if s[0] == s[1]),
    }
    return MappingProxyType(classes)


@cache
def any_shapes(largest: int, with_cutoff: bool) -> ShapeClasses:
    """Sides up to ``largest`` and every K, q of any kind; K = N only without a cutoff."""
    sides = range(1, largest + 1)
    known = sorted(
        (
            (m, n, k)
            for m in sides
            for n in sides
            for k in range(1, n + 1)
            if k < n or not with_cutoff
        ),
        key=lambda shape: (shape[0] * shape[1], shape),
    )
    classes = {
        "any": tuple(known),
        "k = 1": tuple(s for s in known if s[2] == 1),
        "k = n - 1": tuple(s for s in known if s[2] == s[1] - 1),
        "q = 1": tuple(s for s in known if s[0] * s[2] == s[1]),
        "integer q": tuple(s for s in known if s[0] * s[2] % s[1] == 0),
    }
    if not with_cutoff:
        classes["k = n"] = tuple(s for s in known if s[2] == s[1])
    return MappingProxyType(classes)


def shape_of(seed: int, rng: np.random.Generator, classes: ShapeClasses) -> Shape:
    """Any class; within it, the smaller the seed, the smaller the shape: so failures shrink."""
    first, *others = classes.values()
    members = [*(FIRST_SHARE * [first]), *others][rng.integers(FIRST_SHARE + len(others))]
    return members[seed * len(members) // SEEDS]
