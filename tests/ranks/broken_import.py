"""A module that cannot be imported where ranks run."""

import os

if os.environ.get("RANK") == "1":
    raise OSError("no kernel library for rank 1")

from tests.ranks.failing import Works as Imported

__all__ = ["Imported"]
