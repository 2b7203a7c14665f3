"""A whole run: one correct implementation under every property that calls an implementation."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import parent_process

import torch

from properties.execution import Outcome, judge, select
from properties.lanes import LANES
from properties.loading import load
from properties.registry import Property
from tests.alarms.journal import Alarm, Run, versions
from tests.variants.test_variants import name_of, variants

OWN = {
    "own-Reference": "properties.reference:Reference",
    "own-Float64": "impl_torch.adapter:Float64",
    "own-Float32": "impl_torch.adapter:Float32",
    "own-BFloat16": "impl_torch.adapter:BFloat16",
}

# The most ranks of a world, where ranks are judged at all, as in the gate's own --ranks.
RANKS = {"quick": 2, "gate": 4}


@dataclass(frozen=True)
class Task:
    """A run to be made."""

    name: str
    reference: str
    seed: int
    lane: str
    ranks: bool
    code: str
    commit: str


def implementations() -> dict[str, str]:
    """References by name: this repository's own implementations, then tests/variants."""
    found = {name_of(one): f"{one.__module__}:{one.__qualname__}" for one in variants()}
    return OWN | found


def run_once(task: Task, entries: Sequence[Property] | None = None) -> Run:
    """Judge, in this process; whatever goes wrong is an alarm. ``entries`` replace the whole."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    if entries is None:
        entries = [entry for entry in select() if not entry.theory]
    outcomes: list[Outcome] = []
    alarms: list[Alarm] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the gate does
        try:
            _judge(task, entries, outcomes)
        except Exception:
            alarms.append(Alarm("the run itself", "suite error", traceback.format_exc()))
    alarms += [
        Alarm(outcome.id, outcome.verdict, outcome.message, tuple(outcome.calls))
        for outcome in outcomes
        if outcome.verdict not in ("passed", "not offered")
    ]
    return Run(
        seed=task.seed,
        name=task.name,
        reference=task.reference,
        lane=task.lane,
        ranks=task.ranks,
        code=task.code,
        commit=task.commit,
        versions=versions(),
        ended=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - started, 1),
        verdicts=dict(Counter(outcome.verdict for outcome in outcomes)),
        left_out=sum(
            outcome.verdict == "not offered" and outcome.cases > 0 for outcome in outcomes
        ),
        cases=sum(outcome.cases for outcome in outcomes if outcome.verdict != "not offered"),
        undecided=sum(outcome.unknown for outcome in outcomes),
        alarms=tuple(alarms),
    )


def _judge(task: Task, entries: Sequence[Property], outcomes: list[Outcome]) -> None:
    subject = load(task.reference)
    subject.limit_ranks(RANKS[task.lane] if task.ranks else 1)
    try:
        for entry in entries:
            outcomes.append(judge(entry, subject, LANES[task.lane], task.seed))
    finally:
        if task.ranks:
            from properties.ranks import close_launches

            close_launches()


def begin_worker() -> None:
    """In a worker process: leave Ctrl-C to the one that started it, and end when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
