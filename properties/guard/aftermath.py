"""What is known of a process that died, or was ended, while it judged."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from pathlib import Path
from typing import Any

from properties.execution import Outcome
from properties.guard.trace import decoded
from properties.guard.watchdog import read
from properties.literals import call_literal
from properties.registry import catalogue

__all__ = ["exit_status", "how_ended", "loading", "outcome_of_death", "unfinished"]

# Of the place where it stood, so many frames are told, the innermost first.
FRAMES = 6

# Where the suite calls the implementation; what is further out is of no interest.
_CALLER = str(Path("properties") / "subject.py")


def how_ended(code: int | None) -> str:
    """An exit status in words, as subprocess has it; None where it is not known."""
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    return f"{name}; often that memory ran out" if -code == signal.SIGKILL else name


def exit_status(report: Any) -> int | None:
    """How a worker of pytest-xdist ended, if its last report lets that be seen."""
    gateway = getattr(getattr(report, "node", None), "gateway", None)
    process = getattr(getattr(gateway, "_io", None), "popen", None)
    if process is None:
        return None
    with contextlib.suppress(Exception):
        return int(process.wait(timeout=2.0))
    return None


def loading(folder: Path, how: str) -> str:
    """Why the implementation could not be loaded, where a process ended of it; else nothing."""
    for path in sorted(folder.glob("*.now")):
        told = _told(path)
        if told is not None and told[0] > 0.0 and not told[1][0]:
            _, (_, label, _) = told
            hung = _note(folder / "load.hung")
            if hung is not None:
                return f"{label} took more than {hung['hung']:.0f} s, {_stack(path)}".rstrip(", ")
            return f"{label} ended the process ({how}){_stack(path)}"
    return ""


def unfinished(folder: Path, how: str) -> list[Outcome]:
    """The outcomes of what the processes with traces in the folder were judging at their end."""
    found = []
    for path in sorted(folder.glob("*.now")):
        told = _told(path)
        if told is not None and told[1][0]:
            found.append(outcome_of_death(folder, told[1][0], how))
    return found


def outcome_of_death(folder: Path | None, property_id: str, how: str) -> Outcome:
    """The outcome of a property in whose course the process died, which is noted in the folder.

    ``how`` tells how it ended, if that is known.
    """
    entry = catalogue()[property_id]
    outcome = Outcome(entry.id, entry.topic, entry.kind, "failed", entry.headline)
    outcome.shown = "the input of the last call"
    path = _trace_of(folder, property_id)
    found = None if path is None else _told(path)
    hung = None if folder is None else _note(folder / f"{property_id}.hung")
    ended = f" ({how})" if how else ""
    if folder is None or path is None or found is None:
        outcome.message = f"the process died{ended} while this property was judged"
        outcome.cause = f"died{ended}"
        return outcome
    since, (_, label, arguments) = found
    if hung is not None:
        outcome.message = f"{label} did not come back within {hung['hung']:.0f} s, and was ended"
    elif since > 0.0:
        outcome.message = f"{label} ended the process{ended}"
    else:
        after = f", after a call of {label}" if label else ""
        outcome.message = f"the process died{ended} between calls{after}"
    outcome.cause = outcome.message
    outcome.message += _stack(path)
    if label:
        outcome.calls = [_literal(label, arguments)]
    if hung is None and since > 0.0:
        note = {"label": label, "how": how}
        (folder / f"{property_id}.died").write_text(json.dumps(note), encoding="utf-8")
    path.rename(path.with_suffix(".dead"))  # the number of its process may be given to another
    return outcome


def _told(path: Path) -> tuple[float, tuple[str, str, Any]] | None:
    try:
        since, _, told = read(path)
    except (ValueError, OSError):
        return None
    return since, told


def _trace_of(folder: Path | None, property_id: str) -> Path | None:
    for path in sorted(folder.glob("*.now")) if folder is not None else []:
        told = _told(path)
        if told is not None and told[1][0] == property_id:
            return path
    return None


def _note(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return note


def _literal(label: str, arguments: Any) -> str:
    if arguments is None:
        return f"{label}(…)  # too large to be kept"
    return call_literal(label, decoded(arguments))


def _stack(path: Path) -> str:
    """Where the thread that judged stood: faulthandler dumps threads newest first."""
    stack = path.with_suffix(".stack")
    text = stack.read_text(encoding="utf-8", errors="replace") if stack.exists() else ""
    blocks = [block for block in text.split("\n\n") if "  File " in block]
    if not blocks:
        return ""
    current = [block for block in blocks if block.lstrip().startswith("Current thread")]
    frames = [line for line in (current or blocks[-1:])[0].splitlines() if "  File " in line]
    frames = list(itertools.takewhile(lambda line: _CALLER not in line, frames)) or frames
    return "\n  at:\n" + "\n".join(f"  {line}" for line in frames[:FRAMES])
