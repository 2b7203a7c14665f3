"""Writes docs/counterexamples.md from the pinned instances, so that each can be followed by hand.

    python -m benchmarks.draw_counterexamples [--check]

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batched_descent import assignments
from benchmarks.counterexample_stories import (
    INTRODUCTION,
    JAM_SECTIONS,
    LEMMA,
    OTHER_JAMS,
    STORIES,
)
from lp_oracle import (
    FRACTION_OFF_MINIMISER,
    FRACTION_RISES,
    INSTANCES,
    LOCAL_MEAN,
    PRICE_WAR,
    UNEVEN_LOADS,
    DescentTrace,
    PinnedInstance,
    certify_routing,
    coordinate_descent,
    exact,
    expert_step,
    token_step,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "counterexamples.md"
WAR_SIZE = 4


def main() -> int:
    """Write the page, or with ``--check`` say whether it is up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 if old")
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """The whole page."""
    parts: list[str] = [INTRODUCTION.strip()]
    for heading, names in JAM_SECTIONS.items():
        parts += [f"## {heading}", STORIES[heading].strip()]
        parts += [jam(name, INSTANCES[name]) for name in names]
    parts += [off_minimisers(), alternating(), price_war(), uneven_loads(), local_mean()]
    parts += [LEMMA.strip(), also_pinned()]
    return "\n\n".join(parts) + "\n"


# Tables --------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def vector(values: Iterable[Any]) -> str:
    """(0, 3/2, 1)."""
    return "(" + ", ".join(number(value) for value in values) + ")"


def number(value: Any) -> str:
    """An integer or a fraction, with a true minus sign."""
    return str(Fraction(value)).replace("-", "−")


def experts(count: int) -> list[str]:
    """Column heads e1, e2, ..."""
    return [f"e{j + 1}" for j in range(count)]


def score_table(s_MN: Any) -> str:
    """The scores, a row per token."""
    rows = [[f"**t{i + 1}**", *map(number, row)] for i, row in enumerate(s_MN.tolist())]
    return table(["s", *experts(s_MN.shape[1])], rows)


def optimum(s_MN: Any, top_k: int) -> str:
    """The first best assignment in words."""
    m, n = s_MN.shape
    candidates_AE = assignments((m, n, top_k))
    parts = Fraction(m * top_k, n).denominator
    counts_AE = np.rint(candidates_AE * parts).astype(np.int64)
    values = counts_AE @ s_MN.ravel()
    x_MN = counts_AE[int(np.argmax(values))].reshape(m, n)
    best = Fraction(int(values.max()), parts)
    tokens = []
    for i, row in enumerate(x_MN.tolist()):
        shares = [(Fraction(share, parts), j) for j, share in enumerate(row) if share]
        words = [f"e{j + 1}" if x == 1 else f"{number(x)} e{j + 1}" for x, j in shares]
        tokens.append(f"t{i + 1}: {' + '.join(words)}")
    return f"Best assignment: {'; '.join(tokens)}. **LP\\* = {number(best)}**."


def round_table(trace: DescentTrace, steps: int | None = None) -> str:
    """alpha, beta and D at the beginning of every round."""
    s_MN, top_k = trace.problem.scores, trace.problem.top_k
    beta = exact([0] * trace.problem.n)
    rows = []
    for taken, dual in enumerate(trace.dual_values[: None if steps is None else steps + 1]):
        alpha = token_step(s_MN, beta, top_k, rule=trace.token_rule)
        rows.append([taken, vector(beta), vector(alpha), number(dual)])
        if taken < trace.rounds:
            beta = beta + trace.increments[taken]
    return table(["round", "beta", "alpha", "D"], rows)


def margin_table(trace: DescentTrace) -> str:
    """Margins where the descent rests, with the demand of each token and expert."""
    p_MN = rest_margins(trace)
    demand_M, demand_N = demands(trace)
    rows = []
    for i, row in enumerate(p_MN.tolist()):
        cells = [f"**{number(p)}** ●" if p > 0 else "0 ○" if p == 0 else number(p) for p in row]
        rows.append([f"**t{i + 1}**", *cells, number(demand_M[i])])
    rows.append(["**demand**", *map(number, demand_N), ""])
    return table(["p", *experts(p_MN.shape[1]), "demand"], rows)


def rest_margins(trace: DescentTrace) -> Any:
    """s - alpha - beta where the descent stopped."""
    return trace.problem.scores - trace.token_multipliers[:, None] - trace.expert_multipliers


