"""``certified_optimum`` beside OR-tools' min-cost flow and ``linprog``, in one run.

    python benchmarks/lp_scale.py [--sizes 1120x112 ...] [--top-k 16] [--repeat 3] [--json FILE]

needs the extra `bench`. Scores are sigmoids of normal logits with an offset per expert, the same
for all solvers. Each run has a process of its own, which draws the scores, notes its memory, solves
and reports the seconds of the solving call and by how much its memory peaked. OR-tools gets the
scores as multiples of 2^-37, fine enough for a gap of 1e-6 at 143,360 assignments; building its
arcs is not counted, neither in seconds nor in memory. ``linprog`` is left out above --linprog-up-to
tokens. Every optimum is then held against multipliers: rows, columns, and the dual value, summed
again here.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

SIZES = ("1120x112", "2240x224", "4480x448", "8960x896")
SOLVERS = ("certified_optimum", "OR-tools", "linprog")
FLOW_BITS = 37
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    """Time all solvers at all sizes, and print a table with ratios."""
    arguments = _arguments()
    os.environ.update(dict.fromkeys(THREADS, "1"))
    records = []
    for size in arguments.sizes:
        m, n = map(int, size.split("x"))
        for solver in arguments.solvers:
            if solver == "linprog" and m > arguments.linprog_up_to:
                continue
            repeats = 1 if solver == "linprog" else arguments.repeat
            for repeat in range(repeats):
                print(f"{size} {solver} {repeat + 1}/{repeats}", file=sys.stderr, flush=True)
                records.append(_in_a_process(solver, m, n, arguments.top_k))
    print("\n".join(_table(records)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(records, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="tokens x experts")
    parser.add_argument("--solvers", nargs="+", default=SOLVERS, choices=SOLVERS)
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (linprog: one)")
    parser.add_argument("--linprog-up-to", type=int, default=4480, metavar="TOKENS")
    parser.add_argument("--json", type=Path, help="write every run to this file")
    return parser.parse_args()


def _in_a_process(solver: str, m: int, n: int, top_k: int) -> dict[str, Any]:
    """One run in a fresh process; RuntimeError if it fails."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_run, (solver, m, n, top_k))


def _run(solver: str, m: int, n: int, top_k: int) -> dict[str, Any]:
    from properties.strategies.scale import batch_scores

    scores_MN = batch_scores(m, n, seed=m)
    prepare = {
        "certified_optimum": _certified_optimum,
        "OR-tools": _min_cost_flow,
        "linprog": _linprog,
    }[solver]
    solve = prepare(scores_MN, top_k)
    before = _peak_memory()
    started = time.perf_counter()
    x_MN, alpha_M, beta_N, proof = solve()
    seconds = time.perf_counter() - started
    extra = _peak_memory() - before
    value, gap = _held_against_the_dual(scores_MN, x_MN, alpha_M, beta_N, top_k)
    return {
        "solver": solver,
        "tokens": m,
        "experts": n,
        "top_k": top_k,
        "seconds": seconds,
        "extra_mib": extra,
        "objective": value,
        "gap": gap,
        "proof": proof,
    }


def _peak_memory() -> float:
    """The most memory this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _certified_optimum(scores_MN: Any, top_k: int) -> Any:
    from lp_oracle import certified_optimum

    def solve() -> Any:
        found = certified_optimum(scores_MN, top_k)
        multipliers = found.token_multipliers, found.expert_multipliers
        return found.assignment, *multipliers, found.proof

    return solve


def _linprog(scores_MN: Any, top_k: int) -> Any:
    from lp_oracle import solve_linprog

    def solve() -> Any:
        found = solve_linprog(scores_MN, top_k)
        return found.assignment, found.token_multipliers, found.expert_multipliers, found.status

    return solve


def _min_cost_flow(scores_MN: Any, top_k: int) -> Any:
    """OR-tools gives no multipliers: it is held against weak duality with none."""
    import numpy as np
    from ortools.graph.python import min_cost_flow

    m, n = scores_MN.shape
    flow = min_cost_flow.SimpleMinCostFlow()
    costs = -np.rint(scores_MN * 2.0**FLOW_BITS).astype(np.int64).ravel()
    tails = np.repeat(np.arange(m, dtype=np.int32), n)
    heads = np.tile(np.arange(m, m + n, dtype=np.int32), m)
    flow.add_arcs_with_capacity_and_unit_cost(tails, heads, np.ones(m * n, np.int64), costs)
    supplies = np.repeat([top_k, -m * top_k // n], [m, n]).astype(np.int64)
    flow.set_nodes_supplies(np.arange(m + n, dtype=np.int32), supplies)

    def solve() -> Any:
        if flow.solve() != flow.OPTIMAL:
            raise RuntimeError(f"OR-tools found no optimum at {m} x {n}")
        x_MN = flow.flows(np.arange(m * n, dtype=np.int32)).reshape(m, n)
        return x_MN, None, None, "its own word"

    return solve


def _held_against_the_dual(
    scores_MN: Any, x_MN: Any, alpha_M: Any, beta_N: Any, top_k: int
) -> tuple[float, float]:
    """sum s x, and by how much the dual value exceeds it; infinite where multipliers are missing.

    Raises RuntimeError for rows and columns with wrong sums.
    """
    import numpy as np

    m, n = scores_MN.shape
    load = m * top_k / n
    if np.abs(x_MN.sum(axis=1) - top_k).max() + np.abs(x_MN.sum(axis=0) - load).max() > 1e-6:
        raise RuntimeError("rows or columns of the assignment have wrong sums")
    value = math.fsum((row @ x for row, x in zip(scores_MN, x_MN, strict=True)))
    if alpha_M is None:
        return value, math.inf
    hinges = (
        float(np.maximum(row - alpha - beta_N, 0.0).sum())
        for row, alpha in zip(scores_MN, alpha_M, strict=True)
    )
    multipliers = [top_k * float(alpha_M.sum()), load * float(beta_N.sum()), -value]
    return value, math.fsum([*hinges, *multipliers])


def _table(records: list[dict[str, Any]]) -> list[str]:
    """A Markdown table: medians, ratios to ``certified_optimum`` at the same size."""
    lines = [
        "| tokens x experts | solver | seconds | per variable | ratio | memory | dual - primal |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for record in records:
        key = record["tokens"], record["experts"], record["solver"]
        groups.setdefault(key, []).append(record)
    for (m, n, solver), runs in groups.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        ours = groups.get((m, n, SOLVERS[0]))
        ratio = seconds / statistics.median(run["seconds"] for run in ours) if ours else math.nan
        cells = [
            f"{m} x {n}",
            solver,
            f"{seconds:.2f}",
            f"{1e9 * seconds / (m * n):.0f} ns",
            f"{ratio:.2f}",
            f"{max(run['extra_mib'] for run in runs):.0f} MiB",
            f"{max(abs(run['gap']) for run in runs):.1e} ({runs[0]['proof']})",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
