"""Which NumPy functions balls take over, and the error for all the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}

__all__ = ["FUNCTIONS", "UFUNCS", "refuse", "takes_function", "takes_ufunc"]


def takes_ufunc(ufunc: Any) -> Callable[[Handler], Handler]:
    """Register the handler of a ufunc: it is called with one Ball per operand."""

    def register(handler: Handler) -> Handler:
        UFUNCS[ufunc] = handler
        return handler

    return register


def takes_function(function: Any) -> Callable[[Handler], Handler]:
    """Register the handler of a NumPy function: called with the arithmetic, then its arguments."""

    def register(handler: Handler) -> Handler:
        FUNCTIONS[function] = handler
        return handler

    return register


def refuse(what: str, why: str = "has no error bound here") -> NoReturn:
    """Raise the TypeError that names what a ball cannot do."""
    known = sorted({f.__name__ for f in UFUNCS} | {f.__name__ for f in FUNCTIONS})
    raise TypeError(f"{what} {why}; a Ball knows {', '.join(known)}, and reading by index")
