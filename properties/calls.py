"""Calls of an implementation, and what is known of the case that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from properties.protocol import Array

__all__ = ["Call", "Case"]


@dataclass
class Call:
    """One call of the implementation: the method and its arguments by name, as they were passed.

    ``output`` is what came back, as it came; None while nothing has.
    """

    method: str
    arguments: dict[str, Any]
    output: Any = None


@dataclass
class Case:
    """What is known of the case being judged: its calls, its worst ratio and where that stood.

    ``returned`` has what each method returned last: the arrays as they came, and their bits;
    ``observed`` the same of the last observations of balancers.
    """

    calls: list[Call] = field(default_factory=list)
    returned: dict[str, tuple[list[Array], list[bytes]]] = field(default_factory=dict)
    observed: list[tuple[list[Array], list[bytes]]] = field(default_factory=list)
    worst_ratio: float | None = None
    worst_what: str = ""
    unknown: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
