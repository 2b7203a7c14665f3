"""What a rank is asked to do, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

# What steps act on, apart from objects that they keep: the implementation and the collectives.
IMPLEMENTATION = ""
TRAFFIC = "traffic"

# The step before the first one.
CONSTRUCTION = "the constructor"

Answers: TypeAlias = dict[str, Any]

__all__ = [
    "CONSTRUCTION",
    "IMPLEMENTATION",
    "TRAFFIC",
    "Answers",
    "At",
    "Done",
    "Failed",
    "Hello",
    "Kept",
    "Order",
    "Program",
    "Step",
]


@dataclass(frozen=True)
class Kept:
    """In place of an argument: what an earlier step of the same rank has kept under that name."""

    name: str


@dataclass(frozen=True)
class Step:
    """One call, or the reading of one attribute.

    ``on`` names what it is done on, ``answer`` the entry of the answers for the result, and
    ``keep`` the name of the result for later steps; each is empty where it is not wanted.
    """

    method: str
    keywords: dict[str, Any] = field(default_factory=dict)
    on: str = IMPLEMENTATION
    answer: str = ""
    keep: str = ""
    reads: bool = False

    @property
    def label(self) -> str:
        """The step as messages name it."""
        return f"{self.on}.{self.method}" if self.on else self.method


@dataclass
class Program:
    """The steps of one rank, on float64 arrays and on the methods of a ``Subject``."""

    steps: list[Step] = field(default_factory=list)

    def call(self, method: str, answer: str = "", **keywords: Any) -> None:
        """Call a method of the implementation."""
        self.steps.append(Step(method, keywords, answer=answer))

    def make(self, method: str, keep: str, **keywords: Any) -> None:
        """Call a method of the implementation and keep what it returns under a name."""
        self.steps.append(Step(method, keywords, keep=keep))

    def call_on(self, kept: str, method: str, answer: str = "", **keywords: Any) -> None:
        """Call a method of an object that was kept, or of ``TRAFFIC``."""
        self.steps.append(Step(method, keywords, on=kept, answer=answer))

    def keep_from(self, kept: str, method: str, keep: str, **keywords: Any) -> None:
        """Call a method of an object that was kept, and keep what it returns."""
        self.steps.append(Step(method, keywords, on=kept, keep=keep))

    def read(self, kept: str, attribute: str, answer: str) -> None:
        """Read an attribute of an object that was kept."""
        self.steps.append(Step(attribute, on=kept, answer=answer, reads=True))


# Messages ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """From the controller: run a program on the implementation of that name.

    ``path`` is where the controller finds modules. None in place of an order says that there will
    be no more.
    """

    reference: str
    path: list[str]
    program: Program


@dataclass(frozen=True)
class Hello:
    """From a rank, once: who it is."""

    rank: int
    process: int


@dataclass(frozen=True)
class At:
    """From a rank: the step that it begins."""

    label: str


@dataclass(frozen=True)
class Done:
    """From a rank: the program ran to its end."""

    answers: Answers


@dataclass(frozen=True)
class Failed:
    """From a rank: a step raised.

    ``violation`` says that the suite objects to what was done, not that the implementation raised.
    """

    label: str
    error: str
    traceback: str
    violation: bool
