"""Change this project's own code in every small way that mutmut knows, and run its tests.

    python -m tests.mutation.run [--every N] [--again] [--minutes M] PACKAGE

PACKAGE is reference_numpy, lp_oracle or rounding. All is done in a temporary copy. The results go
to build/mutation-PACKAGE.json, their summary to docs/mutation.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation import afresh, page, scratch
from tests.mutation.packages import PACKAGES, Package

STATUS = {None: "not run", 0: "survived", 33: "not covered", 5: "not covered", 34: "not drawn"}
STATUS |= {1: "killed", 3: "killed", -11: "killed", 36: "timeout", 24: "timeout"}
STATUS |= {152: "timeout", 255: "timeout", -24: "timeout", -9: "timeout"}


def main(arguments: Sequence[str]) -> int:
    """Run, write the results and the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=__doc__)
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--every", type=_positive, default=1, metavar="N", help="one mutant in N")
    parser.add_argument(
        "--again", action="store_true", help="run only what was not killed the last time"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so many minutes")
    options = parser.parse_args(arguments)
    package = PACKAGES[options.package]
    known: dict[str, Any] = {}
    if options.again:
        if not target(package).exists():
            parser.error(f"--again needs {target(package)}: run without it first")
        known = json.loads(target(package).read_text(encoding="utf-8"))["mutants"]
    try:
        results = measure(package, known, options.every, options.minutes)
    except subprocess.CalledProcessError as error:
        print(f"mutation: {error}", file=sys.stderr)
        return 2
    target(package).parent.mkdir(exist_ok=True)
    target(package).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page.write(results)
    print(page.score_line(results))
    return 0


def _positive(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number, 1 or more")
    return int(word)


def target(package: Package) -> Path:
    """Where the results of a package go."""
    return scratch.ROOT / "build" / f"mutation-{package.name}.json"


def measure(
    package: Package, known: dict[str, Any], every: int, minutes: float | None
) -> dict[str, Any]:
    """Run the mutants in a copy; what became of each of them."""
    with scratch.copy_of_the_repository(package) as folder:
        scratch.run_inside(folder, "generate")
        scratch.preset(folder, known, every)
        seconds = None if minutes is None else 60 * minutes
        deadline = None if seconds is None else time.monotonic() + seconds
        if not scratch.run_inside(folder, "run", seconds=seconds):
            print("\nmutation: out of time; the mutants left count as not run", file=sys.stderr)
        afresh.judge(folder, package, deadline)
        return {"package": package.name, "every": every, "mutants": collect(folder)}


def collect(folder: Path) -> dict[str, dict[str, Any]]:
    """Every mutant with its file, function, exit code and status; what it changes if it lives."""
    found: dict[str, dict[str, Any]] = {}
    for path, meta in scratch.metas(folder).items():
        file = str(path.relative_to(folder / "mutants").with_suffix(""))
        for name, code in meta["exit_code_by_key"].items():
            found[name] = {
                "file": file,
                "function": function_of(name),
                "digest": scratch.digest_of(meta, name),
                "code": code,
                "status": STATUS.get(code, "suspicious"),
            }
    living = [name for name, of in found.items() if of["status"] in page.ALIVE]
    for name, change in scratch.diffs(folder, living).items():
        found[name] |= change
    return found


def function_of(name: str) -> str:
    """The name in the source of ``file.x_name__mutmut_3`` or ``file.xǁClassǁname__mutmut_3``."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    if mangled.startswith("xǁ"):
        return ".".join(mangled.split("ǁ")[1:])
    return mangled.removeprefix("x_")


if __name__ == "__main__":
    os.chdir(scratch.ROOT)
    sys.exit(main(sys.argv[1:]))
