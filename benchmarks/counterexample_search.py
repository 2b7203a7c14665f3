"""Finds the smallest counterexamples to what is believed of the dual descent, and what is pinned.

    python -m benchmarks.counterexample_search [--only WORD ...] [--thorough]

"Smaller" is defined in lp_oracle/instances.py. Each search says what it exhausted, or how much it
sampled, shows its progress, and compares what it found with lp_oracle. A few minutes on one core.
Exit code 1 if a pinned instance is not what a search finds.

Legend of shapes: B instances, M tokens, N routed experts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.batched_descent import (
    NOTHING,
    Array,
    Shape,
    best_values,
    descend,
    expert_steps,
    is_generic,
    loads_of,
    normal_forms,
    ranks_of,
    shapes_up_to,
    size_of,
    stay_above,
    token_steps,
)
from lp_oracle import (
    EXPERT_RULES,
    FRACTION_OFF_MINIMISER,
    FRACTION_RISES,
    INSTANCES,
    LOCAL_MEAN,
    PRICE_WAR,
    TOKEN_RULES,
    UNEVEN_LOADS,
)

Pair = tuple[Any, Any]
Found = dict[str, Any]
Hits = Callable[[Array], Any]

PAIRS: tuple[Pair, ...] = tuple(itertools.product(TOKEN_RULES, EXPERT_RULES))
Q_PAIRS: tuple[Pair, ...] = tuple(pair for pair in PAIRS if pair[1] == "q")
SAMPLE_SEED = 7

PINNED: dict[str, Any] = {
    **INSTANCES,
    "FRACTION_OFF_MINIMISER": FRACTION_OFF_MINIMISER,
    "FRACTION_RISES": FRACTION_RISES,
    "LOCAL_MEAN": LOCAL_MEAN,
    "UNEVEN_LOADS": UNEVEN_LOADS,
}


def main() -> int:
    """Run the searches; 1 if a pinned instance is not confirmed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="searches whose name contains one of the words")
    parser.add_argument("--thorough", action="store_true", help="search further levels too")
    options = parser.parse_args()
    wrong = 0
    for name, search in SEARCHES.items():
        if options.only and not any(word in name for word in options.only):
            continue
        started = time.perf_counter()
        print(f"{name}", flush=True)
        for line, confirmed in search(options.thorough):
            progress("")
            print(f"  {line}{'' if confirmed else '   NOT AS PINNED'}", flush=True)
            wrong += not confirmed
        print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
    return min(wrong, 1)


def progress(what: str) -> None:
    """Overwrite the progress line."""
    print(f"\r{what:<70}\r", end="", file=sys.stderr, flush=True)


def least(shape: Shape, levels: range, hits: Hits, generic: bool) -> Array | None:
    """The smallest instance of the shape among ``hits``, over all normal forms of these levels."""
    for level in levels:
        best: Array | None = None
        seen = 0
        for s_BMN in normal_forms(shape[0], shape[1], level):
            seen += len(s_BMN)
            progress(f"  {shape}, scores 0..{level}: {seen}")
            for index in hits(s_BMN):
                s_MN = s_BMN[index]
                if best is not None and size_of(s_MN) >= size_of(best):
                    continue
                if not generic or is_generic(s_MN):
                    best = s_MN
        if best is not None:
            return best
    return None


def told(name: str, s_MN: Array | None, shape: Shape | None) -> tuple[str, bool]:
    """What was found, and whether it is the pinned instance of that name."""
    pinned = PINNED[name]
    if s_MN is None or shape is None:
        return f"{name}: nothing found", False
    rows = s_MN.astype(int).tolist()
    same = rows == [list(row) for row in pinned.rows] and shape[2] == pinned.top_k
    return f"{name}: {shape[0]} x {shape[1]}, k = {shape[2]}, {rows}", same


