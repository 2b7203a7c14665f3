"""What a process is doing at this moment, written where another process can read it.

Before each call of the implementation, its label and arguments go to a file of shared memory, which
survives whatever the call does to the process. Copying them takes microseconds; printing them, as
a report does, is left to who reads the file.

The trace also tells a process that judges from one that a call has forked off by mistake.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import marshal
import mmap
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from properties import protocol
from properties.guard.watchdog import HEADER, LOAD_SECONDS
from properties.literals import MAX_ELEMENTS
from properties.protocol import Array, number_format

__all__ = ["GIVE_UP", "Trace", "decoded", "method_of"]

_SIZE = 1 << 19

# In how many properties a method may hang, or end the process, before it is not called any more.
GIVE_UP = {"hung": 2, "died": 5}


class Trace:
    """The trace of this process; without a folder, none is kept."""

    def __init__(self, folder: Path | None = None, call_seconds: float = 0.0) -> None:
        self._folder = folder
        self._limit = call_seconds
        self._property = ""
        self._process = os.getpid()
        self._memory: mmap.mmap | None = None
        if folder is None:
            return
        path = folder / f"{self._process}.now"
        with path.open("w+b") as file:
            file.truncate(_SIZE)
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        # Kept open: faulthandler writes to its descriptor.
        self._stack = path.with_suffix(".stack").open("w", encoding="utf-8")
        faulthandler.enable(self._stack, all_threads=True)
        # Chained to the signal's own action: told where it stands, the process ends at once, and
        # does not come back from a system call that the signal interrupts.
        faulthandler.register(signal.SIGUSR1, self._stack, all_threads=True, chain=True)

    def others(self) -> list[int]:
        """The other processes of the run that have a trace."""
        traces = self._folder.glob("*.now") if self._folder else ()
        return [int(path.stem) for path in traces if path.stem != str(self._process)]

    def close(self) -> None:
        """Stop writing, in a process that goes on without."""
        if self._memory is not None:
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.disable()
            self._stack.close()
            self._memory.close()
            self._memory = None

    @contextlib.contextmanager
    def loading(self, reference: str) -> Iterator[None]:
        """The time in which the implementation is imported and constructed."""
        self._write(LOAD_SECONDS, "", f"importing and constructing {reference}", None)
        try:
            yield
        finally:
            self._write(0.0, "", "", None, running=False)

    @contextlib.contextmanager
    def judging(self, property_id: str) -> Iterator[None]:
        """The time in which a property is judged."""
        self._property = property_id
        self._write(0.0, property_id, "", None, running=False)
        try:
            yield
        finally:
            self._property = ""
            self._write(0.0, "", "", None, running=False)

    def begin(self, label: str, arguments: dict[str, Any] | None = None) -> None:
        """A call begins."""
        if self._memory is not None:
            self._write(self._limit, self._property, label, arguments)

    def end(self) -> None:
        """The call is over. A process that was forked off in it ends here: it judges nothing."""
        if os.getpid() != self._process:
            os._exit(1)
        if self._memory is not None:
            self._memory[:8] = bytes(8)

    def given_up(self, methods: tuple[str, ...]) -> str:
        """Why one of these methods is not called any more in this run, or nothing."""
        if self._folder is None:
            return ""
        for method in methods:
            for how, most in GIVE_UP.items():
                ids = [
                    path.stem
                    for path in sorted(self._folder.glob(f"*.{how}"))
                    if method_of(json.loads(path.read_text(encoding="utf-8"))["label"]) == method
                ]
                if len(ids) >= most:
                    did = "did not come back" if how == "hung" else "ended the process"
                    return (
                        f"not judged: {method} {did} in {', '.join(ids)}, so it is not called "
                        "again in this run"
                    )
        return ""

    def _write(
        self, limit: float, property_id: str, label: str, arguments: Any, *, running: bool = True
    ) -> None:
        if self._memory is None:
            return
        told = marshal.dumps((property_id, label, _encoded(arguments)))
        if len(told) > _SIZE - HEADER.size:
            told = marshal.dumps((property_id, label, None))
        self._memory[:8] = bytes(8)
        self._memory[HEADER.size : HEADER.size + len(told)] = told
        HEADER.pack_into(self._memory, 0, 0.0, limit, len(told))
        if running:
            HEADER.pack_into(self._memory, 0, time.monotonic(), limit, len(told))


def method_of(label: str) -> str:
    """The protocol's method that a label belongs to; what has a dot is a balancer's."""
    return "balancer" if "." in label else label


def _encoded(value: Any) -> Any:
    """The value in types that marshal knows; large arrays by shape alone."""
    if isinstance(value, np.ndarray):
        strides = None if value.flags.c_contiguous else value.strides
        content = value.tobytes() if value.size <= MAX_ELEMENTS else None
        return "array", value.dtype.name, value.shape, strides, content
    if isinstance(value, dict):
        return "dict", [(str(key), _encoded(part)) for key, part in value.items()]
    if is_dataclass(value) and not isinstance(value, type):
        parts = [(part.name, _encoded(getattr(value, part.name))) for part in fields(value)]
        return type(value).__name__, parts
    if isinstance(value, np.generic):
        value = value.item()
    plain = value is None or type(value) in (bool, int, float, str)
    return "value", value if plain else f"<{type(value).__name__}>"


def decoded(told: Any) -> Any:
    """The value again; a large array comes back as zeros of its shape, which print the same."""
    kind, *rest = told
    if kind == "array":
        return _array(*rest)
    if kind == "value":
        return rest[0]
    parts = {name: decoded(part) for name, part in rest[0]}
    return parts if kind == "dict" else getattr(protocol, kind)(**parts)


def _array(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, content: bytes | None
) -> Array:
    dtype = number_format(name) if name.startswith(("float", "bfloat")) else np.dtype(name)
    values: Array = np.zeros(shape, dtype)
    if content is not None:
        values = np.frombuffer(content, dtype).reshape(shape)
    if strides is None or values.size == 0:
        return values
    reach = [step * (size - 1) for step, size in zip(strides, shape, strict=True)]
    low = sum(step for step in reach if step < 0)
    memory = np.zeros(sum(abs(step) for step in reach) + dtype.itemsize, np.uint8)
    spread: Array = np.ndarray(shape, dtype, memory, -low, strides)
    spread[...] = values
    return spread
