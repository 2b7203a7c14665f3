"""Calling what may raise anything."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from properties.boundary import raised
from properties.errors import AdapterError, ViolationError
from properties.guard.interruption import is_real
from properties.guard.trace import Trace

__all__ = ["protected"]


def protected(
    trace: Trace,
    label: str,
    work: Callable[[], Any],
    fault: type[AdapterError | ViolationError],
    *,
    arguments: dict[str, Any] | None = None,
    doing: str = "",
) -> Any:
    """Let the implementation work, traced, its warnings unheard, and what it raises as ``fault``.

    A person's Ctrl-C goes through.
    """
    trace.begin(label, arguments)
    try:
        with warnings.catch_warnings(), np.errstate():
            warnings.simplefilter("ignore")
            return work()
    except BaseException as error:
        if is_real(error):
            raise
        raise fault(raised(doing + label, error)) from error
    finally:
        trace.end()
