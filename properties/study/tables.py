"""Tables as aligned text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """Cells of text under headers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Columns as wide as their widest cell, two blanks apart."""
        lines = [self.headers, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headers))]
        cells = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in cells)

    def markdown(self) -> str:
        """A pipe table."""
        lines = [self.headers, ["---"] * len(self.headers), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