def over_shapes(
    shapes: list[Shape], levels: Callable[[Shape], range], pair: Pair, generic: bool
) -> tuple[Array | None, Shape | None]:
    """The smallest instance that stays above LP*, shape after shape."""
    for shape in shapes:
        ranks = ranks_of(shape, *pair)

        def stays(s_BMN: Array, shape: Shape = shape, ranks: Any = ranks) -> Array:
            return stay_above(s_BMN, shape[2], ranks)

        found = least(shape, levels(shape), stays, generic)
        if found is not None:
            return found, shape
    return None, None


# The searches --------------------------------------------------------------------------------


def corners(thorough: bool) -> Iterator[tuple[str, bool]]:
    """Both pairs of corners that jam, for each top_k, on generic scores."""
    levels = range(1, 7 if thorough else 5)
    yield (
        f"exhausted: generic 3 x 3, scores 0 to the least level that jams, at most {levels[-1]}",
        True,
    )
    for name, pair in (("CORNER", ("k+1", "q+1")), ("MIRROR", ("k", "q"))):
        for top_k in (1, 2):
            shape = (3, 3, top_k)
            found, _ = over_shapes([shape], lambda _: levels, pair, generic=True)
            yield told(f"{name}_JAM_TOP{top_k}_LEAST", found, shape)


def ties(thorough: bool) -> Iterator[tuple[str, bool]]:
    """All sixteen pairs, integer loads, any scores."""
    most = 2 if thorough else 1
    yield (
        f"exhausted: integer loads, every shape up to the first that jams, 0..1 (3 x 3: 0..{most})",
        True,
    )
    shapes = shapes_up_to(25, integral=True)
    for name, pinned in INSTANCES.items():
        if not name.startswith("TIES") or name == "TIES_JAM":
            continue
        for pair in pinned.pairs:
            found, shape = over_shapes(
                shapes, lambda s: range(1, 1 + (most if s[0] * s[1] < 10 else 1)), pair, False
            )
            line, same = told(name, found, shape)
            yield f"{pair[0]:>8} {pair[1]:<8} {line}", same


def fractions(thorough: bool) -> Iterator[tuple[str, bool]]:
    """The only rule that minimises, fractional loads, generic scores."""
    top = 5 if thorough else 4
    yield (
        f"exhausted: generic 2 x 3 and 3 x 2, scores 0..{top}; 2 x 4, 0..3; 2 x 5, k = 1, 0..2",
        True,
    )
    shapes = shapes_up_to(10, integral=False)
    levels = {6: range(1, top + 1), 8: range(1, 4), 10: range(1, 3)}
    names = {"k+1": "TOKEN_K_1", "k": "TOKEN_K", "midpoint": "MIDPOINT", "linear": "LINEAR"}
    for pair in Q_PAIRS:
        found, shape = over_shapes(shapes, lambda s: levels[s[0] * s[1]], pair, generic=True)
        yield told(f"FRACTION_{names[pair[0]]}", found, shape)


def off_minimisers(thorough: bool) -> Iterator[tuple[str, bool]]:
    """The twelve pairs that do not minimise for a fractional load."""
    del thorough
    yield "exhausted: generic 2 x 3, k = 1, scores 0..1; with one token every rule is optimal", True
    shape = (2, 3, 1)
    for pair in (pair for pair in PAIRS if pair not in Q_PAIRS):
        ranks = ranks_of(shape, *pair)

        def rises(s_BMN: Array, ranks: Any = ranks) -> Array:
            values = np.array([state.dual for state in descend(s_BMN, 1, ranks, 12)])
            return np.flatnonzero((np.diff(values, axis=0) > NOTHING).any(axis=0))

        above, _ = over_shapes([shape], lambda _: range(1, 2), pair, generic=True)
        for name, found in (
            ("FRACTION_OFF_MINIMISER", above),
            ("FRACTION_RISES", least(shape, range(1, 2), rises, generic=True)),
        ):
            line, same = told(name, found, shape)
            yield f"{pair[0]:>8} {pair[1]:<8} {line}", same


