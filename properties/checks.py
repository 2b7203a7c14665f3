"""How a property compares: within a derived radius, or by a condition that must hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.errors import ViolationError
from properties.protocol import Array
from properties.rounding import ratio
from properties.subject import Subject


def within(subject: Subject, actual: Array, expected: Any, what: str) -> None:
    """Require every element of ``actual`` to lie in the ball ``expected``; remember the ratio.

    Elements whose radius is not finite make the case unknown, unless another element violates.

    Raises ViolationError naming the worst element.
    """
    if actual.shape != expected.shape:
        raise ViolationError(f"{what} has shape {actual.shape}, expected {expected.shape}")
    if actual.size == 0:
        return
    ratios = ratio(actual, expected)
    undecided = np.isnan(ratios)
    decided = np.where(undecided, 0.0, ratios)
    worst = np.unravel_index(int(np.argmax(decided)), decided.shape)
    note_ratio(subject, float(decided[worst]), what)
    if decided[worst] > 1.0:
        place = ", ".join(str(int(index)) for index in worst)
        raise ViolationError(
            f"{what}[{place}] is {actual[worst]!s}, expected {expected.value[worst]!s} "
            f"± {expected.radius[worst]:.3g} (error / radius = {decided[worst]:.4g})"
            f"{_others(decided > 1.0)}"
        )
    if undecided.any():
        unknown(subject, f"{what}: no finite radius")


def _others(outside: Any) -> str:
    """How many elements lie outside, and in which rows or other parts, where there are others."""
    number = int(np.count_nonzero(outside))
    if number == 1:
        return ""
    told = f"; {number} of {outside.size} elements are outside"
    if outside.ndim < 2:
        return told
    rows = np.flatnonzero(outside.reshape(len(outside), -1).any(axis=1))
    ends = f"{rows[0]} to {rows[-1]}" if len(rows) > 1 else str(rows[0])
    places = "rows" if outside.ndim == 2 else "places of the first axis"
    return f"{told}, in {len(rows)} of {len(outside)} {places}, {ends}"


def finite_where_due(actual: Array, expected: Any, what: str) -> None:
    """Require finite elements wherever the ball ``expected`` is finite, and its radius.

    Comparing two outputs with each other needs it first: two NaN do not agree.
    """
    due = np.isfinite(expected.value) & np.isfinite(expected.radius)
    require(np.isfinite(actual) | ~due, f"{what}: NaN or infinite, where the reference is finite")


def at_most(subject: Subject, actual: Array, bound: Any, what: str) -> None:
    """Require ``actual <= bound`` up to the radius of ``bound``, elementwise.

    The ratio is the excess over the bound's value in units of its radius, and 0 below it.
    """
    with np.errstate(invalid="ignore"):
        excess = np.where(actual > bound.value, actual, bound.value)
    excess = np.where(np.isnan(actual), np.nan, excess)
    within(subject, excess, bound, what)


def require(condition: Any, message: str) -> None:
    """Raise ViolationError with the message unless the condition holds everywhere."""
    if not np.all(condition):
        raise ViolationError(message)


def note_ratio(subject: Subject, value: float, what: str) -> None:
    """Record a ratio of error to radius, so that the report can name the worst one."""
    worst = subject.case.worst_ratio
    if worst is None or value > worst:
        subject.case.worst_ratio = value
        subject.case.worst_what = what


def note_figure(subject: Subject, name: str, value: Any) -> None:
    """Record a figure that the report prints beside the verdict (a frequency, a gap, a count).

    A number is summarised over the cases, a truth counted, a text kept; a ``Tally`` (of
    properties.figures) is told once all cases have been joined to it.
    """
    subject.case.figures[name] = value


def unknown(subject: Subject, reason: str) -> None:
    """Mark the case as undecided and go on: a later check may still find a violation."""
    subject.case.unknown.append(reason)
