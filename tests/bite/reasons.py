"""Why a value property does not notice a fault: the written exceptions, which have to hold.

``test_bite`` fails for a property that lets a fault pass without an entry here, and for an entry
whose property notices the fault after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

ZERO, DROPPED, UNIFORM, LOWER = (
    "all-zero output",
    "dropped expert",
    "uniform weights",
    "next lower precision",
)


PRECISIONS = ("float64", "float32", "bfloat16")


class Reason(NamedTuple):
    """The faults that these properties let pass, in these precisions, and what else they ask."""

    text: str
    faults: tuple[str, ...]
    ids: tuple[str, ...]
    precisions: tuple[str, ...] = PRECISIONS


REASONS = (
    Reason(
        "compares results with one another, and zeros or a common factor keep the relation",
        (ZERO, LOWER),
        (
            "ACT-ODD",
            "ACT-LAYOUT",
            "ACT-MONO",
            "ACT-VJP-LINEAR",
            "RTR-GRAD-LINEAR",
            "RTR-GRAD-SLOTS",
            "QB-SHIFT",
            "QB-MONOTONE",
            "QB-EQUIVARIANT",
            "QB-DUPLICATE",
            "DSP-PERMUTE",
            "DSP-SAME",
            "DSP-GRAD-SUM",
            "DSP-SLOTS",
            "DSP-RELABEL",
            "DSP-LINEAR",
            "DSP-ROWS",
            "NRM-SCALE",
            "LAY-SHAPE",
            "LAY-NORMORDER",
            "LAY-UPONCE",
            "LAY-TRAINEVAL",
            "LAY-SCALE",
        ),
    ),
    Reason(
        "compares a result beside a NaN with that of the call without one, off by the same factor",
        (LOWER,),
        ("ACT-FINITE",),
    ),
    Reason(
        "bounds the size of results, which zeros meet",
        (ZERO,),
        ("ACT-VJP-BOUND", "ACT-BRANCH", "ACT-BELOW", "QB-SPAN", "QB-NONEXPANSIVE", "NRM-BOUND"),
    ),
    Reason(
        "bounds the size of results, which come no nearer to it than this error",
        (LOWER,),
        ("NRM-BOUND",),
        ("float64",),
    ),
    Reason(
        "asks for a mean of 0, which every multiple of the bias has",
        (ZERO, LOWER),
        ("QB-CENTRE", "QB-HIST-CENTRE"),
    ),
    Reason(
        "tells neighbouring order statistics apart, and they are further apart than this error",
        (LOWER,),
        ("QB-RANK", "QB-RANK-SIZES"),
    ),
    Reason(
        "judges who is chosen; weights and cutoffs are compared among calls, if at all",
        (ZERO, UNIFORM, LOWER),
        (
            "RTR-VALID",
            "RTR-SCORES",
            "RTR-STEER",
            "RTR-TOKEN",
            "RTR-TIES",
            "RTR-SMALLGAP",
            "RTR-RELABEL",
        ),
    ),
    Reason(
        "judges values at the implementation's own choice; RTR-VALID judges the choice",
        (DROPPED,),
        (
            "RTR-WEIGHTS",
            "RTR-SUM",
            "RTR-GRAD",
            "RTR-GRAD-FLAT",
            "RTR-GRAD-LINEAR",
            "RTR-GRAD-SLOTS",
            "RTR-GRAD-FAR",
            "RTR-GRAD-NAN",
        ),
    ),
    Reason(
        "judges the cutoff, which is right in this fault",
        (DROPPED, UNIFORM),
        ("RTR-CUTOFF",),
    ),
    Reason("has K = N, where no expert can be left out", (DROPPED,), ("RTR-ALL",)),
    Reason(
        "asks for gradients near 0, and smaller ones are so",
        (ZERO, LOWER),
        ("RTR-GRAD-FLAT",),
    ),
    Reason(
        "is linear in the cotangent whatever the weights are",
        (UNIFORM,),
        ("RTR-GRAD-LINEAR", "RTR-GRAD-SLOTS"),
    ),
    Reason(
        "compares calls that all lack the expert, or weigh alike",
        (DROPPED, UNIFORM),
        (
            "DSP-PERMUTE",
            "DSP-SLOTS",
            "DSP-GRAD-SUM",
            "DSP-LINEAR",
            "LAY-SHAPE",
            "LAY-UPONCE",
            "LAY-ROUTERWIDTH",
            "LAY-TRAINEVAL",
            "LAY-SCALE",
        ),
    ),
    Reason(
        "compares calls that all weigh alike",
        (UNIFORM,),
        ("DSP-SAME", "DSP-RELABEL", "DSP-ROWS", "LAY-NORMORDER"),
    ),
    Reason(
        "compares choices and duals, which float32 sums seldom move as far as float64 scores tell",
        (LOWER,),
        ("QB-DEFER", "OPT-IMPL"),
        ("float64",),
    ),
    Reason(
        "allows for four roundings to storage and more in a row, which are as large as this error",
        (LOWER,),
        ("LAY-TINY", "LAY-MIXED", "DSP-SIZES"),
        ("bfloat16",),
    ),
    Reason("has no routed output, or the same in both calls", (DROPPED, UNIFORM), ("LAY-SHARED",)),
    Reason(
        "asks for gradients of exactly 0, where weights have no say",
        (DROPPED, UNIFORM),
        ("DSP-GRAD-ZERO",),
    ),
)


def reasons() -> Iterator[tuple[tuple[str, str, str], str]]:
    """((property id, fault name, precision), reason), one by one.

    Only roundings are tried in every precision, all other faults in float32.
    """
    for text, faults, ids, precisions in REASONS:
        for fault, property_id in product(faults, ids):
            for precision in precisions if fault == LOWER else ("float32",):
                yield (property_id, fault, precision), text
