"""How often coordinate descent reaches the LP optimum, by rule: the table of the README.

    python benchmarks/rule_table.py [--instances N]

Every instance is solved by `linprog` and its solution certified; descents start at b = 0. Seeds
are fixed, so the table repeats itself. Measured claims, not theorems: see OPT-FIXED, OPT-REACH.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.stats import binomtest

from lp_oracle import certify_solution, coordinate_descent, solve_linprog

ROUNDS = 200

PAIRS: tuple[tuple[Any, Any], ...] = (
    ("k+1", "q+1"),
    ("k", "q"),
    ("k+1", "q"),
    ("k+1", "midpoint"),
    ("k+1", "linear"),
    ("midpoint", "q+1"),
    ("midpoint", "midpoint"),
    ("linear", "linear"),
)

CLASSES = ("generic, q integral", "ties, q integral", "generic, q fractional")


def main() -> None:
    """Measure every class and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=250, help="per class (default 250)")
    count = parser.parse_args().instances
    print("| scores | token rule | expert rule | dual reaches LP* | routing is the LP optimum |")
    print("|---|---|---|---|---|")
    for name in CLASSES:
        measured = measure(name, count)
        for pair, (dual, routing) in zip(PAIRS, measured, strict=True):
            cells = [name, *pair, share(dual, count), share(routing, count)]
            print("| " + " | ".join(cells) + " |", flush=True)


def measure(name: str, count: int) -> list[tuple[int, int]]:
    """For each pair of rules: on how many instances the dual, and the routing, is optimal."""
    hits = [[0, 0] for _ in PAIRS]
    for index, (scores_MN, top_k) in enumerate(instances(name, count)):
        print(f"\r{name}: {index + 1}/{count}", end="", file=sys.stderr, flush=True)
        solution = solve_linprog(scores_MN, top_k)
        if not certify_solution(scores_MN, top_k, solution).certified:
            raise RuntimeError(f"linprog gave no certificate for {scores_MN!r}, k = {top_k}")
        for hit, (token_rule, expert_rule) in zip(hits, PAIRS, strict=True):
            trace = coordinate_descent(
                scores_MN, top_k, token_rule=token_rule, expert_rule=expert_rule, rounds=ROUNDS
            )
            gap = float(min(trace.dual_values)) - float(solution.objective)
            hit[0] += gap <= 1e-6 * max(1.0, abs(float(solution.objective)))
            hit[1] += trace.outcome == "certified"
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    return [(dual, routing) for dual, routing in hits]


def instances(name: str, count: int) -> Iterator[tuple[Any, int]]:
    """Seeded scores (M, N) and top_k with 3 <= N <= 12 and 3 <= M <= 24."""
    rng = np.random.default_rng(CLASSES.index(name))
    made = 0
    while made < count:
        n = int(rng.integers(3, 13))
        top_k = int(rng.integers(1, n))
        step = n // math.gcd(n, top_k)
        m = int(rng.integers(3, 25))
        if "integral" in name:
            m = step * max(1, m // step)
        if m < 3 or (m * top_k % n == 0) != ("integral" in name):
            continue
        made += 1
        if "ties" in name:
            yield rng.integers(0, 4, (m, n)).astype(np.int64), top_k
        else:
            yield rng.random((m, n)), top_k


def share(hits: int, count: int) -> str:
    """A percentage with its 95 % Wilson interval."""
    interval = binomtest(hits, count).proportion_ci(method="wilson")
    return f"{hits / count:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


if __name__ == "__main__":
    main()
