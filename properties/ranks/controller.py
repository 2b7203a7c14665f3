"""The side that judges: programs go out, and answers come back or the reason why there are none.

A launch is kept for the whole session, for each number of ranks one. It is given up as soon as a
rank fails: what its other ranks wait for will not come any more.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from properties.errors import RanksError, ViolationError
from properties.ranks.launch import Launch, require_torchrun
from properties.ranks.program import (
    CONSTRUCTION,
    TRAFFIC,
    Answers,
    At,
    Done,
    Failed,
    Order,
    Program,
)

if TYPE_CHECKING:
    from properties.subject import Subject

# How long the death of another rank is looked for when one raises.
CAUSE_SECONDS = 0.5

_launches: dict[int, Launch] = {}
_refused: dict[int, str] = {}

__all__ = ["close_launches", "run"]


def run(subject: Subject, programs: list[Program], property_id: str) -> list[Answers]:
    """Run one program on each rank of a world of that size, and return their answers by rank.

    The ranks construct the implementation by its name, once in a session. One that has been
    constructed in the same processes before finds a process group that stands; where construction
    fails because of that, it is tried in fresh processes.

    Raises RanksError if the ranks cannot be started, or if one raises, dies, or has not finished
    within ``subject.rank_seconds``; it names the rank and the call, with its traceback. Such a
    failure costs a launch and perhaps a deadline, so that it is not looked for in smaller inputs:
    the same property is given the same answer, and shown the same calls, from then on.
    Raises ViolationError if a rank changed one of its inputs.
    """
    answers: list[Answers] = []
    if property_id not in subject.ranks_failed:
        _note_calls(subject, programs)
        try:
            _require_importable(subject)
            answers = _answered(subject, programs)
        except RanksError as error:
            subject.ranks_failed[property_id] = str(error), list(subject.case.calls)
    if property_id in subject.ranks_failed:
        told, calls = subject.ranks_failed[property_id]
        subject.case.calls[:] = calls
        raise RanksError(told)
    return answers


def close_launches() -> None:
    """End all ranks; the next program starts new ones."""
    for world in list(_launches):
        _launches.pop(world).close()


atexit.register(close_launches)


def _answered(subject: Subject, programs: list[Program]) -> list[Answers]:
    """What the ranks answer, in fresh processes if need be."""
    world = len(programs)
    try:
        return _conversed(_launched(world, subject.rank_modules), subject, programs)
    except _NotConstructedError:
        _drop(world)
        return _answered(subject, programs)
    except BaseException:
        _drop(world)
        raise


def _launched(world: int, modules: Sequence[str]) -> Launch:
    if world in _refused:
        raise RanksError(_refused[world])
    if world not in _launches:
        try:
            require_torchrun()
            _launches[world] = Launch(world, modules)
        except RanksError as error:
            _refused[world] = str(error)
            raise
    return _launches[world]


def _drop(world: int) -> None:
    if world in _launches:
        _launches.pop(world).kill()


def _require_importable(subject: Subject) -> None:
    module, colon, name = subject.reference.partition(":")
    if not (module and colon and name):
        raise RanksError(
            f"ranks construct the implementation by its name, and {subject.reference} is none; "
            "judge it as package.module:Name"
        )


def _note_calls(subject: Subject, programs: list[Program]) -> None:
    """Let the report show what each rank is given."""
    from properties.subject import Call

    for rank, program in enumerate(programs):
        for step in program.steps:
            if not step.reads and step.on != TRAFFIC:
                subject.case.calls.append(Call(f"rank {rank}: {step.label}", step.keywords))


# A conversation ----------------------------------------------------------------------------------


class _NotConstructedError(RanksError):
    """The implementation could not be constructed where another one had been."""


def _conversed(launch: Launch, subject: Subject, programs: list[Program]) -> list[Answers]:
    reference, path = subject.reference, [str(Path(entry).absolute()) for entry in sys.path]
    for rank, program in enumerate(programs):
        try:
            launch.connections[rank].send(Order(reference, path, program))
        except OSError:
            raise _died(launch, rank, "no call at all") from None
    answers = _Listening(launch, subject.rank_seconds, reference).until_done()
    launch.served.add(reference)
    return answers


class _Listening:
    """What the ranks have said so far in answer to one program each."""

    def __init__(self, launch: Launch, seconds: float, reference: str) -> None:
        self._launch = launch
        self._seconds = seconds
        self._shared = bool(launch.served) and reference not in launch.served
        self._at = dict.fromkeys(range(launch.world), CONSTRUCTION)
        self._done: dict[int, Answers] = {}
        self._rank_of = {connection: rank for rank, connection in launch.connections.items()}

    def until_done(self) -> list[Answers]:
        end = time.monotonic() + self._seconds
        while len(self._done) < self._launch.world:
            open_ = [c for c, rank in self._rank_of.items() if rank not in self._done]
            ready = wait(open_, timeout=max(0.0, end - time.monotonic()))
            if not ready:
                raise self._hung()
            for connection in ready:
                self._hear(connection)
        return [self._done[rank] for rank in range(self._launch.world)]

    def _hear(self, connection: Any) -> None:
        rank = self._rank_of[connection]
        try:
            message = connection.recv()
        except (EOFError, OSError):
            raise _died(self._launch, rank, self._at[rank]) from None
        if isinstance(message, At):
            self._at[rank] = message.label
        elif isinstance(message, Done):
            self._done[rank] = message.answers
        else:
            raise self._raised(rank, message)

    def _raised(self, rank: int, failed: Failed) -> Exception:
        """The error of a rank that raised, unless another one's death made it raise."""
        dead = self._dead_within(CAUSE_SECONDS)
        if dead is not None:
            return _died(self._launch, dead, self._at[dead])
        who = f"rank {rank} of {self._launch.world}"
        if failed.violation:
            return ViolationError(f"{who}: {failed.error}")
        told = f"{who} raised in {failed.label}: {failed.error}\n{failed.traceback}"
        if failed.label == CONSTRUCTION and self._shared:
            return _NotConstructedError(told)
        return RanksError(told)

    def _dead_within(self, seconds: float) -> int | None:
        """A rank whose connection closes within that time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0:
            connection: Any
            for connection in wait(list(self._rank_of), timeout=left):
                rank = self._rank_of[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    return rank
                if isinstance(message, At):
                    self._at[rank] = message.label
        return None

    def _hung(self) -> RanksError:
        stuck = [rank for rank in self._at if rank not in self._done]
        told = [
            f"rank {rank} of {self._launch.world} is still in {self._at[rank]} after "
            f"{self._seconds:.0f} s, at:\n{self._launch.stack(rank)}"
            for rank in stuck
        ]
        finished = ", ".join(f"rank {rank}" for rank in sorted(self._done))
        told += [f"{finished} finished"] if finished else []
        return RanksError("\n".join(told))


def _died(launch: Launch, rank: int, label: str) -> RanksError:
    how = launch.how_ended(rank)
    log = launch.log(rank)
    told = f"; it wrote:\n{log}" if log else " and wrote nothing"
    return RanksError(f"rank {rank} of {launch.world} died in {label} ({how}){told}")