def demands(trace: DescentTrace) -> tuple[list[Fraction], list[Fraction]]:
    """k, or q, minus the number of positive margins."""
    chosen_MN = rest_margins(trace) > 0
    top_k, load = Fraction(trace.problem.top_k), trace.problem.load
    return (
        [top_k - int(row.sum()) for row in chosen_MN],
        [load - int(column.sum()) for column in chosen_MN.T],
    )


def cut(trace: DescentTrace) -> str:
    """The tokens whose demand the tight edges cannot carry, as a sentence."""
    tight_MN = rest_margins(trace) == 0
    demand_M, demand_N = demands(trace)
    found: tuple[Fraction, tuple[int, ...], Fraction, Fraction] | None = None
    for size in range(1, trace.problem.m + 1):
        for tokens in itertools.combinations(range(trace.problem.m), size):
            wanted = sum((demand_M[i] for i in tokens), Fraction(0))
            edges_N = [Fraction(int(e)) for e in tight_MN[list(tokens)].sum(axis=0)]
            room = sum((min(d, e) for d, e in zip(demand_N, edges_N, strict=True)), Fraction(0))
            if found is None or wanted - room > found[0]:
                found = wanted - room, tokens, wanted, room
    if found is None or found[0] <= 0:
        raise ValueError("every demand can be met: these multipliers are optimal")
    _, tokens, wanted, room = found
    names = ", ".join(f"t{i + 1}" for i in tokens)
    demand, whose = ("demands", "its") if len(tokens) == 1 else ("together demand", "their")
    return (
        f"{names} {demand} {number(wanted)} more, but {whose} tight edges ○ lead to room for "
        f"{number(room)} only: no assignment fits these margins, so D is above LP\\*."
    )


# Sections ------------------------------------------------------------------------------------


def descent(instance: PinnedInstance, rounds: int = 60) -> DescentTrace:
    """The descent that an instance is pinned for."""
    return coordinate_descent(
        instance.scores,
        instance.top_k,
        token_rule=instance.token_rule,
        expert_rule=instance.expert_rule,
        rounds=rounds,
    )


def header(name: str, s_MN: Any, top_k: int, fact: str) -> str:
    """Name, size, load and fact."""
    m, n = s_MN.shape
    return (
        f"### `{name}`\n\n{fact} {m} tokens, {n} experts, k = {top_k}, q = "
        f"{number(Fraction(m * top_k, n))}."
    )


def rules(pairs: Iterable[tuple[str, str]]) -> str:
    """Token rule with expert rule, joined."""
    return ", ".join(f"{token} with {expert}" for token, expert in pairs)


def jam(name: str, instance: PinnedInstance) -> str:
    """One jam: scores, optimum, rounds, margins, cut, reason."""
    trace = descent(instance)
    return "\n\n".join(
        [
            header(name, instance.scores, instance.top_k, instance.fact),
            f"Rules: {rules(instance.pairs)}.",
            score_table(instance.scores),
            optimum(instance.scores, instance.top_k),
            round_table(trace),
            f"It rests there at **D = {number(instance.dual_value)}**, with the margins",
            margin_table(trace),
            cut(trace),
            STORIES[name].strip(),
        ]
    )


def off_minimisers() -> str:
    """Both instances on which rules leave the minimiser."""
    parts = ["## A fractional load and a statistic that does not minimise"]
    parts.append(STORIES["off minimisers"].strip())
    for name, instance in (
        ("FRACTION_OFF_MINIMISER", FRACTION_OFF_MINIMISER),
        ("FRACTION_RISES", FRACTION_RISES),
    ):
        s_MN, top_k = instance.scores, instance.top_k
        traces = {
            rule: coordinate_descent(s_MN, top_k, token_rule="k+1", expert_rule=rule)
            for rule in ("q", *instance.ends)
        }
        rows = [
            [rule, vector(trace.expert_multipliers), ", ".join(map(number, trace.dual_values))]
            for rule, trace in traces.items()
        ]
        parts += [header(name, s_MN, top_k, instance.fact), score_table(s_MN)]
        parts += [optimum(s_MN, top_k), table(["expert rule", "beta at rest", "D by round"], rows)]
        parts.append(STORIES[name].strip())
    return "\n\n".join(parts)


def alternating() -> str:
    """Increments that take turns."""
    instance = INSTANCES["ALTERNATING_LEAST"]
    parts = ["## Increments that alternate for ever"]
    parts.append(header("ALTERNATING_LEAST", instance.scores, instance.top_k, instance.fact))
    parts += [f"Rules: {rules(instance.pairs)}.", score_table(instance.scores)]
    parts += [optimum(instance.scores, instance.top_k), round_table(descent(instance, 5))]
    return "\n\n".join([*parts, STORIES["ALTERNATING_LEAST"].strip()])


