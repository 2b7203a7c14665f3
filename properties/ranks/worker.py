"""What runs in each rank: ``python -m torch.distributed.run … -m properties.ranks.worker``.

A rank connects to the controller, waits for programs, and answers each with its results or with a
traceback. It ends when the connection does, whatever its calls are waiting for.

What it prints goes to a log, since only the controller speaks to the user.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from functools import cache
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from properties.ranks.program import (
    CONSTRUCTION,
    IMPLEMENTATION,
    TRAFFIC,
    At,
    Done,
    Failed,
    Hello,
    Kept,
    Order,
    Step,
)

FOLDER = "LATENTMOE_GATE_RANKS"
KEY = "LATENTMOE_GATE_KEY"

__all__ = ["FOLDER", "KEY", "dump_of", "log_of", "main", "socket_in"]


def socket_in(folder: Path) -> str:
    """The address of the controller, a socket in the folder of a launch."""
    return str(folder / "socket")


def log_of(folder: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return folder / f"rank{rank}.log"


def dump_of(folder: Path, rank: int) -> Path:
    """Where a rank writes where it stands, when it is sent SIGUSR1."""
    return folder / f"rank{rank}.dump"


def main() -> None:
    """Serve the controller until it closes the connection."""
    folder, rank = Path(os.environ[FOLDER]), int(os.environ["RANK"])
    _redirect(log_of(folder, rank))
    _end_when_told()
    faulthandler.enable()
    dump = dump_of(folder, rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=dump, all_threads=True)
    connection: Connection[Any, Any] = Client(
        socket_in(folder), authkey=bytes.fromhex(os.environ.pop(KEY))
    )
    connection.send(Hello(rank, os.getpid()))
    orders: queue.Queue[Order] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, orders), daemon=True).start()
    while True:
        _obey(orders.get(), connection)


def _redirect(log: Path) -> None:
    """Standard output and error of this process, of C libraries too, to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())


def _end_when_told() -> None:
    """Forked off torchrun, a rank has its handlers, which do nothing while a call does not end."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _receive(connection: Connection[Any, Any], orders: queue.Queue[Order]) -> None:
    """Pass orders on; a controller that is gone ends this process in the middle of any call.

    As a failure, upon which torchrun ends every other rank, even one that cannot listen.
    """
    while True:
        try:
            order: Order | None = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if order is None:
            os._exit(0)
        orders.put(order)


def _obey(order: Order, connection: Connection[Any, Any]) -> None:
    sys.path += [entry for entry in order.path if entry not in sys.path]
    objects: dict[str, Any] = {TRAFFIC: _traffic()}
    answers: dict[str, Any] = {}
    label = CONSTRUCTION
    try:
        connection.send(At(label))
        objects[IMPLEMENTATION] = _implementation(order.reference)
        for step in order.program.steps:
            label = step.label
            connection.send(At(label))
            _take(step, objects, answers)
        connection.send(Done(answers))
    except BaseException as error:
        connection.send(_failure(label, error))
    finally:
        objects[TRAFFIC].stop()


@cache
def _implementation(reference: str) -> Any:
    from properties.loading import load

    return load(reference)


def _traffic() -> Any:
    from properties.ranks.traffic import Traffic

    return Traffic()


def _take(step: Step, objects: dict[str, Any], answers: dict[str, Any]) -> None:
    found = getattr(objects[step.on], step.method)
    if step.on == IMPLEMENTATION:
        objects[IMPLEMENTATION].case.calls.clear()
    given = {
        name: objects[value.name] if isinstance(value, Kept) else value
        for name, value in step.keywords.items()
    }
    result = found if step.reads else found(**given)
    if step.keep:
        objects[step.keep] = result
    if step.answer:
        answers[step.answer] = result


def _failure(label: str, error: BaseException) -> Failed:
    """The exception of the implementation itself, where the suite has wrapped it."""
    from properties.errors import ViolationError

    objects_to = isinstance(error, ViolationError) and error.__cause__ is None
    cause = error.__cause__ or error
    lines = traceback.format_exception(cause, chain=True)
    return Failed(label, f"{type(cause).__name__}: {cause}", "".join(lines), objects_to)


if __name__ == "__main__":
    main()
