"""Telling a person's Ctrl-C from a KeyboardInterrupt that an implementation raises."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType

__all__ = ["install", "is_real"]

_state = {"installed": False, "asked": False}


def install() -> None:
    """Note from now on that the signal came; where signals cannot be handled, change nothing."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, _interrupt)
        _state["installed"] = True


def is_real(error: BaseException) -> bool:
    """Whether the error is one that a signal asked for, or may be for all that is known."""
    return isinstance(error, KeyboardInterrupt) and (_state["asked"] or not _state["installed"])


def _interrupt(number: int, frame: FrameType | None) -> None:
    _state["asked"] = True
    signal.default_int_handler(number, frame)
