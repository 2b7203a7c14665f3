"""Sums whose terms are added in any order, with partial sums that go through memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.rounding import Ball
from reference_numpy.storage import stored

__all__ = ["added_in_any_order", "hull", "slots_added"]


def added_in_any_order(terms: Ball) -> Ball:
    """The sum over the first axis, every partial sum stored, for every order of adding.

    Each of P - 1 partial sums rounds where it is added and where it is stored. The last one is the
    total; the others are at most the sum of all sizes.
    """
    arithmetic, count = terms.arithmetic, len(terms)
    if count == 1:
        return terms[0]
    add, store = arithmetic.rules["add"], arithmetic.rules["store"]
    once = np.log1p(add.share) + np.log1p(store.share)
    size = (np.abs(terms.value) + terms.radius).sum(axis=0)
    total = terms.value.sum(axis=0)
    more = np.expm1((count - 2) * once) * size if count > 2 else 0.0
    radius = terms.radius.sum(axis=0) + more
    radius = radius + np.expm1(once) * (np.abs(total) + radius)
    # An exact 0 stays one: where nothing is added, nothing can underflow.
    radius = radius + np.where(size > 0.0, (count - 1) * (add.underflow + store.underflow), 0.0)
    fits = size + radius <= min(add.largest, store.largest)
    return Ball(total, np.where(fits, radius, np.inf), arithmetic)


def slots_added(terms_MKL: Any) -> Any:
    """The sum (M, L) over a token's slots: kept in the accumulate format, or stored on the way.

    Autograd adds up the gradients of a gathered row one after the other, in their own format.
    """
    kept = stored(np.sum(terms_MKL, axis=1))
    return hull(kept, added_in_any_order(np.swapaxes(terms_MKL, 0, 1)))


def hull(first: Any, second: Any) -> Any:
    """The smallest ball around the first value that holds both balls."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(first.value - second.value)
    reach = np.where(first.value == second.value, 0.0, apart) + second.radius
    reach = np.where(np.isnan(reach), np.inf, reach)
    return Ball(first.value, np.maximum(first.radius, reach), first.arithmetic)
