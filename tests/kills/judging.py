"""Which properties kill a wrong implementation: the cells of one row of the kill matrix."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import hypothesis
from hypothesis import Phase

from properties.execution import judge
from properties.lanes import Lane, lane_for
from properties.registry import catalogue, find
from tests.test_mutants import mutants, name_of, subject_for

KILLED = ("failed", "adapter error")

# Properties of both judge ``quantile_update``.
_ALIKE = ({"balancing", "optimality"},)

Row = dict[str, Any]


class FirstFailure(Lane):
    """A lane that ends at the first case that fails, without looking for a smaller one."""

    def settings(self, examples: int) -> hypothesis.settings:
        """The lane's settings, without shrinking."""
        return hypothesis.settings(super().settings(examples), phases=[Phase.generate])


@cache
def by_name() -> dict[str, Any]:
    """Every wrong implementation under the name that the matrix gives it."""
    return {name_of(mutant): mutant for mutant in mutants()}


@cache
def correct() -> dict[str, Any]:
    """What the wrong implementations are derived from, by name."""
    found = [origin(mutant) for mutant in mutants()]
    return {name_of(candidate): candidate for candidate in found}


def origin(mutant: Any) -> Any:
    """The nearest class that a mutant is derived from and that is right, as far as is known."""
    above = [kind for kind in mutant.__mro__ if getattr(kind, "killed_by", None) is None]
    return above[0]


@cache
def calling() -> frozenset[str]:
    """The properties that call the implementation.

    Some of those that need no method do, where it has one: the ones that a mutant is named for.
    """
    named = {mutant.killed_by for mutant in mutants()}
    return frozenset(e.id for e in catalogue().values() if not e.theory or e.id in named)


def cells(mutant: Any) -> list[str]:
    """The properties that judge a mutant, the one named for its mistake first.

    They are those of its topic that call an implementation. Ranks are launched only where the
    mistake is one of ranks.
    """
    named = find(mutant.killed_by)
    topics = {named.topic}.union(*(both for both in _ALIKE if named.topic in both))
    others = [
        entry.id
        for entry in catalogue().values()
        if entry.topic in topics
        and entry.id in calling()
        and entry.id != named.id
        and ("ranks" in named.needs or "ranks" not in entry.needs)
    ]
    return [named.id, *others]


@cache
def cells_of_correct() -> dict[str, list[str]]:
    """By name, the properties that judge what is derived from a correct implementation."""
    found: dict[str, set[str]] = {name: set() for name in correct()}
    for mutant in mutants():
        found[name_of(origin(mutant))].update(cells(mutant))
    return {name: [i for i in catalogue() if i in ids] for name, ids in found.items()}


def verdict(property_id: str, candidate: Any, lane: str) -> str:
    """What a property says of an implementation, built anew, in that lane."""
    # A claim has no cases to draw fewer of, and the gate is what is asked about.
    chosen = FirstFailure(**vars(lane_for(lane, theory=False)))
    return judge(find(property_id), subject_for(candidate), chosen).verdict


def killed_by_its_own(mutant: Any, lane: str) -> bool:
    """Whether the property named for a mutant's mistake catches it in that lane."""
    found = verdict(mutant.killed_by, mutant, lane)
    return found in KILLED or found == getattr(mutant, "verdict", None)


def row(name: str) -> Row:
    """The named property's verdict in the gate lane and in the quick one, the others' in quick."""
    mutant = by_name()[name]
    named, *others = cells(mutant)
    killed = [named] if killed_by_its_own(mutant, "gate") else []
    found = {property_id: verdict(property_id, mutant, "quick") for property_id in others}
    killed += [property_id for property_id in others if found[property_id] in KILLED]
    undecided = [i for i in others if found[i] not in (*KILLED, "passed", "not offered")]
    result: Row = {
        "digest": digest(mutant, cells(mutant)),
        "named": named,
        "quick": killed_by_its_own(mutant, "quick"),
        "killed": killed,
    }
    return result | ({"undecided": undecided} if undecided else {})


def row_of_correct(name: str) -> Row:
    """The properties that do not pass, in the quick lane, on what mutants are derived from."""
    candidate, ids = correct()[name], cells_of_correct()[name]
    fine = ("passed", "not offered")
    failed = [i for i in ids if verdict(i, candidate, "quick") not in fine]
    return {"digest": digest(candidate, ids), "failed": failed}


def other_killer(name: str) -> str | None:
    """A property that kills a mutant in the gate lane beside the named one; None if none does."""
    mutant = by_name()[name]
    for property_id in cells(mutant)[1:]:
        if verdict(property_id, mutant, "gate") in KILLED:
            return property_id
    return None


def digest(candidate: Any, ids: list[str]) -> str:
    """Changes with an implementation, what it is derived from in tests/, and its properties' ids.

    Also with what else stands in those files, but for other mutants.
    """
    text = list(ids)
    names = frozenset(kind.__name__ for kind in candidate.__mro__)
    for module in sorted({kind.__module__ for kind in candidate.__mro__}):
        if module.startswith("tests."):
            text += _relevant(module, names)
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:12]


def _relevant(module: str, names: frozenset[str]) -> Iterator[str]:
    """What a module says, without its docstring and the other mutants."""
    for other, text in _statements(module):
        if other is None or other in names:
            yield text


@cache
def _statements(module: str) -> list[tuple[str | None, str]]:
    """A module's statements, each with its name if it is a mutant."""
    source = inspect.getsource(importlib.import_module(module))
    body = ast.parse(source).body
    lines = source.splitlines()
    return [(_mutant(part), "\n".join(lines[_start(part) : part.end_lineno])) for part in body[1:]]


def _start(part: ast.stmt) -> int:
    decorators = getattr(part, "decorator_list", [])
    return min(at.lineno for at in (part, *decorators)) - 1


def _mutant(part: ast.stmt) -> str | None:
    """The name of a class that says what kills it."""
    if not isinstance(part, ast.ClassDef):
        return None
    assigned = [line for line in part.body if isinstance(line, ast.Assign)]
    targets = {at.id for line in assigned for at in line.targets if isinstance(at, ast.Name)}
    return part.name if "killed_by" in targets else None
