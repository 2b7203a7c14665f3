"""The specification as text: a page per property, and the whole catalogue as one page."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from itertools import groupby

from properties.registry import TOPICS, Property, catalogue

TITLES = {
    "activation": "Activation (Eq. 12, App. B)",
    "routing": "Routing (Eq. 13)",
    "balancing": "Balancing (Eq. 14, App. D)",
    "optimality": "Optimality (App. C)",
    "experts": "Experts and dispatch (Eq. 11, Eq. 12)",
    "norm": "Norm (Eq. 11)",
    "layer": "Layer (Eq. 11)",
    "ledger": "Ledger",
}


def explanation(entry: Property) -> str:
    """A property's page: statement, source, what it needs, how it is judged, and its notation."""
    facts = "\n".join(f"{name:<8} {value}" for name, value in _facts(entry).items())
    title = f"{entry.id}  ({entry.kind}, {entry.topic})"
    shared = [f"    {line}".rstrip() for line in common(entry).splitlines()]
    notation = (
        ["", "Notation, and what the file's properties share:", "", *shared] if shared else []
    )
    return "\n".join([title, facts, "", entry.statement, *notation])


def catalogue_page() -> str:
    """Every property with its full specification, by topic, in Markdown."""
    entries = list(catalogue().values())
    kinds = {kind: sum(entry.kind == kind for entry in entries) for kind in _kinds(entries)}
    counts = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in kinds.items())
    lines = [
        "# Properties",
        "",
        f"The specification, generated from the code that checks it: {len(entries)} properties "
        f"({counts}).",
        "A *theorem* holds for every input that meets its hypotheses, a *counterexample* is a",
        "pinned instance on which a tempting statement is false, a *claim* is a frequency or a",
        "figure measured on stated inputs. `latentmoe-gate explain ID` prints one of them,",
        "`latentmoe-gate list --markdown` this page.",
        "",
    ]
    for topic in TOPICS:
        own = [entry for entry in entries if entry.topic == topic]
        links = ", ".join(f"[{entry.id}](#{entry.id.lower()})" for entry in own)
        lines += [f"**{TITLES[topic]}**: {links}", ""]
    for topic in TOPICS:
        lines += [f"## {TITLES[topic]}", ""]
        own = [entry for entry in entries if entry.topic == topic]
        for _, group in groupby(own, key=lambda entry: entry.function.__module__):
            lines += _section(list(group))
    return "\n".join(lines).rstrip() + "\n"


def common(entry: Property) -> str:
    """The docstring of the property's file: notation and facts that its proofs refer to."""
    return inspect.cleandoc(sys.modules[entry.function.__module__].__doc__ or "")


def _section(entries: list[Property]) -> list[str]:
    """The properties of one file, after what they share."""
    lines = ["```text", common(entries[0]), "```", ""]
    for entry in entries:
        facts = "; ".join(f"{name}: {value}" for name, value in _facts(entry).items())
        lines += [f"### {entry.id}", "", f"*{entry.kind}* — {facts}", ""]
        lines += ["```text", entry.statement, "```", ""]
    return lines


def _facts(entry: Property) -> dict[str, str]:
    parts = [*entry.needs, " or ".join(entry.any_of)]
    needs = ", ".join(part for part in parts if part)
    cases = f"{entry.examples} generated cases" if entry.drawn else "one pinned instance"
    if entry.steps is not None:
        cases = f"{entry.examples} sequences of up to {entry.steps[0]} calls"
    return {
        "source": entry.source,
        "needs": needs or "nothing: it is a statement about the mathematics",
        "judged": f"on {cases} in the gate lane",
    }


def _kinds(entries: Iterable[Property]) -> list[str]:
    return list(dict.fromkeys(entry.kind for entry in entries))
