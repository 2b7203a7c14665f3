"""A copy of the repository in which mutmut works, so that nothing of it is left in this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from properties.plugin import THREAD_VARIABLES
from tests.mutation.packages import Package
from tests.mutation.page import FELLED

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("reference_numpy", "impl_torch", "lp_oracle", "properties", "tests", "docs", "benchmarks")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "Makefile")

# A mutant may take this many times the processor time of its tests, plus a second.
PATIENCE = 4.0


@contextmanager
def copy_of_the_repository(package: Package) -> Iterator[Path]:
    """A temporary copy with mutmut's options in it; gone afterwards."""
    with TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        skipped = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
        for part in COPIED:
            shutil.copytree(ROOT / part, folder / part, ignore=skipped)
        for part in FILES:
            shutil.copy2(ROOT / part, folder / part)
        with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(options(package))
        yield folder


def options(package: Package) -> str:
    """The table of mutmut's options; an array of strings reads the same in JSON and in TOML."""
    kept = [part for part in (*COPIED, *FILES) if part != package.source]
    return "\n".join(
        (
            "",
            "[tool.mutmut]",
            f"source_paths = {json.dumps([package.source])}",
            f"also_copy = {json.dumps(kept)}",
            f"pytest_add_cli_args_test_selection = {json.dumps(package.selection)}",
            f"timeout_multiplier = {PATIENCE}",
            "use_git_change_detection = false",
            "",
        )
    )


def run_inside(folder: Path, *arguments: str, seconds: float | None = None) -> bool:
    """Run a worker of this package in the copy; whether it came to its end in time.

    Raises subprocess.CalledProcessError if it fails.
    """
    command = [sys.executable, str(Path(__file__).with_name("inside.py")), *arguments]
    code = exit_code(command, folder, {}, seconds)
    if code:
        raise subprocess.CalledProcessError(code, command)
    return code is not None


def exit_code(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    seconds: float | None,
    *,
    quiet: bool = False,
) -> int | None:
    """The exit code of a command, on one thread and with ``variables`` set; None if out of time."""
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), **variables}
    output = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
    ) as child:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            _stop(child)
            return None
        except BaseException:
            _stop(child)
            raise


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the worker and the mutant it is running: they are a process group of their own."""
    os.killpg(child.pid, 9)
    child.wait()


def metas(folder: Path) -> dict[Path, dict[str, Any]]:
    """What mutmut knows of each file: names of mutants, exit codes, digests of functions."""
    return {
        path: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "mutants").rglob("*.meta"))
    }


def preset(folder: Path, known: dict[str, dict[str, Any]], every: int) -> None:
    """Mark mutants that need not be run: killed before in the same function, or not drawn."""
    number = 0
    for path, meta in metas(folder).items():
        codes = meta["exit_code_by_key"]
        for name in codes:
            before = known.get(name, {})
            number += 1
            if (number - 1) % every:
                codes[name] = SKIPPED
            elif before.get("digest") == digest_of(meta, name) and before["status"] in FELLED:
                codes[name] = before["code"]
        path.write_text(json.dumps(meta), encoding="utf-8")


# Exit codes that mutmut has for what became of a mutant.
SURVIVED, KILLED, NOT_COVERED, SKIPPED, TIMEOUT = 0, 1, 33, 34, 36


def digest_of(meta: dict[str, Any], name: str) -> str | None:
    """The digest of the function that a mutant is one of."""
    function = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    found: str | None = meta["hash_by_function_name"].get(function)
    return found


def diffs(folder: Path, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """For each mutant the lines taken away and those put in."""
    asked = folder / "asked.json"
    asked.write_text(json.dumps(list(names)), encoding="utf-8")
    run_inside(folder, "diffs")
    found: dict[str, dict[str, str]] = json.loads((folder / "diffs.json").read_text())
    return found
