"""What the runs of a log come to: counts, the share of alarms and its upper bound."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module

from scipy.stats import beta

from tests.alarms.journal import Alarm, Run
from tests.alarms.judging import RANKS

CONFIDENCE = 0.95


def upper_bound(alarms: int, runs: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided bound of a binomial share (Clopper and Pearson).

    It is the largest share with which so few alarms, or fewer, still have a probability of
    1 - confidence: about 3 / runs where there was none. Without any run it is 1.

    Raises ValueError unless 0 <= alarms <= runs.
    """
    if not 0 <= alarms <= runs:
        raise ValueError(f"{alarms} alarms in {runs} runs cannot be")
    return 1.0 if alarms == runs else float(beta.ppf(confidence, alarms + 1, runs - alarms))


def percent(share: float) -> str:
    """To three digits."""
    return f"{100 * share:.3g} %"


def accused(runs: Sequence[Run]) -> int:
    """The runs with an alarm; several alarms of one run have often one reason."""
    return sum(bool(run.alarms) for run in runs)


def rows(runs: Sequence[Run], names: Sequence[str]) -> list[list[str]]:
    """A row of figures for each implementation that was run, in the order of ``names``."""
    found = []
    for name in [*names, *sorted({run.name for run in runs} - set(names))]:
        mine = [run for run in runs if run.name == name]
        if mine:
            found.append([name, *_figures(mine)])
    return found


def _figures(runs: Sequence[Run]) -> list[str]:
    bad = accused(runs)
    return [
        str(len(runs)),
        _range(run.judged for run in runs),
        _range(run.left_out for run in runs),
        f"{sum(run.cases for run in runs):,}",
        str(sum(len(run.alarms) for run in runs)),
        percent(upper_bound(bad, len(runs))),
    ]


def _range(values: object) -> str:
    found = sorted(set(values))  # type: ignore[call-overload]
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"


HEADS = ["implementation", "runs", "judged", "left out", "cases", "alarms", "bound"]


def text(runs: Sequence[Run], names: Sequence[str]) -> str:
    """For a terminal: every alarm in full, a line for each implementation, the totals."""
    parts = [_alarm_text(run, alarm) for run in runs for alarm in run.alarms]
    table = [HEADS, *rows(runs, names)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])],
        )
        for line in table
    ]
    return "\n".join([*parts, "", *lines, "", *totals(runs)])


def _alarm_text(run: Run, alarm: Alarm) -> str:
    calls = "\n".join(alarm.calls)
    return (
        f"\nALARM {run.name} {alarm.id}: {alarm.verdict}, seed {run.seed}\n{alarm.message.rstrip()}"
        f"\n{calls}\nagain: {command(run, alarm)}"
    )


def command(run: Run, alarm: Alarm) -> str:
    """The call of the gate that shows the alarm again."""
    words = ["latentmoe-gate", "run", run.reference, "--lane", run.lane, "--seed", str(run.seed)]
    words += ["--ranks", str(RANKS[run.lane] if run.ranks else 1)]
    if " " not in alarm.id:
        words += ["--only", alarm.id]
    return shlex.join(words)


def totals(runs: Sequence[Run]) -> list[str]:
    """Sentences that hold all runs together."""
    bad, many = accused(runs), len(runs)
    if not many:
        return ["No run yet."]
    verdicts: Counter[str] = Counter(alarm.verdict for run in runs for alarm in run.alarms)
    told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
    judged, cases = sum(run.judged for run in runs), sum(run.cases for run in runs)
    return [
        f"{many} whole runs of {len({run.name for run in runs})} implementations: "
        f"{judged:,} verdicts on {cases:,} cases, {sum(run.undecided for run in runs):,} of them "
        "undecided.",
        f"Alarms: {sum(verdicts.values())}{f' ({told})' * bool(told)}, in {bad} of {many} runs, "
        f"which is {percent(bad / many)}.",
        f"With {percent(CONFIDENCE)} confidence, at most {percent(upper_bound(bad, many))} of runs "
        "have one (exact, one-sided).",
    ]


def page(runs: Sequence[Run], references: Mapping[str, str], call: str) -> str:
    """The same in Markdown, with how it was obtained."""
    lines = ["# False alarms of the gate", "", *_how(runs, call), "", *totals(runs)]
    lines += ["", f"| {' | '.join([*HEADS, 'what it is free to do'])} |", "|---" * 8 + "|"]
    for row in rows(runs, list(references)):
        freedom = _freedom(references.get(row[0], ""))
        lines.append(f"| {' | '.join([*row, freedom])} |")
    found = [(run, alarm) for run in runs for alarm in run.alarms]
    if found:
        lines += ["", "## Alarms"]
        for run, alarm in found:
            lines += ["", f"`{command(run, alarm)}`", "", "```text"]
            lines += [f"{alarm.verdict}: {alarm.message.rstrip()}", "```"]
    return "\n".join(lines) + "\n"


def _how(runs: Sequence[Run], call: str) -> list[str]:
    told = [
        f"Generated by `{call}`.",
        "Correct implementations are judged by every property that calls an implementation. Each "
        "whole run has a seed of its own, which no run had before; only the first case of a "
        "property is the simplest one under every seed. A property that does not pass is an alarm: "
        "violated, undecided, or unable to judge. *Judged* counts the properties of a run that had "
        "a case, *left out* those of which the declared conventions leave nothing. "
        "*Bound* is the largest share of runs with an alarm that agrees with the runs made, at "
        f"{percent(CONFIDENCE)} confidence.",
    ]
    if runs:
        last = max(runs, key=lambda run: run.ended)
        names = ", ".join(f"{name} {number}" for name, number in last.versions.items())
        ranks = "judged" if last.ranks else "not judged"
        commits = ", ".join(dict.fromkeys(run.commit for run in runs))
        told.append(
            f"Lane {last.lane}, several ranks {ranks}, commit {commits}, code {last.code}, "
            f"seeds {min(run.seed for run in runs)} to {max(run.seed for run in runs)}; {names}."
        )
    return "\n\n".join(told).split("\n")


def _freedom(reference: str) -> str:
    """What a variant says of itself; nothing for the repository's own implementations."""
    module, _, name = reference.partition(":")
    found = getattr(import_module(module), name, None) if module else None
    return str(vars(found).get("freedom", "")) if found is not None else ""