def alternating(thorough: bool) -> Iterator[tuple[str, bool]]:
    """Increments that alternate for ever."""
    del thorough
    yield (
        "exhausted: generic 2 x 2, scores 0..1; nothing smaller has an integer load and k < n",
        True,
    )

    def alternates(s_BMN: Array) -> Array:
        states = list(descend(s_BMN, 1, ranks_of((2, 2, 1), "k+1", "q"), 60))
        drift = np.ptp(states[-1].beta - states[-2].beta, axis=1)
        fair = loads_of(s_BMN, states[-1].beta, 1)
        return np.flatnonzero((drift > NOTHING) & ~(fair[1] & (np.ptp(fair[0], axis=1) == 0)))

    yield told("ALTERNATING_LEAST", least((2, 2, 1), range(1, 2), alternates, True), (2, 2, 1))


def local_means(thorough: bool) -> Iterator[tuple[str, bool]]:
    """Two ranks of equal size, whose mean of Eq. 14's statistics gives other loads."""
    del thorough
    yield "exhausted: every shape up to 8 entries, scores 0..2 (2 x 2: 0..4)", True
    for shape in shapes_up_to(8, integral=True):
        if shape[0] % 2:
            continue
        half, ranks = shape[0] // 2, ranks_of(shape, "k+1", "linear")
        local = ranks_of((half, *shape[1:]), "k+1", "linear")

        def differs(
            s_BMN: Array, shape: Shape = shape, half: int = half, ranks: Any = ranks, r: Any = local
        ) -> Array:
            alpha = token_steps(s_BMN, np.zeros((len(s_BMN), shape[1])), ranks.token)
            fair, strict = loads_of(s_BMN, expert_steps(s_BMN, alpha, ranks.expert), shape[2])
            right = strict & (np.ptp(fair, axis=1) == 0)
            wrong = np.zeros(len(s_BMN), dtype=bool)
            for part in itertools.combinations(range(1, shape[0]), half - 1):
                first = [0, *part]
                rest = [i for i in range(shape[0]) if i not in first]
                means = [expert_steps(s_BMN[:, p], alpha[:, p], r.expert) for p in (first, rest)]
                loads, clear = loads_of(s_BMN, (means[0] + means[1]) / 2, shape[2])
                wrong |= clear & (np.ptp(loads, axis=1) > 0)
            return np.flatnonzero(right & wrong)

        levels = range(1, 5 if shape[0] * shape[1] < 8 else 3)
        found = least(shape, levels, differs, generic=False)
        if found is not None:
            yield told("LOCAL_MEAN", found, shape)
            return
    yield "LOCAL_MEAN: nothing found", False


def uneven_loads(thorough: bool) -> Iterator[tuple[str, bool]]:
    """Loads whose max/min rises while the dual falls, in a descent of Eq. 14's linear quantile."""
    pinned = UNEVEN_LOADS
    top = 3 if thorough else 2
    yield (
        f"exhausted: integer loads below 10 entries, scores 0..4; below 16, 0..2; 4 x 4, 0..{top}",
        True,
    )
    # At 4 x 4, k = 1, all loads are 1 wherever none is 0: k = 2 comes first.
    for shape in (*shapes_up_to(15, integral=True), (4, 4, 2)):
        entries = shape[0] * shape[1]

        def uneven(s_BMN: Array, shape: Shape = shape) -> Array:
            return grows_uneven(s_BMN, shape)

        levels = range(1, 5 if entries < 10 else 3 if entries < 16 else top + 1)
        found = least(shape, levels, uneven, generic=False)
        if found is not None:
            yield told("UNEVEN_LOADS", found, shape)
    shape = (pinned.scores.shape[0], pinned.scores.shape[1], pinned.top_k)
    yield told("UNEVEN_LOADS", pinned.scores.astype(float), shape)
    yield (
        "pinned instance: confirmed",
        len(grows_uneven(pinned.scores[None].astype(float), shape)) == 1,
    )
    rng = np.random.default_rng(SAMPLE_SEED)
    count, smaller = (60 if thorough else 12), []
    for index in range(count):
        progress(f"  sample {index + 1} of {count}")
        s_BMN = rng.integers(0, pinned.scores.max() + 1, (20_000, *shape[:2])).astype(float)
        s_BMN -= s_BMN.min(axis=2, keepdims=True)
        smaller += [size_of(s_BMN[i]) for i in grows_uneven(s_BMN, shape)]
    best = min(smaller, default=None)
    text = f"sampled: {count * 20_000} of that shape and level, {len(smaller)} rise, least {best}"
    yield text, best is None or best[:2] >= size_of(pinned.scores)[:2]


