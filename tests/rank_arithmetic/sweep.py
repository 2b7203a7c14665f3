"""Every integral q below 2^24 at the published k/n: ours, and what known mistakes make of them.

    python -m tests.rank_arithmetic.sweep [--every 1] [--page docs/rank-arithmetic.md]

takes some five minutes on one core. ``--every 100`` takes every hundredth load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from properties.strategies.rank_mistakes import END, MISTAKES, load_step, total, wrong_ranks
from properties.strategies.ranks import PUBLISHED
from properties.study.tables import Table
from tests.rank_arithmetic.reading import (
    every_load,
    groups_of,
    wrong_in_reference,
    wrong_in_torch,
    wrong_target_rank,
)

Array = NDArray[np.int64]

# ``histogram_statistic`` takes an array of N experts for every single load.
STATISTIC_EVERY = 997

OURS: dict[str, Callable[[Array, int, int], Array]] = {
    "impl_torch, N experts a call": wrong_in_torch,
    "impl_torch, 8,192 experts a call": lambda q, k, n: wrong_in_torch(q, k, n, groups_of(n)),
    "reference_numpy, target_rank": wrong_target_rank,
}


@dataclass
class Found:
    """What came of one k/n: loads tried, and per name how many were wrong and the first of them."""

    top_k: int
    num_experts: int
    tried: int = 0
    wrong: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, wrong: Array) -> None:
        """Count wrong loads."""
        self.wrong[name] = self.wrong.get(name, 0) + len(wrong)
        if len(wrong):
            self.first.setdefault(name, int(wrong[0]))

    @property
    def ratio(self) -> str:
        """k/n as text."""
        return f"{self.top_k}/{self.num_experts}"

    def told(self, name: str) -> str:
        """The share of wrong loads and the first total, or "never"."""
        if not self.wrong[name]:
            return "never"
        first = int(total(np.array(self.first[name]), self.top_k, self.num_experts))
        return f"{self.wrong[name] / self.tried:.1%}, m = {first:,}"


def main() -> None:
    """Sweep all k/n, print both tables, and write the page if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th load")
    parser.add_argument("--page", type=Path, help="write the tables to this Markdown page")
    options = parser.parse_args()
    found = [swept(k, n, options.every, ours=True) for k, n in PUBLISHED]
    print(ours_table(found).text(), mistakes_table(found).text(), sep="\n\n")
    if options.page is not None:
        options.page.write_text(page(found), encoding="utf-8")
    if any(each.wrong[name] for each in found for name in [*OURS, "statistic"]):
        sys.exit("an implementation of this repository reads a wrong rank")


def swept(top_k: int, num_experts: int, every: int = 1, *, ours: bool) -> Found:
    """One k/n: the mistakes, and with ``ours`` the implementations of this repository."""
    found = Found(top_k, num_experts)
    for loads in _with_progress(top_k, num_experts, every):
        found.tried += len(loads)
        for name in MISTAKES:
            found.add(name, loads[wrong_ranks(name, loads, top_k, num_experts) != loads])
        if not ours:
            continue
        for name, rule in OURS.items():
            found.add(name, rule(loads, top_k, num_experts))
        some = loads[::STATISTIC_EVERY]
        found.add("statistic", wrong_in_reference(some, top_k, num_experts))
    return found


def _with_progress(top_k: int, num_experts: int, every: int) -> Iterator[Array]:
    told = ""
    for loads in every_load(top_k, num_experts, every):
        yield loads
        told = f"k/n = {top_k}/{num_experts}: {loads[-1] / END:4.0%}"
        print(f"\r{told}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * len(told) + "\r", end="", file=sys.stderr, flush=True)


def ours_table(found: list[Found]) -> Table:
    """Loads tried and wrong ranks read, per k/n."""
    rows = []
    for each in found:
        step = load_step(each.top_k, each.num_experts)
        largest = int(total(np.array((END - 1) // step * step), each.top_k, each.num_experts))
        wrong = [f"{each.wrong[name]:,}" for name in [*OURS, "statistic"]]
        rows.append([each.ratio, f"{each.tried:,}", f"{largest:,}", *wrong])
    statistic = f"reference_numpy, histogram_statistic (one load in {STATISTIC_EVERY})"
    return Table(["k/n", "integral q below 2^24", "largest m", *OURS, statistic], rows)


def mistakes_table(found: list[Found]) -> Table:
    """For each mistake the share of wrong q and the least m, per k/n."""
    rows = [[name, *(each.told(name) for each in found)] for name in MISTAKES]
    return Table(["formula", *(each.ratio for each in found)], rows)


INTRODUCTION = """# Ranks, for every total

Generated by `python -m tests.rank_arithmetic.sweep --page docs/rank-arithmetic.md`; do not edit.

Appendix D reads the first bin whose cumulative count reaches ceil(m k / n), of m tokens counted. If
q = m k / n is an integer, the rank is q, and whether q or q + 1 is read decides between two corners
of the interval of optimal biases. All integral q below 2^24 were tried, at the k/n of published
models. An implementation is right at q if it reads the first bin of an expert with q tokens there,
and the last bin of one with q - 1 in the first.

## Ours: how many were read wrongly

"{groups}": every expert of a call has another q. In the second column of impl_torch top_k grows
with the number of experts, so that q stays the same and the integers get larger.
"""

MISTAKES_TEXT = """## Mistakes: how many q they get wrong, and the least m

Every number of a formula, and every intermediate result, is in the format named; m is exact before.
A formula that is wrong everywhere in the same way reads another fixed statistic, which the suite
accepts where no rank is declared (float32(k/n) with 16/896 and 8/384). float64 formulas are exact
at these k/n and not at others: 14/48, 15/48, 20/48 and 22/60 each find one of them.
`QB-RANK` and `QB-RANK-SIZES` draw loads at which each mistake shows.
"""


def page(found: list[Found]) -> str:
    """docs/rank-arithmetic.md."""
    parts = [INTRODUCTION.format(groups="N experts a call"), ours_table(found).markdown() + "\n"]
    return "\n".join([*parts, MISTAKES_TEXT, mistakes_table(found).markdown() + "\n"])


if __name__ == "__main__":
    main()
