"""What a study found, as one value, as JSON, and as tables for text and pages."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import scipy

from properties.study import exponent, rounds, rules
from properties.study.tables import Table

SCHEMA = 1
TOLD_ROUNDS = (0, 1, 2, 5, 10, 20, 50, 100)

__all__ = [
    "SCHEMA",
    "Study",
    "decided_line",
    "document",
    "exponent_table",
    "fit_lines",
    "rounds_table",
    "rule_table",
    "sections",
    "text",
    "undecided_share",
]


@dataclass(frozen=True)
class Study:
    """The sections measured, None where not asked for, and the arguments that repeat them."""

    seed: int
    instances: int
    quick: bool
    rules: list[rules.RuleClass] | None = None
    rounds: list[rounds.Curve] | None = None
    exponent: list[exponent.Series] | None = None

    @property
    def command(self) -> str:
        """What to type to see this again."""
        words = ["latentmoe-gate study", f"--instances {self.instances}", f"--seed {self.seed}"]
        words += ["--quick"] if self.quick else []
        measured = sections(self)
        return " ".join(words + ([f"--only {measured[0]}"] if len(measured) == 1 else []))


def sections(study: Study) -> list[str]:
    """The names of those that were measured."""
    return [name for name in ("rules", "rounds", "exponent") if getattr(study, name) is not None]


def undecided_share(study: Study) -> float:
    """The largest share of instances of a class whose optimum could not be certified."""
    return max((entry.undecided / entry.instances for entry in study.rules or ()), default=0.0)


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    return {
        "latentmoe-gate": version("latentmoe-gate"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def document(study: Study, seconds: dict[str, float]) -> str:
    """The study as JSON; only ``seconds`` differs between two runs on one machine."""
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "command": study.command,
        "versions": versions(),
        "parameters": {
            "rules": {"rounds": rules.ROUNDS},
            "rounds": {"rounds": rounds.ROUNDS, "spread": rounds.SPREAD},
            "exponent": {
                "rounds": exponent.ROUNDS,
                "num_experts": exponent.NUM_EXPERTS,
                "top_k": exponent.TOP_K,
                "seeds": exponent.seeds(quick=study.quick),
            },
        },
        **asdict(study),
        "seconds": seconds,
    }
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


# Tables --------------------------------------------------------------------------------------


def rule_table(entry: rules.RuleClass) -> Table:
    """All pairs of one class."""
    headers = (
        "token rule",
        "expert rule",
        "dual reaches LP*",
        "routing certified",
        "still falling",
        "worst gap",
        "median gap",
        "rounds, median",
        "most",
    )
    return Table(headers, [_rule_cells(row) for row in entry.rows])


def _rule_cells(row: rules.RuleRow) -> list[str]:
    return [
        row.token_rule,
        row.expert_rule,
        str(row.dual),
        str(row.routing),
        str(row.falling),
        _gap(row.worst_gap),
        _gap(row.median_gap),
        "-" if row.median_rounds is None else f"{row.median_rounds:g}",
        "-" if row.most_rounds is None else str(row.most_rounds),
    ]


def decided_line(entry: rules.RuleClass) -> str:
    """How many instances there are, and how clear it is which gaps are 0."""
    decided = entry.instances - entry.undecided
    smallest = "none" if entry.smallest_gap is None else f"{entry.smallest_gap:.1e}"
    return (
        f"{decided} of {entry.instances} instances with a certified optimum; rounding explains "
        f"relative gaps up to {entry.allowed:.1e}, the smallest other gap is {smallest}."
    )


def rounds_table(curves: Sequence[rounds.Curve]) -> Table:
    """The gap after some of the rounds, a line per size and pair."""
    told = [t for t in TOLD_ROUNDS if any(t < len(curve.gaps) for curve in curves)]
    rows = []
    for curve in curves:
        gaps = ["0" if t >= len(curve.gaps) else _gap(curve.gaps[t]) for t in told]
        if curve.outcome == "jammed":  # it stays where it is
            gaps = [_gap(curve.gaps[min(t, len(curve.gaps) - 1)]) for t in told]
        size = f"{curve.m} x {curve.n}, k = {curve.top_k}"
        pair = f"{curve.token_rule}, {curve.expert_rule}"
        ends = "at rest" if curve.outcome == "jammed" else curve.outcome
        rows.append([size, pair, *gaps, f"{ends} ({len(curve.gaps) - 1})"])
    return Table(("size", "rules", *(f"round {t}" for t in told), "ends (round)"), rows)


def exponent_table(series: Sequence[exponent.Series]) -> Table:
    """The mean gap by size, of Eq. 14 as written also times m / n and m^2 / n."""
    [written] = [s for s in series if (s.token_rule, s.expert_rule) == exponent.AS_WRITTEN]
    [linear] = [s for s in series if (s.token_rule, s.expert_rule) == exponent.LINEAR]
    headers = ("tokens m", "mean gap", "x m/n", "x m^2/n", "at rest", "linear quantile: mean gap")
    rows = []
    for size, other in zip(written.sizes, linear.sizes, strict=True):
        ratio = size.m / exponent.NUM_EXPERTS
        cells = [_gap(size.mean), f"{size.mean * ratio:.2e}", f"{size.mean * ratio * size.m:.3f}"]
        jammed = f"{size.jammed} of {len(size.gaps)}"
        rows.append([str(size.m), *cells, jammed, _gap(other.mean)])
    return Table(headers, rows)


def fit_lines(series: Sequence[exponent.Series]) -> list[str]:
    """The exponents, one range of sizes per line."""
    return [
        f"{fit.first} <= m <= {fit.last}: the gap falls like m^{fit} ({fit.points} instances"
        + (f", {fit.left_out} with gap 0 left out)" if fit.left_out else ")")
        for entry in series
        for fit in entry.fits
    ]


def _gap(value: float) -> str:
    return "0" if value == 0.0 else f"{value:.1e}"


# Text ----------------------------------------------------------------------------------------


def text(study: Study) -> str:
    """The study for a terminal; gaps are relative to LP*, shares carry 95 % Wilson intervals."""
    parts = []
    for entry in study.rules or ():
        title = f"{entry.name}: descents from b = 0, at most {rules.ROUNDS} rounds"
        parts.append(f"{title}\n{rule_table(entry).text()}\n{decided_line(entry)}")
    if study.rounds is not None:
        parts.append(f"relative gap by round\n{rounds_table(study.rounds).text()}")
    if study.exponent is not None:
        title = (
            f"relative gap of Eq. 14 by tokens: n = {exponent.NUM_EXPERTS}, k = {exponent.TOP_K}"
        )
        lines = [title, exponent_table(study.exponent).text(), *fit_lines(study.exponent)]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, f"again: {study.command}"])
