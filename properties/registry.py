"""The catalogue: every property with its id, kind, source, needs and statement.

A property is a function ``(subject, **drawn)`` in one of the ``properties.test_*`` modules,
decorated with :func:`specification`. Its docstring is the specification. The decorated name is what
pytest collects; the catalogue keeps the undecorated function, so that it can also be judged without
pytest.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from hypothesis.strategies import SearchStrategy

SPEC_VERSION = 1

Kind = Literal["theorem", "counterexample", "claim"]

TOPICS = (
    "activation",
    "routing",
    "balancing",
    "optimality",
    "experts",
    "norm",
    "layer",
    "ledger",
)

_ID = re.compile(r"[A-Z]{3}-[A-Z0-9]+(-[A-Z0-9]+)?|QB-[A-Z0-9]+(-[A-Z0-9]+)?")


@dataclass(frozen=True)
class Property:
    """One entry of the catalogue.

    ``needs`` names the protocol methods without which the property is not offered, ``any_of`` those
    of which one is enough; both are empty for statements about the mathematics alone. ``drawn``
    maps argument names to strategies, and is empty for a pinned instance. ``examples`` is the
    number of cases in the gate lane. Where ``steps`` is set, a case is a sequence of at most so
    many calls, in the gate lane and in a random one, and ``function`` builds the state machine
    (properties.stateful) that makes them. ``long``: its one case takes a second in every lane.
    """

    id: str
    kind: Kind
    topic: str
    source: str
    needs: tuple[str, ...]
    any_of: tuple[str, ...]
    examples: int
    drawn: Mapping[str, SearchStrategy[Any]]
    function: Callable[..., Any]
    steps: tuple[int, int] | None = None
    long: bool = False

    @property
    def theory(self) -> bool:
        """Whether it can be judged without a method of any implementation."""
        return not (self.needs or self.any_of)

    @property
    def statement(self) -> str:
        """The whole specification: the docstring, without its indentation."""
        return inspect.getdoc(self.function) or ""

    @property
    def headline(self) -> str:
        """The statement's first paragraph on one line."""
        return " ".join(self.statement.split("\n\n")[0].split())


_CATALOGUE: dict[str, Property] = {}


def specification(
    property_id: str,
    *,
    kind: Kind = "theorem",
    source: str,
    needs: tuple[str, ...] = (),
    any_of: tuple[str, ...] = (),
    examples: int = 100,
    steps: tuple[int, int] | None = None,
    long: bool = False,
    **drawn: SearchStrategy[Any],
) -> Callable[[Callable[..., Any]], Callable[[Any], None]]:
    """Enter the decorated function into the catalogue and make it a pytest test.

    Raises ValueError if the id is malformed or taken, the docstring is missing, or the function's
    arguments are not ``subject`` followed by the names in ``drawn``.
    """
    if not _ID.fullmatch(property_id):
        raise ValueError(f"{property_id!r} is not a property id such as 'ACT-BOUND'")

    def enter(function: Callable[..., Any]) -> Callable[[Any], None]:
        arguments = tuple(inspect.signature(function).parameters)
        if arguments != ("subject", *drawn):
            raise ValueError(f"{property_id} takes {arguments}, expected {('subject', *drawn)}")
        if not inspect.getdoc(function):
            raise ValueError(f"{property_id} has no docstring; the docstring is the specification")
        if property_id in _CATALOGUE and _CATALOGUE[property_id].function is not function:
            known = _CATALOGUE[property_id].function
            if (known.__module__, known.__qualname__) != (
                function.__module__,
                function.__qualname__,
            ):
                raise ValueError(f"{property_id} is already defined in {known.__module__}")
        topic = function.__module__.rpartition("test_")[2].partition("_")[0]
        if topic not in TOPICS:
            raise ValueError(f"{property_id} stands in {function.__module__}, which is no topic")
        entry = Property(
            property_id, kind, topic, source, needs, any_of, examples, drawn, function, steps, long
        )
        _CATALOGUE[property_id] = entry

        def test(latentmoe_gate: Any) -> None:
            latentmoe_gate.judge(entry)

        test.__name__ = function.__name__
        test.__qualname__ = function.__qualname__
        test.__module__ = function.__module__
        test.__doc__ = function.__doc__
        test.__dict__["specification"] = entry
        return test

    return enter


def catalogue() -> dict[str, Property]:
    """Every property by id, in the order of the topics and, within one, of the files."""
    _import_specifications()
    return dict(sorted(_CATALOGUE.items(), key=lambda item: _place(item[1])))


def _place(entry: Property) -> tuple[int, str, int]:
    """Where a property stands, whatever was imported first."""
    function = entry.function
    return TOPICS.index(entry.topic), function.__module__, function.__code__.co_firstlineno


@cache
def _import_specifications() -> None:
    import properties

    for module in pkgutil.iter_modules(properties.__path__, "properties."):
        if module.name.startswith("properties.test_"):
            importlib.import_module(module.name)


def find(property_id: str) -> Property:
    """The property of that id, in any letter case.

    Raises KeyError, naming the nearest ids, if there is none.
    """
    entries = catalogue()
    wanted = property_id.upper()
    if wanted not in entries:
        near = ", ".join(get_close_matches(wanted, entries, n=3, cutoff=0.6))
        hint = f"; did you mean {near}?" if near else "; `latentmoe-gate list` shows them all"
        raise KeyError(f"there is no property {property_id!r}{hint}")
    return entries[wanted]
