"""Judge every wrong implementation by the properties of its topic: the data of docs/kills.md.

    python -m tests.kills.run [--all] [--workers N] [WORD...]

Rows are kept in kills.json beside this file, which is written after each of them: an interrupted
run goes on where it stopped. Judged are the mutants whose row is missing or older than their
source, all of them with ``--all``, of those whose name contains a WORD where words are given.
For each property, mutants that no other one kills in the quick lane are then shown to the others in
the gate lane, until one is found that none of them kills. At the end the page is written.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.kills.judging import (
    Row,
    by_name,
    calling,
    cells,
    cells_of_correct,
    correct,
    digest,
    origin,
    other_killer,
    row,
    row_of_correct,
)
from tests.kills.page import PAGE, page
from tests.test_mutants import name_of

DATA = Path(__file__).parent / "kills.json"

Known = dict[str, dict[str, Row]]


def main(arguments: Sequence[str]) -> int:
    """Judge what is asked for, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.run", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--all", action="store_true", help="judge again what is known")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    names = [
        name
        for name in by_name()
        if not options.words or any(word in name for word in options.words)
    ]
    if not names:
        parser.error(f"no mutant has {' or '.join(options.words)} in its name")
    known = read()
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        judge_rows(pool, known, names, again=options.all)
        judge_correct(pool, known, names)
        find_alone(pool, known, names)
    PAGE.write_text(page(read()), encoding="utf-8")
    return 0


def read() -> Known:
    """The rows known so far, without those of implementations that are gone."""
    found: Known = {"mutants": {}, "correct": {}}
    if DATA.exists():
        found = json.loads(DATA.read_text(encoding="utf-8"))
    there = {"mutants": by_name(), "correct": correct()}
    return {
        part: {name: found[part][name] for name in there[part] if name in found[part]}
        for part in found
    }


def write(known: Known, path: Path = DATA) -> None:
    """One line per implementation, in the order of the files, whole or not at all."""
    parts = []
    for part, order in (("mutants", by_name()), ("correct", correct())):
        rows = known[part]
        lines = [f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in order if name in rows]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    unfinished = path.with_suffix(".part")
    unfinished.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    unfinished.replace(path)


def judge_rows(pool: Executor, known: Known, names: Sequence[str], *, again: bool) -> None:
    """Judge these mutants, those whose row is current only if asked to do so again."""
    rows = known["mutants"]
    wanted = [name for name in names if again or stale(name, rows)]
    for done, (name, found) in enumerate(_each(pool, row, wanted), start=1):
        rows[name] = found
        write(known)
        told = ", ".join(found["killed"]) or "nothing"
        print(f"[{done}/{len(wanted)}] {name}: {told}", flush=True)


def judge_correct(pool: Executor, known: Known, names: Sequence[str]) -> None:
    """Judge what these mutants are derived from, unless the rows are current."""
    rows = known["correct"]
    origins = {name_of(origin(by_name()[name])): None for name in names}
    wanted = [name for name in origins if stale_correct(name, rows)]
    for name, found in _each(pool, row_of_correct, wanted):
        rows[name] = found
        write(known)
        print(f"correct {name}: fails {', '.join(found['failed']) or 'nothing'}", flush=True)


def find_alone(pool: Executor, known: Known, names: Sequence[str]) -> None:
    """Look for mutants that one property alone kills in the gate lane, one for each property."""
    rows = known["mutants"]
    settled = {found["named"] for found in rows.values() if found.get("alone")}
    candidates = [
        [name for name in names if rows[name]["killed"] == [i] and "alone" not in rows[name]]
        for i in sorted(calling() - settled)
    ]
    for _, others in _each(pool, first_alone, [some for some in candidates if some]):
        for name, other in others.items():
            rows[name]["alone"] = other is None
            rows[name]["killed"] += [other] if other else []
            print(f"{name}: {other or 'no other property'} in the gate lane", flush=True)
        write(known)


def stale(name: str, rows: Mapping[str, Row]) -> bool:
    """Whether a mutant has no row, or one from before its source or its properties changed."""
    mutant = by_name()[name]
    return name not in rows or rows[name]["digest"] != digest(mutant, cells(mutant))


def stale_correct(name: str, rows: Mapping[str, Row]) -> bool:
    """The same of what mutants are derived from."""
    ids = cells_of_correct()[name]
    return name not in rows or rows[name]["digest"] != digest(correct()[name], ids)


def first_alone(names: Sequence[str]) -> dict[str, str | None]:
    """For each of these mutants, up to the first that has none, another property that kills it."""
    found: dict[str, str | None] = {}
    for name in names:
        found[name] = other_killer(name)
        if found[name] is None:
            break
    return found


def _each(
    pool: Executor, function: Callable[[Any], Any], arguments: Sequence[Any]
) -> Iterator[tuple[Any, Any]]:
    """Arguments and results, as they come in."""
    tasks = {pool.submit(function, argument): argument for argument in arguments}
    for task in as_completed(tasks):
        yield tasks[task], task.result()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
