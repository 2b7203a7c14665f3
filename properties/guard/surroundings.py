"""What an implementation may leave behind in the process, other than results.

The suite computes in the same process. An implementation that replaces ``np.mean``, or a function
of the suite, changes the judge: nothing that is judged then counts. It is put back, and told. This
finds mistakes (a stray monkeypatch, a library built with -ffast-math); it is no defence against
code that means to deceive.

Random seeds, threads, environment variables and caches may change: the suite rests on none of them.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
import os
import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Surroundings"]

_OURS = ("properties", "reference_numpy", "lp_oracle")

# Classes that results pass through.
_JUDGES = {
    "properties.subject": ("Subject",),
    "properties.calls": ("Case", "Call"),
    "properties.rounding.ball": ("Ball",),
    "properties.execution": ("Outcome", "_Log"),
}

# Import hooks replace these, to no effect on what is computed.
_LEFT_OUT = frozenset({"__import__", "__doc__", "__builtins__", "__spec__", "__loader__"})


@dataclass(frozen=True)
class Surroundings:
    """The names that the suite computes with, and what they stood for at one moment."""

    names: list[tuple[Any, str, tuple[str, ...], tuple[Any, ...]]]
    folder: str
    arithmetic: tuple[bool, bool]

    @classmethod
    def now(cls) -> Surroundings:
        """Look at the process as it is."""
        holders: list[tuple[Any, str]] = [
            (np, "np"),
            (np.linalg, "np.linalg"),
            (np.random, "np.random"),
            (math, "math"),
            (builtins, "builtins"),
        ]
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in _OURS and isinstance(module, types.ModuleType):
                holders.append((module, name))
                kinds = [getattr(module, kind, None) for kind in _JUDGES.get(name, ())]
                holders += [(kind, f"{name}.{kind.__name__}") for kind in kinds if kind is not None]
        names = [
            (holder, name, (*vars(holder),), (*vars(holder).values(),)) for holder, name in holders
        ]
        return cls(names, _folder(), _arithmetic())

    def tampered(self) -> list[str]:
        """What has been replaced since, and put back now; in words."""
        found = []
        for holder, name, keys, values in self.names:
            after = vars(holder)
            if all(map(operator.is_, map(after.get, keys), values)):
                continue
            for key, value in zip(keys, values, strict=True):
                if after.get(key) is not value and key not in _LEFT_OUT:
                    found.append(f"{name}.{key} was replaced")
                    _put_back(holder, key, value)
        if _arithmetic() != self.arithmetic:
            found.append(
                "the arithmetic of this process was switched to flush subnormal numbers to zero, "
                "or to another rounding, as a library built with -ffast-math does when it is loaded"
            )
        return found

    def moved(self) -> list[str]:
        """What has changed that a caller has to be told of, and is put back; in words."""
        now = _folder()
        if now == self.folder:
            return []
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        return [f"the current folder was changed to {now or 'one that is gone'}; it was put back"]


def _put_back(holder: Any, key: str, value: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        setattr(holder, key, value)


def _folder() -> str:
    try:
        return str(os.getcwd())  # noqa: PTH109 - Path.cwd() is the same and slower
    except FileNotFoundError:
        return ""


def _arithmetic() -> tuple[bool, bool]:
    """Whether subnormal numbers are kept, and sums are rounded to nearest, ties to even."""
    tiny = np.array([5e-324])
    one, half = np.array([1.0, -1.0]), np.array([2.0**-53, -(2.0**-53)])
    kept = bool((tiny * np.array([1.0]) != 0.0).all())
    return kept, bool((one + half == one).all() and (one + 1.5 * half != one).all())
