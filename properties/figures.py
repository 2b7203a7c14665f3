"""Figures that only mean something over all cases of a property: told as one text at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["Spread", "Tally", "percentage", "plain"]


class Tally(ABC):
    """What one case adds to a figure; the cases' tallies are joined, and told when all are in."""

    @abstractmethod
    def joined(self, other: Any) -> Tally:
        """Both together; ``other`` is of the same class."""

    @abstractmethod
    def told(self) -> str:
        """The figure, on one line."""


@dataclass(frozen=True)
class Spread(Tally):
    """Numbers of which the median and the largest are told, and how often they are ``least``.

    ``least`` is the number that nothing is below, such as a gap of 0.
    """

    values: tuple[float, ...]
    least: float = 0.0

    def joined(self, other: Spread) -> Spread:
        """The numbers of both."""
        return Spread(self.values + other.values, self.least)

    def told(self) -> str:
        """Median, worst, and the share of the least."""
        there = sum(value == self.least for value in self.values)
        return (
            f"median {median(self.values):.3g}, worst {max(self.values):.3g}; "
            f"{self.least:g} on {percentage(there, len(self.values))}"
        )


def percentage(count: int, cases: int) -> str:
    """A share as text, to whole percents: 100 % and 0 % only where it is all or none."""
    share = 100.0 * count / cases
    if 0.0 < share < 1.0:
        return "under 1 %"
    return "over 99 %" if 99.0 < share < 100.0 else f"{share:.0f} %"


def plain(value: Any) -> Any:
    """The figure as plain builtins."""
    return value.told() if isinstance(value, Tally) else value