def price_war() -> str:
    """One member by round, and the rounds of several."""
    war = PRICE_WAR
    s_MN = war.scores(WAR_SIZE)
    pair = {"token_rule": war.token_rule, "expert_rule": war.expert_rule}
    trace = coordinate_descent(s_MN, war.top_k, rounds=WAR_SIZE, **pair)  # type: ignore[arg-type]
    rows = []
    for size in (4, 8, 16, 32, 64):
        member = war.scores(size)
        found = coordinate_descent(member, war.top_k, rounds=size, **pair)  # type: ignore[arg-type]
        first = found.dual_values.index(Fraction(war.optimum(size)))
        middle = coordinate_descent(member, 1, token_rule="midpoint", expert_rule="midpoint")
        rows.append([f"1/{size}", war.optimum(size), first, middle.rounds])
    heads = ["eps", "LP\\*", "rounds until D = LP\\*", "rounds with two midpoints"]
    return "\n\n".join(
        [
            "## Near-ties that start a price war",
            header("PRICE_WAR", s_MN, war.top_k, war.fact),
            f"Rules: {war.token_rule} with {war.expert_rule}. Here 1/eps = {WAR_SIZE}:",
            score_table(s_MN),
            optimum(s_MN, war.top_k),
            round_table(trace),
            table(heads, rows),
            STORIES["PRICE_WAR"].strip(),
        ]
    )


def uneven_loads() -> str:
    """Loads and dual values side by side."""
    uneven = UNEVEN_LOADS
    s_MN, top_k = uneven.scores, uneven.top_k
    rules_taken = {"token_rule": uneven.token_rule, "expert_rule": uneven.expert_rule}
    trace = coordinate_descent(s_MN, top_k, **rules_taken)  # type: ignore[arg-type]
    beta = exact([0] * trace.problem.n)
    rows = []
    for taken, dual in enumerate(trace.dual_values):
        verdict = certify_routing(s_MN, -beta, top_k)
        loads = vector(verdict.loads.tolist()) if verdict.margin > 0 else "ties at the cutoff"
        rows.append([taken, vector(beta), loads, number(dual)])
        if taken < trace.rounds:
            beta = beta + trace.increments[taken]
    return "\n\n".join(
        [
            "## Loads that grow more uneven while the dual falls",
            header("UNEVEN_LOADS", s_MN, top_k, uneven.fact),
            f"Rules: {rules([(uneven.token_rule, uneven.expert_rule)])}, Eq. 14 as NumPy reads it.",
            score_table(s_MN),
            optimum(s_MN, top_k),
            table(["round", "beta", "loads", "D"], rows),
            STORIES["UNEVEN_LOADS"].strip(),
        ]
    )


def local_mean() -> str:
    """One update, pooled and averaged."""
    split = LOCAL_MEAN
    s_MN, top_k = split.scores, split.top_k
    alpha = token_step(s_MN, [0] * s_MN.shape[1], top_k, rule="k+1")
    rows = []
    for name, part in (("rank 1", split.parts[0]), ("rank 2", split.parts[1])):
        chosen = list(part)
        beta = expert_step(s_MN[chosen], alpha[chosen], top_k, rule="linear")
        rows.append([f"{name}: {', '.join(f't{i + 1}' for i in part)}", vector(beta), ""])
    rows.append(["their mean", vector(split.averaged), vector(split.averaged_loads)])
    rows.append(["the whole batch", vector(split.pooled), vector(split.pooled_loads)])
    return "\n\n".join(
        [
            "## Averaging per-rank quantiles",
            header("LOCAL_MEAN", s_MN, top_k, split.fact),
            f"Rules: {rules([('k+1', 'linear')])}, one update from beta = 0, where alpha = "
            f"{vector(alpha)}.",
            score_table(s_MN),
            optimum(s_MN, top_k),
            table(["quantiles of", "beta", "loads"], rows),
            STORIES["LOCAL_MEAN"].strip(),
        ]
    )


def also_pinned() -> str:
    """The instances that are not the smallest, a line each."""
    heads = ["name", "scores", "k", "rules", "LP\\*", "D", "what for"]
    return "\n\n".join(["## Also pinned", table(heads, _other_rows())])


def _other_rows() -> Iterator[list[str]]:
    for name, what in OTHER_JAMS.items():
        pinned = INSTANCES[name]
        scores = str([list(row) for row in pinned.rows]).replace(" ", "")
        ends = [number(pinned.optimum), number(pinned.dual_value)]
        yield [f"`{name}`", scores, str(pinned.top_k), rules(pinned.pairs), *ends, what]


if __name__ == "__main__":
    sys.exit(main())
