"""docs/kills.md: which property kills which wrong implementation, by kills.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from properties.registry import TOPICS, catalogue, find
from tests.kills.combinations import COMBINATIONS
from tests.kills.combinations import TOPICS as COMBINED
from tests.kills.judging import calling
from tests.kills.plainest import PLAINEST
from tests.kills.reasons import NOT_ALONE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kills.md"

# Of a mutant's killers beside the named one, as many stand in its line; others are counted.
LISTED = 4

INTRODUCTION = """# What the gate catches

Every wrong implementation in `tests/mutants/` is a correct one with the smallest change that makes
one mistake. `make kills` judges each of them by the properties of its topic and writes this page.
A property *kills* a mutant if it fails on it.

* The property **named** for a mistake judges in the gate lane.
* The other properties of the topic judge with the cases of the **quick lane**, a fifth: all of them
  in the gate lane would take hours. So a property may kill more mutants in the gate lane than are
  counted here. Properties that launch ranks judge the mistakes of ranks alone. Balancing and
  optimality count as one topic. Properties of other topics are not asked.
* *No other one's* are mutants that one property kills and no other does under these terms. Of a
  mutant that it kills **alone**, the others find nothing in the **gate lane** either. The search
  ends at the first such mutant of each property.
* What mutants are derived from is judged, too: it passes the same properties, so that a kill is
  owed to the mistake.
"""


def page(known: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in full."""
    rows = known["mutants"]
    parts = [INTRODUCTION, _totals(rows), _by_topic(rows), _by_property(rows)]
    parts += [_without(), _combinations(rows), _plainest(rows), "## By mutant\n"]
    parts += [_mutants(topic, rows) for topic in TOPICS]
    return "\n".join(part for part in parts if part)


def alone(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """By property, the mutants that no other property of the topic kills in the gate lane."""
    found: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row.get("alone"):
            found.setdefault(row["named"], []).append(name)
    return found


def _totals(rows: Mapping[str, Mapping[str, Any]]) -> str:
    named = sum(row["named"] in row["killed"] for row in rows.values())
    quick = sum(row["quick"] for row in rows.values())
    return (
        f"**{named} of {len(rows)}** mutants are killed in the gate lane by the property named for "
        f"their mistake;\n{quick} of them by the same property with the quick lane's cases.\n"
    )


def _by_topic(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| topic | properties | mutants | killed by the named one | by it in quick |"]
    lines += ["|---|---|---|---|---|"]
    for topic in TOPICS:
        own = [row for row in rows.values() if find(row["named"]).topic == topic]
        properties = sum(find(property_id).topic == topic for property_id in calling())
        named = sum(row["named"] in row["killed"] for row in own)
        quick = sum(row["quick"] for row in own)
        if properties:
            lines.append(f"| {topic} | {properties} | {len(own)} | {named} | {quick} |")
    return "\n".join(lines) + "\n"


def _by_property(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "## By property",
        "",
        "| property | mutants named for it | mutants it kills | of those, no other one's | alone |",
        "|---|---|---|---|---|",
    ]
    sole = alone(rows)
    for property_id in catalogue():
        if property_id in calling():
            named = sum(row["named"] == property_id for row in rows.values())
            kills = sum(property_id in row["killed"] for row in rows.values())
            only = sum(row["killed"] == [property_id] for row in rows.values())
            one = f"`{sole[property_id][0]}`" if property_id in sole else "none, see below"
            lines.append(f"| {property_id} | {named} | {kills} | {only} | {one} |")
    return "\n".join(lines) + "\n"


def _without() -> str:
    if not NOT_ALONE:
        return ""
    lines = ["## Properties that kill no mutant alone", ""]
    lines += [f"* **{i}**: {NOT_ALONE[i]}" for i in catalogue() if i in NOT_ALONE]
    return "\n".join(lines) + "\n"


def _combinations(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "## Mistakes that show under one condition only",
        "",
        "Each is plain where it shows, and the implementation is right everywhere else.",
        "",
        "| shows only with | " + " | ".join(COMBINED) + " |",
        "|---" * (len(COMBINED) + 1) + "|",
    ]
    for condition, names in COMBINATIONS.items():
        cells: dict[str, list[str]] = {topic: [] for topic in COMBINED}
        for name in names.split():
            if name in rows:
                told = f"`{short(name)}` {rows[name]['named']}"
                cells[find(rows[name]["named"]).topic].append(told)
        lines.append(f"| {condition} | " + " | ".join(map(", ".join, cells.values())) + " |")
    return "\n".join(lines) + "\n"


def _plainest(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "## The plainest mistakes",
        "",
        f"{len(PLAINEST)} mistakes that the quick lane must catch; a test judges them in it.",
        "",
    ]
    lines += [f"* `{name}`: {rows[name]['named']}" for name in PLAINEST if name in rows]
    return "\n".join(lines) + "\n"


def _mutants(topic: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    own = {name: row for name, row in rows.items() if find(row["named"]).topic == topic}
    if not own:
        return ""
    lines = [f"### {topic.capitalize()}", ""]
    lines += [f"* `{name}`: {_killers(row)}" for name, row in own.items()]
    return "\n".join(lines) + "\n"


def _killers(row: Mapping[str, Any]) -> str:
    """The named property, bold if it kills, then others."""
    named = row["named"]
    others = [property_id for property_id in row["killed"] if property_id != named]
    told = [f"**{named}**" if named in row["killed"] else f"not {named}", *others[:LISTED]]
    more = len(others) - LISTED
    text = ", ".join(told) + (f" and {more} more" if more > 0 else "")
    return text + (f"; undecided: {', '.join(row['undecided'])}" if "undecided" in row else "")


def short(name: str) -> str:
    """A mutant's name without that of its file."""
    return name.partition("-")[2]
