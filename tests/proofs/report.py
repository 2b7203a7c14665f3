"""Prove every claim at every shape up to a size, with progress and a table: ``make proofs``.

Exit code 1 if a claim has a counterexample, 2 if the solver gave up on one: neither is a proof.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.proofs.claims import CLAIMS, Claim, shapes
from tests.proofs.encoding import Shape
from tests.proofs.solving import UndecidedError

LARGEST, ENTRIES = 12, 100


@dataclass(frozen=True)
class Row:
    """A claim at a shape: "proved", "false" or "unknown", and the processor time."""

    claim: Claim
    shape: Shape
    result: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.claim.name:16} {self.shape!s:16} {self.result:8} {self.seconds:7.2f} s"


def prove(claim: Claim, shape: Shape) -> Row:
    """Ask, and take the time."""
    started = time.process_time()
    try:
        result = "proved" if claim.counterexample(shape) is None else "false"
    except UndecidedError:
        result = "unknown"
    return Row(claim, shape, result, time.process_time() - started)


def rows(largest: int, entries: int) -> Iterator[Row]:
    """Everything that is claimed for these shapes, smallest first."""
    for shape in shapes(largest, entries):
        for claim in CLAIMS:
            if claim.holds_at(shape):
                yield prove(claim, shape)


def table(done: list[Row]) -> str:
    """Markdown: a line for every M x N, with the seconds of every claim over all its k."""
    integral = [row for row in done if row.shape.is_integral]
    fractional = [row for row in done if not row.shape.is_integral]
    return "\n\n".join(_table(part) for part in (integral, fractional) if part)


def _table(done: list[Row]) -> str:
    names = list(dict.fromkeys(row.claim.name for row in done))
    lines = [
        f"| tokens x experts | k | {' | '.join(names)} |",
        "|---" * (2 + len(names)) + "|",
    ]
    for (m, n), group in itertools.groupby(done, key=lambda row: (row.shape.m, row.shape.n)):
        of_size = list(group)
        top_ks = sorted({row.shape.top_k for row in of_size})
        cells = [_cell([row for row in of_size if row.claim.name == name]) for name in names]
        lines.append(f"| {m} x {n} | {', '.join(map(str, top_ks))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(of_claim: list[Row]) -> str:
    if not of_claim:
        return ""
    results = {row.result for row in of_claim}
    seconds = f"{sum(row.seconds for row in of_claim):.1f}"
    return seconds if results == {"proved"} else f"{seconds} ({', '.join(sorted(results))})"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=LARGEST, help="longest side of a shape")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="most tokens times experts")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/proofs.md")
    options = parser.parse_args()
    done = []
    for row in rows(options.largest, options.entries):
        print(row, file=sys.stderr, flush=True)
        done.append(row)
    if options.markdown:
        print(table(done))
    counts = {
        name: sum(row.result == name for row in done) for name in ("proved", "false", "unknown")
    }
    print(", ".join(f"{count} {name}" for name, count in counts.items()), file=sys.stderr)
    return 1 if counts["false"] else 2 if counts["unknown"] or not done else 0


if __name__ == "__main__":
    sys.exit(main())
