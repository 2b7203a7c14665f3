"""One mistake that many properties meet: recognised by what it says, and told once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from properties.errors import AdapterError, ViolationError

__all__ = ["Caused", "cause_of", "groups"]

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_SHAPE = re.compile(r"\([\d, ]*\)")


class Caused(Protocol):
    """What groups are made of."""

    id: str
    cause: str


def cause_of(error: AdapterError | ViolationError, message: str) -> str:
    """The mistake behind an error without the sizes and numbers of its input, or nothing.

    Exceptions of the implementation and results of the wrong kind recur in every property that
    makes the call. Values that contradict a property are that property's own.
    """
    if isinstance(error, ViolationError) and error.__cause__ is None:
        return ""
    what, newline, where = message.partition("\n")
    return _NUMBER.sub("#", _SHAPE.sub("(…)", what)) + newline + where


def groups(outcomes: Iterable[Caused]) -> dict[str, list[str]]:
    """For each cause that several outcomes share, their ids in the order given."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.cause:
            found.setdefault(outcome.cause, []).append(outcome.id)
    return {cause: ids for cause, ids in found.items() if len(ids) > 1}
