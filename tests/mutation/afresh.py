"""Mutants that were called too early are tested again, each in a process of its own.

mutmut imports the tests once, then forks for each mutant. A function that was called on import, to
register a handler or to make a constant of a test, is not called again; so its mutants took no
effect. Here the mutant is there before anything is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.mutation import scratch
from tests.mutation.packages import Package

_NONE = "none"


def judge(folder: Path, package: Package, deadline: float | None = None) -> None:
    """Write what becomes of mutants alive whose functions are called when the tests are imported.

    Those that ``deadline``, a time of time.monotonic, leaves no time for count as not run.
    Raises subprocess.CalledProcessError if the tests fail without a mutant.
    """
    scratch.run_inside(folder, "called")
    early = set(json.loads((folder / "called.json").read_text(encoding="utf-8")))
    limit: float | None = None
    for path, meta in scratch.metas(folder).items():
        codes = meta["exit_code_by_key"]
        for name in too_early(codes, early):
            limit = patience(folder, package) if limit is None else limit
            late = deadline is not None and time.monotonic() > deadline
            codes[name] = None if late else code_of(folder, package, name, limit)
        path.write_text(json.dumps(meta), encoding="utf-8")


def too_early(codes: dict[str, int | None], early: set[str]) -> Iterator[str]:
    """The mutants that live and are of a function called ``early``."""
    for name, code in codes.items():
        if (
            code in (scratch.SURVIVED, scratch.NOT_COVERED)
            and name.rpartition("__mutmut_")[0] in early
        ):
            yield name


def patience(folder: Path, package: Package) -> float:
    """How many seconds a mutant may take: several times what the tests take without one."""
    start = time.monotonic()
    code = scratch.exit_code(command(package), folder / "mutants", variables(_NONE), None)
    if code:
        raise subprocess.CalledProcessError(code, command(package))
    return 1.0 + scratch.PATIENCE * (time.monotonic() - start)


def code_of(folder: Path, package: Package, name: str, limit: float) -> int:
    """The exit code that mutmut has for what the tests say; a failing import is a failure."""
    code = scratch.exit_code(
        command(package), folder / "mutants", variables(name), limit, quiet=True
    )
    if code is None:
        return scratch.TIMEOUT
    return scratch.KILLED if code else scratch.SURVIVED


def command(package: Package) -> list[str]:
    """Run the tests of a package until one fails."""
    return [sys.executable, "-m", "pytest", "-x", "-qq", "--tb=no", "-r", "N", *package.selection]


def variables(name: str) -> dict[str, str]:
    """Where mutmut's functions look for the mutant that they are to be; the copy goes first."""
    return {"MUTANT_UNDER_TEST": name, "PYTHONPATH": os.curdir}