def grows_uneven(s_BMN: Array, shape: Shape) -> Array:
    """Indices where max/min load rises from one of six rounds to the next, and ends balanced."""
    ranks = ranks_of(shape, "k+1", "linear")
    before: tuple[Array, Array, Array] | None = None
    rises = np.zeros(len(s_BMN), dtype=bool)
    ends = np.zeros(len(s_BMN), dtype=bool)
    for state in descend(s_BMN, shape[2], ranks, 12):
        loads, strict = loads_of(s_BMN, state.beta, shape[2])
        low, high = loads.min(axis=1), loads.max(axis=1)
        strict = strict & (low > 0)
        ends |= strict & (low == high)
        ratio = high / np.maximum(low, 1)
        if before is not None:
            rises |= strict & before[1] & (ratio > before[0] + NOTHING) & (state.dual < before[2])
        before = ratio, strict, state.dual
    return np.flatnonzero(rises & ends)


def price_wars(thorough: bool) -> Iterator[tuple[str, bool]]:
    """Rounds until the dual reaches LP*, for the pair of Appendix D."""
    top = 6 if thorough else 5
    most: dict[int, int] = {}
    for shape, level in itertools.product([(3, 3, 1), (3, 3, 2)], range(1, top + 1)):
        for s_BMN in normal_forms(*shape[:2], level):
            progress(f"  {shape}, scores 0..{level}")
            most[level] = max(most.get(level, 0), int(rounds_to_best(s_BMN, shape, 40).max()))
    text = ", ".join(f"0..{level}: {rounds}" for level, rounds in most.items())
    yield f"exhausted: 3 x 3; most rounds for scores {text}", max(most.values()) < 3
    rng = np.random.default_rng(SAMPLE_SEED)
    count, slowest = (16 if thorough else 2), 0
    for top_k, wide, _ in itertools.product((1, 2), (20, 50, 160, 1000), range(count)):
        near = rng.integers(0, 2, (20_000, 3, 3)) * wide + rng.integers(-2, 3, (20_000, 3, 3))
        slowest = max(slowest, int(rounds_to_best(near.astype(float), (3, 3, top_k), 40).max()))
    text = f"{8 * count * 20_000} near-ties with scores up to 1000: {slowest}"
    yield f"sampled: 3 x 3; most rounds for {text}", slowest < 3
    for size in (5, 10, 20, 40, 80):
        s_BMN = PRICE_WAR.scores(size)[None].astype(float)
        taken = int(rounds_to_best(s_BMN, (4, 4, 1), 2 * size)[0])
        yield f"PRICE_WAR: 4 x 4, eps = 1/{size}: {taken} rounds", taken == size


def rounds_to_best(s_BMN: Array, shape: Shape, rounds: int) -> Array:
    """The first round (B,) at whose beginning D equals LP*; ``rounds`` + 1 if none does."""
    best = best_values(s_BMN, shape[2])
    first = np.full(len(s_BMN), rounds + 1)
    for taken, state in enumerate(descend(s_BMN, shape[2], ranks_of(shape, "k+1", "q"), rounds)):
        first = np.minimum(first, np.where(state.dual - best < NOTHING, taken, rounds + 1))
    return first


SEARCHES: dict[str, Callable[[bool], Iterator[tuple[str, bool]]]] = {
    "corners": corners,
    "ties": ties,
    "fractions": fractions,
    "off minimisers": off_minimisers,
    "alternating": alternating,
    "local means": local_means,
    "uneven loads": uneven_loads,
    "price wars": price_wars,
}


if __name__ == "__main__":
    sys.exit(main())
