"""Whose memory it is: what a caller gave to a balancer, it may use again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from properties.protocol import Array

__all__ = ["overwritten"]


@contextmanager
def overwritten(arrays: Iterable[Array]) -> Iterator[None]:
    """Inside, these arrays hold other numbers; afterwards their own, so that they can be printed.

    Arrays that cannot be written to are left as they are.
    """
    held = [(array, array.copy()) for array in arrays if array.flags.writeable]
    for array, values in held:
        array[...] = ~values if values.dtype.kind in "bui" else -values - 1
    try:
        yield
    finally:
        for array, values in held:
            np.copyto(array, values)
