"""docs/mutation.md: scores by package and file, and what the survivors are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.mutation.packages import PACKAGES
from tests.mutation.triage import OPEN, kind_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutation.md"

ALIVE = ("survived", "not covered", "suspicious")
FELLED = ("killed", "timeout")
COLUMNS = (*FELLED, *ALIVE)

HEAD = """\
# Mutation testing of the project's own code

`make mutation ARGS=PACKAGE` changes the code of a package in every small way that mutmut knows (an
operator, a number, an argument, a string), one at a time, and runs the tests that reach the changed
function. The tests *kill* a mutant if one of them fails; a mutant that runs far longer than its
tests is a *timeout* and counts as killed. Mutants of functions that loading the tests already calls
run once more, each in a process that has it from the start.

The score is killed and timeout over all mutants that were run or that no test reaches. Packages,
tests and the tests left out are named in `tests/mutation/packages.py`; the kinds of survivors in
`tests/mutation/triage.py` and the `rules_*.py` beside it.
"""

Mutants = Mapping[str, Mapping[str, Any]]


def write(results: Mapping[str, Any], page: Path = PAGE) -> None:
    """Put the section of one package on the page; those of the others stay."""
    sections = read(page)
    sections[results["package"]] = section(results)
    ordered = [sections[name] for name in PACKAGES if name in sections]
    page.write_text("\n".join([HEAD, *ordered]), encoding="utf-8")


def read(page: Path) -> dict[str, str]:
    """The sections on the page by the package in their titles."""
    if not page.exists():
        return {}
    parts = page.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.split("`")[1]: f"## {part.rstrip()}\n" for part in parts}


def counted(mutants: Mutants) -> list[Mapping[str, Any]]:
    """Those that belong to the denominator."""
    return [mutant for mutant in mutants.values() if mutant["status"] in COLUMNS]


def score(mutants: Mutants) -> tuple[int, int]:
    """Numerator and denominator."""
    taken = counted(mutants)
    return sum(mutant["status"] in FELLED for mutant in taken), len(taken)


def score_line(results: Mapping[str, Any]) -> str:
    """The score in one sentence, with what it is not of."""
    mutants = results["mutants"]
    killed, total = score(mutants)
    share = f"{100 * killed / total:.1f} %" if total else "nothing run"
    line = f"{results['package']}: {killed} of {total} mutants killed ({share})"
    absent = Counter(mutant["status"] for mutant in mutants.values())
    if absent["not drawn"]:
        line += f"; a sample, every mutant number 1 + {results['every']}n of {len(mutants)}"
    if absent["not run"]:
        line += f"; {absent['not run']} mutants were not run, for lack of time"
    return line


def section(results: Mapping[str, Any]) -> str:
    """The section of a package."""
    mutants = results["mutants"]
    lines = [f"## `{results['package']}`", "", f"{score_line(results)}.", ""]
    lines += ["| file | " + " | ".join(COLUMNS) + " | score |", "|---" * (len(COLUMNS) + 2) + "|"]
    for file in sorted({mutant["file"] for mutant in mutants.values()}):
        lines.append(row(f"`{file}`", {n: m for n, m in mutants.items() if m["file"] == file}))
    lines += [row("all", mutants), "", *survivors(mutants)]
    return "\n".join(lines).rstrip() + "\n"


def row(name: str, mutants: Mutants) -> str:
    """One line of the table of files."""
    counts = Counter(mutant["status"] for mutant in mutants.values())
    killed, total = score(mutants)
    cells = [name, *(str(counts[column]) for column in COLUMNS), f"{killed} / {total}"]
    return f"| {' | '.join(cells)} |"


def survivors(mutants: Mutants) -> list[str]:
    """Mutants alive by kind, with reasons; those without a kind are listed one by one."""
    alive = [mutant for mutant in mutants.values() if mutant["status"] in ALIVE]
    if not alive:
        return ["No mutant survives."]
    reasons = Counter(kind_of(mutant) for mutant in alive)
    lines = ["| kind of survivor | mutants | why it lives |", "|---|---|---|"]
    for (kind, why), number in sorted(reasons.items()):
        lines.append(f"| {kind} | {number} | {why} |")
    untriaged = [mutant for mutant in alive if kind_of(mutant) == OPEN]
    if untriaged:
        lines += ["", "Not judged yet:", ""]
        lines += [f"* {listed(mutant)}" for mutant in untriaged]
    return lines


def listed(mutant: Mapping[str, Any]) -> str:
    """One mutant in a line."""
    change = f"`{one_line(mutant['before'])}` becomes `{one_line(mutant['after'])}`"
    return f"`{mutant['file']}`, `{mutant['function']}` ({mutant['status']}): {change}"


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")
