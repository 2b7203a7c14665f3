"""Verdicts as text and JSON, and the exit code they amount to."""

from __future__ import annotations

import json
import platform
import shlex
import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import scipy

from properties.execution import Outcome
from properties.guard.provenance import uses_of_the_reference
from properties.guard.watchdog import CALL_SECONDS
from properties.literals import is_described
from properties.protocol import EXTRAS, METHODS, PROTOCOL_VERSION, Conventions, Precision
from properties.registry import SPEC_VERSION, TOPICS, catalogue
from properties.rounding.arithmetic import format_named
from properties.subject import Subject

EXIT_PASSED = 0
EXIT_VIOLATED = 1
EXIT_ADAPTER = 2
EXIT_UNKNOWN = 3
EXIT_SUITE = 4


def describe(
    subject: Subject,
    lane: str,
    seed: int | None,
    ranks: int | None = None,
    call_seconds: float = CALL_SECONDS,
) -> dict[str, Any]:
    """What the header says, as plain builtins; ``ranks`` is the limit that was asked for."""
    precision = subject.precision
    return {
        "implementation": subject.reference,
        "name": subject.name,
        "version": subject.version,
        "precision": {
            "compute": precision.compute,
            "accumulate": precision.accumulate,
            "storage": precision.storage,
            "routing": precision.routing_format,
        },
        "conventions": declared(subject.conventions),
        "offered": sorted(subject.offered),
        "misspelt": misspelt(subject.implementation),
        "reference": uses_of_the_reference(subject.implementation),
        "coarse": coarse(precision),
        "call_seconds": call_seconds,
        "spec_version": SPEC_VERSION,
        "protocol_version": PROTOCOL_VERSION,
        "worlds": list(subject.worlds),
        "ranks": ranks,
        "lane": lane,
        "seed": seed,
        "hypothesis": hypothesis.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def coarse(precision: Precision) -> dict[str, str]:
    """The formats so coarse that little is left to judge, with what a rounding in them may change.

    These are formats of fewer significant bits than bfloat16 has.
    """
    told = {}
    roles = ("compute", "accumulate", "storage", "routing_format")
    for name in dict.fromkeys(getattr(precision, role) for role in roles):
        roundoff = format_named(name).roundoff
        if roundoff > format_named("bfloat16").roundoff:
            told[name] = f"{100 * roundoff:.3g} %"
    return told


def misspelt(implementation: Any) -> dict[str, str]:
    """Public methods whose names are nearly those of the protocol, which the class lacks."""
    known = {name for names in METHODS.values() for name in names} | set(EXTRAS)
    lacking = [name for name in known if not hasattr(implementation, name)]
    public = (name for name in dir(type(implementation)) if not name.startswith("_"))
    found = {}
    for name in public:
        near = get_close_matches(name, sorted(lacking), n=1, cutoff=0.85)
        if near and name not in known and callable(getattr(type(implementation), name)):
            found[name] = near[0]
    return found


def declared(conventions: Conventions) -> dict[str, Any]:
    """The conventions that differ from the report's."""
    defaults = Conventions()
    return {
        part.name: getattr(conventions, part.name)
        for part in fields(conventions)
        if getattr(conventions, part.name) != getattr(defaults, part.name)
    }


def header_lines(about: dict[str, Any]) -> list[str]:
    """The header of a run, one fact per line."""
    precision = ", ".join(f"{role} {name}" for role, name in about["precision"].items())
    conventions = ", ".join(f"{name}={value!r}" for name, value in about["conventions"].items())
    warnings = [
        f"warning         {name} is no method of the protocol; is {near} meant?"
        for name, near in about["misspelt"].items()
    ]
    warnings += [
        f"warning         {name} is declared: one rounding in it may change a value by {share}; "
        "nothing finer is judged"
        for name, share in about["coarse"].items()
    ]
    warnings += _reference_lines(about["reference"])
    seed = "" if about["seed"] is None else f", seed {about['seed']}"
    return [
        f"implementation  {about['implementation']} ({about['name']} {about['version']})",
        f"precision       {precision}",
        f"conventions     {conventions or 'the report’s'}",
        f"offers          {', '.join(name for name in about['offered'] if '.' not in name)}",
        *_ranks_lines(about["worlds"]),
        f"specification   version {about['spec_version']}, lane {about['lane']}{seed}",
        f"drawn by        Hypothesis {about['hypothesis']}, NumPy {about['numpy']}",
        *_limit_lines(about["call_seconds"]),
        *warnings,
    ]


def _limit_lines(seconds: float) -> list[str]:
    if seconds == CALL_SECONDS:
        return []
    return [f"time limit      {f'{seconds:g} s' if seconds else 'none'} per call"]


def _reference_lines(uses: Sequence[str]) -> list[str]:
    """What may be judged by itself. That is no violation: the reference is right."""
    if not uses:
        return []
    more = f", and {len(uses) - 3} more" if len(uses) > 3 else ""
    return [
        "warning         the reference is compared with itself where this implementation calls it, "
        "and passes there whatever a kernel does:",
        f"                {'; '.join(uses[:3])}{more}",
    ]


def _ranks_lines(worlds: Sequence[int]) -> list[str]:
    told = " and ".join(map(str, worlds))
    return [f"ranks           {told}, started by torchrun"] if worlds else []


def topic_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A line per topic: how many properties ended how, and the worst ratio of error to radius.

    What never called the implementation says nothing about it, and has a line of its own.
    """
    lines = [
        f"{'topic':<12}{'passed':>8}{'failed':>8}{'unknown':>9}{'not offered':>13}"
        f"{'cases':>8}  worst error / radius"
    ]
    for topic in TOPICS:
        own = [o for o in outcomes if o.topic == topic and o.about == "implementation"]
        if own:
            lines.append(_topic_line(topic, own))
    apart = [outcome for outcome in outcomes if outcome.about == "mathematics"]
    if apart:
        lines.append(_topic_line("(theory)", apart))
        lines.append("(theory): statements checked on the oracle and the reference alone")
    return lines


def _topic_line(topic: str, outcomes: Sequence[Outcome]) -> str:
    count = Counter(outcome.verdict for outcome in outcomes)
    bad = count["failed"] + count["adapter error"] + count["suite error"]
    cases = sum(outcome.cases for outcome in outcomes)
    compared = [outcome for outcome in outcomes if outcome.worst_ratio is not None]
    worst = max(compared, key=lambda outcome: outcome.worst_ratio or 0.0, default=None)
    told = "-" if worst is None else f"{worst.worst_ratio:.3g}  {worst.id}: {worst.worst_what}"
    return (
        f"{topic:<12}{count['passed']:>8}{bad:>8}{count['unknown']:>9}"
        f"{count['not offered']:>13}{cases:>8}  {told}"
    )


def unjudged_lines(offered: Sequence[str]) -> list[str]:
    """A line naming the offered methods that no property of this version judges by their values."""
    judged = {name for entry in catalogue().values() for name in (*entry.needs, *entry.any_of)}
    judged |= set(EXTRAS)
    left = [name for name in offered if name not in judged and "." not in name]
    return [f"offered, but not judged in this version: {', '.join(left)}"] if left else []


def left_out_lines(chosen: Collection[str], offered: Collection[str]) -> list[str]:
    """What a whole run in the quick lane, which judges ``chosen``, leaves to the gate."""
    apart = [entry for entry in catalogue().values() if entry.id not in chosen]
    theory = sum(entry.theory for entry in apart)
    told = [f"{theory} statements and claims that need no implementation"] if theory else []
    long = [entry.id for entry in apart if entry.long]
    told += [f"sizes, a second each: {', '.join(long)}"] if long else []
    several = [entry.id for entry in apart if "ranks" in entry.needs and "ranks" in offered]
    told += [f"on several ranks {', '.join(several)} (here with --ranks 2)"] if several else []
    return [f"left to the gate lane: {'; '.join(told)}"] if told else []


def note_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """What else happened while properties were judged, each thing once, with the first ids."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        for note in outcome.notes:
            found.setdefault(note, []).append(outcome.id)
    return [f"note: {note} ({_few(ids)})" for note, ids in found.items()]


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def figure_lines(outcomes: Sequence[Outcome], *, theory: bool) -> list[str]:
    """The figures that properties measured, one per line, the id before the first of each.

    ``theory``: also those of properties that never called the implementation.
    """
    lines = []
    for outcome in outcomes:
        if outcome.about == "mathematics" and not theory:
            continue
        labels = [outcome.id, *[""] * len(outcome.figures)]
        for label, (name, value) in zip(labels, outcome.figures.items(), strict=False):
            lines.append(f"{label:<16}{name}: {_figure(value)}")
    return lines


def _figure(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value["counted"]:
        return f"{value['sum']:.0f} of {value['cases']} cases"
    mean = value["sum"] / value["cases"]
    return f"mean {mean:.4g}, max {value['max']:.4g} over {value['cases']} cases"


def failure_text(outcome: Outcome, about: dict[str, Any], same: Sequence[str] = ()) -> str:
    """One failure: the statement, what contradicts it, the calls that show it, the command.

    ``same`` are the ids of other properties that met the same cause, and are told of here.
    """
    parts = [
        f"{outcome.id} ({outcome.kind}): {outcome.verdict}",
        f"  {outcome.headline}",
        "",
        *(f"  {line}" for line in outcome.message.splitlines()),
    ]
    if outcome.calls:
        parts += ["", f"  {outcome.shown}:"]
        parts += [f"    {line}" for call in outcome.calls for line in call.splitlines()]
        parts += _arrays_lines(outcome)
    if same:
        told = textwrap.wrap(", ".join(same), 90)
        parts += ["", f"  the same in {len(same)} more, which are not printed:"]
        parts += [f"    {line}" for line in told]
    parts += ["", f"  again: {reproduce(outcome.id, about)}"]
    parts += [f"  what it means: latentmoe-gate explain {outcome.id}"]
    return "\n".join(parts)


def _arrays_lines(outcome: Outcome) -> list[str]:
    """Where to find arrays that are too large to be printed."""
    if outcome.saved:
        return ["", f"  the arrays: np.load({outcome.saved!r})"]
    if any(is_described(call) for call in outcome.calls):
        return [
            "",
            "  large arrays are described only; the command below makes them again, and writes",
            "  them to a file with --save FOLDER",
        ]
    return []


def reproduce(property_id: str, about: dict[str, Any]) -> str:
    """The command that judges this property on the same inputs."""
    words = ["latentmoe-gate", "run", about["implementation"], "--only", property_id]
    if about["lane"] != "gate":
        words += ["--lane", about["lane"]]
    if about["ranks"] is not None:
        words += ["--ranks", str(about["ranks"])]
    if about["seed"] is not None:
        words += ["--seed", str(about["seed"])]
    if about["call_seconds"] != CALL_SECONDS:
        words += ["--call-seconds", f"{about['call_seconds']:g}"]
    return shlex.join(words)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 all offered properties hold, 1 one is violated, 2 the adapter is wrong, 3 only unknowns.

    4 means that the suite itself failed. A wrong adapter comes first: until it is right, what it
    returned was not judged.
    """
    verdicts = {outcome.verdict for outcome in outcomes}
    if "adapter error" in verdicts or _nothing_judged(outcomes):
        return EXIT_ADAPTER
    if "failed" in verdicts:
        return EXIT_VIOLATED
    if "suite error" in verdicts:
        return EXIT_SUITE
    return EXIT_UNKNOWN if "unknown" in verdicts else EXIT_PASSED


def _nothing_judged(outcomes: Sequence[Outcome]) -> bool:
    """Whether all that would have called the implementation is not offered."""
    own = [outcome.verdict for outcome in outcomes if outcome.about == "implementation"]
    return bool(own) and set(own) <= {"not offered"}


def verdict_line(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The last line: the verdict in a word, and the counts."""
    word = {
        EXIT_PASSED: "PASSED: every offered property holds",
        EXIT_VIOLATED: "FAILED: a property is violated",
        EXIT_ADAPTER: "ADAPTER ERROR: the adapter is wrong, so the verdict is not complete",
        EXIT_UNKNOWN: "UNKNOWN: no violation, but too many cases could not be decided",
        EXIT_SUITE: "SUITE ERROR: a property could not be run; this is a fault of latentmoe-gate",
    }[exit_code(outcomes)]
    if _nothing_judged(outcomes):
        word = "ADAPTER ERROR: nothing that was selected is offered, so nothing was judged"
    own = _counts([outcome for outcome in outcomes if outcome.about == "implementation"])
    theory = _counts([outcome for outcome in outcomes if outcome.about == "mathematics"])
    counts = [own, f"theory: {theory}" if theory else "", f"{seconds:.0f} s"]
    return f"{word} ({'; '.join(part for part in counts if part)})"


def failed_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The ids of all that did not pass, by verdict."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.verdict not in ("passed", "not offered"):
            found.setdefault(outcome.verdict, []).append(outcome.id)
    told = [f"{verdict}: {', '.join(ids)}" for verdict, ids in found.items()]
    return [line for lines in told for line in textwrap.wrap(lines, 100, subsequent_indent="  ")]


def _counts(outcomes: Sequence[Outcome]) -> str:
    count = Counter(outcome.verdict for outcome in outcomes)
    return ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))


def write_json(path: Path, about: dict[str, Any], outcomes: Sequence[Outcome], code: int) -> None:
    """Write the whole run as JSON; the file appears complete or not at all."""
    document = {
        **about,
        "exit_code": code,
        "properties": [outcome.as_dict() for outcome in outcomes],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document, indent=2, allow_nan=True) + "\n", encoding="utf-8")
    partial.replace(path)
