"""Rounds of perturbed descent on every class of scores: the table of docs/optimality.md.

    python benchmarks/every_input.py [--instances N]

Shapes up to 12 x 10 with any k < n, so mostly fractional loads. Every result must be certified and
lie within the bounds that `linprog`'s solution proves; a miss ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import numpy as np

from lp_oracle import perturbed_descent
from properties.judgement.optimality.optimum import bracket, written
from properties.protocol import Array
from properties.strategies.score_classes import PATTERNS, REALS, drawn_scores, tied_scores

SEED = 7


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=250, help="per class (default 250)")
    count = parser.parse_args().instances
    rng = np.random.default_rng(SEED)
    rounds: dict[str, list[int]] = defaultdict(list)
    fractional = 0
    for index in range(count):
        print(f"\r{index + 1}/{count}", end="", file=sys.stderr, flush=True)
        n, m = int(rng.integers(2, 11)), int(rng.integers(1, 13))
        top_k = int(rng.integers(1, n))
        fractional += m * top_k % n != 0
        for kind in (*PATTERNS, *REALS):
            rounds[kind].append(rounds_needed(scores_of(kind, rng, (m, n)), top_k))
    print(f"\n{fractional} of {count} shapes have a fractional load\n", file=sys.stderr)
    print("| scores | median | 95 % | most |\n|---|---|---|---|")
    for kind, taken in rounds.items():
        median, high = np.quantile(taken, [0.5, 0.95])
        print(f"| {kind} | {median:.0f} | {high:.0f} | {max(taken):,} |")


def scores_of(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Integers of that pattern of ties, or reals of that distribution."""
    return (tied_scores if kind in PATTERNS else drawn_scores)(kind, rng, shape)


def rounds_needed(scores_MN: Array, top_k: int) -> int:
    """Rounds of all phases until certified; exits with a message on a miss."""
    found = perturbed_descent(scores_MN, top_k)
    optimum = bracket(scores_MN, top_k)
    if found.outcome != "certified" or not optimum.lower <= found.dual_value <= optimum.upper:
        sys.exit(f"\nmissed: {found.outcome}, {written(scores_MN, top_k)}")
    return found.rounds


if __name__ == "__main__":
    main()
