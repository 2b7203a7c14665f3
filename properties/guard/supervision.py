"""A run in processes of its own, which goes on where an implementation ends one of them.

pytest-xdist replaces workers. A process that works alone, or reports for the workers, is replaced
here: the next one is given the verdicts so far, and judges the rest, without workers, so that a
further death tells whose it is.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from properties.guard.aftermath import how_ended, loading, unfinished
from properties.guard.watching import DONE, add_verdict

__all__ = ["Ended", "supervised"]

# How long a process may take to end when all is told.
EXIT_SECONDS = 10.0

_USAGE = 4  # pytest's exit code for a call that it refuses, with a message


class Ended(NamedTuple):
    """How a run ended: with a result, refused with a message, or neither, which is told."""

    result: bool
    refused: bool
    trouble: str


def supervised(
    command: Callable[[bool], list[str]], environment: Mapping[str, str], folder: Path, result: Path
) -> Ended:
    """Run pytest until it has written ``result``, or cannot.

    ``command`` is given whether it may use workers. Whatever ends a process while it judges a
    property fails that property, so that the run comes to an end.
    """
    alone = False
    while True:
        code, kept = _run(command(alone), environment, folder)
        if result.exists():
            return Ended(True, False, _after(code, kept))
        how = how_ended(code)
        refused = loading(folder, how)
        if refused or code == _USAGE:
            return Ended(False, True, refused)
        guilty = unfinished(folder, how)
        if not guilty or (alone and len(guilty) > 1):
            return Ended(False, False, f"the suite failed (pytest: {how})")
        for outcome in guilty if alone or "-n" not in command(False) else []:
            add_verdict(folder, outcome)
            print(f"\nlatentmoe-gate: {outcome.id}: {outcome.message}", file=sys.stderr)
        print("latentmoe-gate: going on in a fresh process\n", file=sys.stderr, flush=True)
        for trace in folder.glob("*.now"):
            trace.unlink()
        alone = True


def _run(
    command: list[str], environment: Mapping[str, str], folder: Path
) -> tuple[int, list[str] | None]:
    """The exit code, and the threads that kept the process from ending if it had to be killed."""
    done = folder / DONE
    done.unlink(missing_ok=True)
    with subprocess.Popen(command, env=environment) as process:
        try:
            while process.poll() is None and not done.exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=EXIT_SECONDS), None
            process.kill()
            kept: list[str] = json.loads(done.read_text(encoding="utf-8"))
            return process.wait(), kept
        except BaseException:
            process.kill()
            raise


def _after(code: int, kept: list[str] | None) -> str:
    """What was wrong with the end of a process that had told its verdict."""
    if kept is not None:
        threads = f", for threads that the adapter left running: {', '.join(kept)}" if kept else ""
        return f"the process did not end within {EXIT_SECONDS:.0f} s after the verdict{threads}"
    if code < 0:
        return f"the process died after the verdict ({how_ended(code)})"
    return ""
