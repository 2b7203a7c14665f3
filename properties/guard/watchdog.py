"""A process beside the gate that ends what does not come back.

Every process that judges keeps a file of shared memory that says since when it has been in a call
of the implementation (``trace`` writes it). This process looks at those files a few times a second.
A call may hold the interpreter, so it is not interrupted: its process is asked where it stands, and
killed. Who runs the gate goes on in a fresh process.

Started with a path, not as a module, and with the standard library alone, so that it costs little.
"""

from __future__ import annotations

import json
import marshal
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

# How long one call of an implementation may take; compiling a kernel counts. 0 is no limit.
CALL_SECONDS = 60.0

# How long importing and constructing it may take.
LOAD_SECONDS = 120.0

# Since when the process has been in a call (0 where it is in none), the limit, the size of what
# follows: property, label and arguments.
HEADER = struct.Struct("<ddI")

_POLL_SECONDS = 0.25
_STACK_SECONDS = 2.0


def start(folder: Path, *, tell: bool) -> subprocess.Popen[bytes]:
    """Watch the traces in ``folder`` until standard input of the new process is closed.

    ``tell``: describe on standard error what was called when this process died, as nobody else
    will.
    """
    command = [sys.executable, "-P", __file__, str(folder), "tell" if tell else "quiet"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def close(process: subprocess.Popen[bytes]) -> None:
    """End the watching, in a process that ends well."""
    process.communicate(b"done", timeout=10.0)


def read(path: Path) -> tuple[float, float, tuple[str, str, Any]]:
    """What a trace says: the start of the call, its limit, and (property, label, arguments).

    Raises ValueError if nothing, or nothing whole, has been written.
    """
    content = path.read_bytes()
    if len(content) < HEADER.size:
        raise ValueError(f"{path} is empty")
    since, limit, size = HEADER.unpack_from(content)
    try:
        told = marshal.loads(content[HEADER.size : HEADER.size + size])
    except (EOFError, TypeError) as error:
        raise ValueError(f"{path} is being written") from error
    return since, limit, told


def main() -> None:
    """Watch until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    folder = Path(sys.argv[1])
    ended: set[Path] = set()
    while not select.select([sys.stdin.buffer], [], [], _POLL_SECONDS)[0]:
        for path in folder.glob("*.now"):
            if path not in ended and _overdue(path):
                ended.add(path)
                _end(path)
    if sys.stdin.buffer.read() != b"done" and sys.argv[2] == "tell":
        _tell(folder, sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


def _overdue(path: Path) -> bool:
    try:
        with path.open("rb") as trace:
            since, limit, _ = HEADER.unpack(trace.read(HEADER.size))
    except (OSError, struct.error):
        return False
    return bool(since > 0.0 and 0.0 < limit < time.monotonic() - since)


def _end(path: Path) -> None:
    """Note what hung, ask where, and kill. A trace of a process that is gone stands still."""
    process = int(path.stem)
    try:
        _, limit, (property_id, label, _) = read(path)
        os.kill(process, 0)
    except (ValueError, ProcessLookupError):
        return
    note = {"hung": limit, "label": label, "process": process}
    path.with_name(f"{property_id or 'load'}.hung").write_text(json.dumps(note), encoding="utf-8")
    stack, end = path.with_suffix(".stack"), time.monotonic() + _STACK_SECONDS
    try:
        os.kill(process, signal.SIGUSR1)
        size = -1
        while time.monotonic() < end and (size <= 0 or stack.stat().st_size > size):
            size = stack.stat().st_size
            time.sleep(0.1)
        os.kill(process, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        return


def _tell(folder: Path, stream: IO[str]) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from properties.guard.aftermath import unfinished

    for outcome in unfinished(folder, ""):
        print(f"\nlatentmoe-gate: {outcome.id}: {outcome.message}", file=stream)
        print("\n".join(outcome.calls), file=stream, flush=True)


if __name__ == "__main__":
    main()
