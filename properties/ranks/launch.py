"""The processes of one torchrun: started, connected, asked where they stand, and ended.

Ranks lead sessions of their own, out of reach of a signal to torchrun's group. So a launch ends by
its connections: a rank exits when its own closes, even if the controller was killed, and torchrun
then ends the others. A rank that cannot listen, since its call holds the interpreter, is killed by
the process id that it gave.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from properties.errors import RanksError
from properties.ranks.program import Hello
from properties.ranks.worker import FOLDER, KEY, dump_of, log_of, socket_in

# How long the ranks may take to start, which is mostly the import of torch.
START_SECONDS = 120.0

# What torch imports at the first call of these methods.
MODULES = {
    "experts_vjp": "torch.fx.experimental.symbolic_shapes",
    "layer_vjp": "torch.fx.experimental.symbolic_shapes",
    "balancer.observe_recomputed": "torch._dynamo",
}

# How long ended processes are waited for, and a rank that was asked where it stands.
END_SECONDS = 20.0
DUMP_SECONDS = 2.0

# What is told of a log, and of a stack.
LINES = 30
FRAMES = 16

__all__ = ["START_SECONDS", "Launch", "modules_for", "require_torchrun"]


def modules_for(offered: Collection[str]) -> tuple[str, ...]:
    """What all ranks will import for methods that are offered, a second's work for each of them.

    Of use where they make many calls: forked off a process that has done so, they need not.
    """
    return tuple({name: None for method, name in MODULES.items() if method in offered})


def require_torchrun() -> None:
    """Raise RanksError where torch, and with it torchrun, is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise RanksError(
            f"several ranks are started by torchrun, but {sys.executable} has no torch; install "
            "it, or judge one process with --ranks 1"
        )


class Launch:
    """Ranks 0 … W - 1, each behind a connection."""

    def __init__(self, world: int, modules: Sequence[str] = ()) -> None:
        """Start torchrun, which imports those modules, and wait for every rank.

        Raises RanksError, with what torchrun wrote, if a rank does not come within START_SECONDS.
        """
        self.world = world
        self.served: set[str] = set()
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._processes: dict[int, int] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="gate-", dir=_short_folder()))
        key = secrets.token_bytes(32)
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(socket_in(self._folder))
                server.listen(world)
                server.settimeout(0.2)
                self._torchrun = _torchrun(world, self._folder, key, modules)
                self._meet(server, key)
        except BaseException:
            self.kill()
            raise

    @property
    def connections(self) -> dict[int, Connection[Any, Any]]:
        """The connection of each rank."""
        return self._connections

    def _meet(self, server: socket.socket, key: bytes) -> None:
        end = time.monotonic() + START_SECONDS
        while len(self._connections) < self.world:
            if self._torchrun.poll() is not None:
                raise RanksError(self._not_started("torchrun ended"))
            if time.monotonic() > end:
                raise RanksError(self._not_started(f"no answer within {START_SECONDS:.0f} s"))
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                continue
            try:
                self._greet(Connection(accepted.detach()), key)
            except EOFError:
                raise RanksError(self._not_started("a rank ended")) from None

    def _greet(self, connection: Connection[Any, Any], key: bytes) -> None:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        hello: Hello = connection.recv()
        self._connections[hello.rank] = connection
        self._processes[hello.rank] = hello.process

    def _not_started(self, why: str) -> str:
        missing = [str(rank) for rank in range(self.world) if rank not in self._connections]
        told = "".join(f"\n{self.log(rank)}" for rank in range(self.world) if self.log(rank))
        return (
            f"{self.world} ranks could not be started: {why}, and nothing came from rank "
            f"{', '.join(missing)}; torchrun wrote:\n{_tail(self._folder / 'torchrun.log')}{told}"
        )

    # What is known of a rank -------------------------------------------------------------------

    def log(self, rank: int) -> str:
        """The last lines that a rank printed."""
        return _tail(log_of(self._folder, rank))

    def stack(self, rank: int) -> str:
        """Where the main thread of a rank stands, or what it printed where it cannot tell."""
        dump, end = dump_of(self._folder, rank), time.monotonic() + DUMP_SECONDS
        os.kill(self._processes[rank], signal.SIGUSR1)
        size = -1
        while time.monotonic() < end and (size <= 0 or dump.stat().st_size > size):
            size = dump.stat().st_size
            time.sleep(0.1)
        # Threads are dumped newest first, their innermost frames at the top.
        stack = dump.read_text().rstrip().rpartition("\n\n")[2].splitlines()
        return "\n".join(stack[:FRAMES]) or self.log(rank)

    def how_ended(self, rank: int) -> str:
        """How a rank died, as torchrun, which waited for it, reports."""
        try:
            self._torchrun.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            return "torchrun does not say how"
        report = (self._folder / "torchrun.log").read_text(errors="replace")
        found = re.search(rf"exitcode\s*:\s*(-?\d+)\s*\(pid: {self._processes[rank]}\)", report)
        if found is None:
            return "torchrun does not say how"
        code = int(found[1])
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    # The end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let idle ranks go, and torchrun, which would wait for more of them than their end."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(None)
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.poll(END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End every process of the launch, whatever it is doing."""
        for rank, connection in self._connections.items():
            if not _at_end(connection):
                os.kill(self._processes[rank], signal.SIGKILL)
            connection.close()
        self._connections.clear()
        torchrun = getattr(self, "_torchrun", None)
        if torchrun is not None and torchrun.poll() is None:
            torchrun.terminate()
            try:
                torchrun.wait(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                torchrun.kill()
                torchrun.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _torchrun(
    world: int, folder: Path, key: bytes, modules: Sequence[str]
) -> subprocess.Popen[bytes]:
    options = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(world)]
    options += ["--log-dir", str(folder / "torchrun")]  # otherwise left behind where it is killed
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")
    if sys.platform.startswith("linux"):
        # Forked off torchrun, which knows torch and has not touched a device, ranks start at once.
        imports = ", ".join(("torch.distributed.run", "properties.loading", *modules))
        start = ["-c", f"import {imports}; torch.distributed.run.main()"]
        options += ["--start-method", "fork"]
        options += ["--run-path", str(Path(__file__).with_name("worker.py"))]
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    else:
        start = ["-m", "torch.distributed.run"]
        options += ["-m", "properties.ranks.worker"]
    root = str(Path(__file__).parents[2])
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = root if not path else root + os.pathsep + path
    environment |= {FOLDER: str(folder), KEY: key.hex(), "PYTHONSAFEPATH": "1"}
    with (folder / "torchrun.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *start, *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _at_end(connection: Connection[Any, Any]) -> bool:
    """Whether the other side has gone; what it had to say is not wanted any more."""
    try:
        while connection.poll():
            connection.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


def _short_folder() -> str | None:
    """Where folders of launches are made: a socket's address may not be longer than 100 bytes."""
    return None if len(tempfile.gettempdir()) < 60 else "/tmp"


def _tail(path: Path) -> str:
    """The last lines of a log; of a crash its first, where its own frames are."""
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    crashes = [place for place, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if crashes:
        return "\n".join(lines[max(0, crashes[-1] - LINES // 2) :][: LINES + LINES // 2])
    return "\n".join(lines[-LINES:])
