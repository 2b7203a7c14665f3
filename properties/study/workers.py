"""Measuring in several processes, in an order that does not show, with progress on stderr."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["Workers", "working"]

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Workers:
    """Runs functions on lists of items; results come in the order of the items."""

    def __init__(self, pool: ProcessPoolExecutor | None) -> None:
        self._pool = pool

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], what: str
    ) -> list[Result]:
        """``function`` of a module's top level, on each item."""
        progress = _Progress(what, len(items))
        if self._pool is None:
            results = []
            for item in items:
                results.append(function(item))
                progress.advance()
        else:
            futures = [self._pool.submit(function, item) for item in items]
            for future in as_completed(futures):
                future.result()  # the first failure ends the study, not the last
                progress.advance()
            results = [future.result() for future in futures]
        progress.end()
        return results


@contextmanager
def working(count: int) -> Iterator[Workers]:
    """``count`` processes of one thread each, or this process alone for 0."""
    if count == 0:
        yield Workers(None)
        return
    # Libraries read these when they are loaded, and spawned processes inherit them.
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent
    )
    try:
        yield Workers(pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Progress:
    """A counter on a terminal, one line otherwise."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._live = sys.stderr.isatty()
        if not self._live:
            print(f"{what}: {total} to do", file=sys.stderr, flush=True)

    def advance(self) -> None:
        self._done += 1
        if self._live:
            print(
                f"\r{self._what}: {self._done}/{self._total}", end="", file=sys.stderr, flush=True
            )

    def end(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
