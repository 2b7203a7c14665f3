"""What the processes of one run leave for each other, and the process that watches them.

All of it lies in one folder: the traces of the processes, the verdicts so far, and notes about
calls that hung or ended their process.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from properties.execution import Outcome
from properties.guard import watchdog
from properties.guard.trace import Trace

if TYPE_CHECKING:
    import pytest

__all__ = ["DONE", "VERDICTS", "Watching"]

# The verdicts of a run, one a line; and the names of threads that keep a process from ending.
VERDICTS = "verdicts.jsonl"
DONE = "done.json"

# What a worker says of the implementation when it has loaded it, and how long that is waited for.
ABOUT = "about.json"
ABOUT_SECONDS = 15.0


class Watching:
    """This process' part in it; the process that reports also starts the one that watches.

    ``known`` are verdicts of a process that died since, by id.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.started = time.perf_counter()
        option = config.option
        given = option.gate_call_seconds
        self.call_seconds: float = watchdog.CALL_SECONDS if given is None else given
        self._is_worker = hasattr(config, "workerinput")
        self._own = not option.gate_folder
        if self._own:  # workers are given the options as they are now
            option.gate_folder = tempfile.mkdtemp(prefix="latentmoe-gate-")
        if option.gate_lane == "nightly" and option.gate_seed is None:
            option.gate_seed = random.SystemRandom().randrange(10**9)  # told, so that it repeats
        self.folder = Path(option.gate_folder)
        self.known = verdicts(self.folder)
        self._watchdog: subprocess.Popen[bytes] | None = None
        if not self._is_worker:
            self._watchdog = watchdog.start(self.folder, tell=self._own)
        config.add_cleanup(self._close)
        self.trace = Trace(self.folder, self.call_seconds)

    def note(self, outcome: Outcome) -> None:
        """Keep a verdict for the process that may have to go on after this one."""
        if outcome.id not in self.known:
            add_verdict(self.folder, outcome)

    def tell(self, about: dict[str, Any] | None) -> None:
        """Say what is going to be judged, or None if it could not be loaded, for ``told``."""
        if self._is_worker:
            path = self.folder / f"{ABOUT}.{os.getpid()}"
            path.write_text(json.dumps(about), encoding="utf-8")
            path.replace(self.folder / ABOUT)

    def told(self) -> dict[str, Any] | None:
        """What a worker has to say, or None if that does not come, as from one that died."""
        path, end = self.folder / ABOUT, time.monotonic() + ABOUT_SECONDS
        while time.monotonic() < end and not any(map(_ended, self.trace.others())):
            if path.exists():
                about: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8"))
                return about
            time.sleep(0.02)
        return None

    def _close(self) -> None:
        """All is judged and told."""
        if self._watchdog is None:
            return
        watchdog.close(self._watchdog)
        main = threading.main_thread()
        kept = [t.name for t in threading.enumerate() if t is not main and not t.daemon]
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            (self.folder / DONE).write_text(json.dumps(kept), encoding="utf-8")


def _ended(child: int) -> bool:
    """Whether a child of this process has ended, which others may still ask for."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
    except AttributeError:  # where the system does not tell
        return False


def verdicts(folder: Path) -> dict[str, Outcome]:
    """The verdicts so far, by id."""
    path = folder / VERDICTS
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [Outcome(**json.loads(line)) for line in lines]
    return {outcome.id: outcome for outcome in found}


def add_verdict(folder: Path, outcome: Outcome) -> None:
    """Add one."""
    with (folder / VERDICTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome.as_dict()) + "\n")
