"""Measure how often the gate accuses a correct implementation: ``make alarms``.

Every finished run is a line of the log. A later call goes on with further seeds, and sums up all
runs of the log that were made with the same code, lane and choice of ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from properties.plugin import THREAD_VARIABLES
from tests.alarms import journal, summary
from tests.alarms.journal import ROOT, Run
from tests.alarms.judging import Task, begin_worker, implementations, run_once

LOG = Path("build") / "alarms.jsonl"

EXIT_NONE, EXIT_ALARM, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130


class BrokenOffError(Exception):
    """The measurement cannot go on; what is in the log stays."""


def main(arguments: Sequence[str]) -> int:
    """Run, then print the summary; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        chosen = select(implementations(), options.words)
        log = journal.read(options.log)
        unwritable(options.log, options.page)
    except (journal.LogError, ValueError) as error:
        print(f"alarms: {error}", file=sys.stderr)
        return EXIT_REFUSED
    code = journal.digest()
    known = log.of(code, options.lane, ranks=options.ranks)
    tell_log(log, len(known))
    trouble = 0
    try:
        for run in runs(options, chosen, log, known, code):
            known.append(run)
    except BrokenOffError as error:
        print(f"alarms: {error}", file=sys.stderr)
        trouble = EXIT_REFUSED
    except KeyboardInterrupt:
        print("alarms: interrupted; unfinished runs are not counted", file=sys.stderr)
        trouble = EXIT_INTERRUPTED
    print(summary.text(known, list(implementations())))
    if options.page is not None:
        call = shlex.join(["python", "-m", "tests.alarms.run", *arguments])
        options.page.write_text(summary.page(known, implementations(), call), encoding="utf-8")
        print(f"page: {options.page}")
    return trouble or (EXIT_ALARM if summary.accused(known) else EXIT_NONE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.alarms.run",
        description=__doc__,
        epilog="Exit codes: 0 no alarm in any run that was summed up; 1 an alarm; 2 the call is "
        "wrong or the measurement broke off; 130 interrupted.",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only names with one of these")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--runs", type=_whole, metavar="N", help="whole runs; default one of each implementation"
    )
    length.add_argument(
        "--minutes", type=_minutes, metavar="M", help="begin no run after so many minutes"
    )
    parser.add_argument("--lane", choices=("quick", "gate"), default="gate")
    parser.add_argument("--workers", type=_whole, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument(
        "--seed", type=_whole, metavar="S", help="the first seed; default drawn by the system"
    )
    parser.add_argument(
        "--ranks", action="store_true", help="judge several ranks, too, where offered"
    )
    parser.add_argument("--log", type=Path, default=LOG, metavar="FILE", help=f"default {LOG}")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the summary as Markdown")
    return parser


def _whole(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number, 0 or more")
    return int(word)


def _minutes(word: str) -> float:
    try:
        minutes = float(word)
    except ValueError:
        minutes = -1.0
    if not 0.0 <= minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is no number of minutes, 0 or more")
    return minutes


def select(every: Mapping[str, str], words: Sequence[str]) -> dict[str, str]:
    """The implementations whose names contain a word, whatever the case; all without words.

    Raises ValueError for a word that no name contains.
    """
    for word in words:
        if not any(word.lower() in name.lower() for name in every):
            raise ValueError(f"no implementation is called {word!r}; there are {', '.join(every)}")
    wanted = [word.lower() for word in words] or [""]
    return {
        name: reference
        for name, reference in every.items()
        if any(word in name.lower() for word in wanted)
    }


def unwritable(*paths: Path | None) -> None:
    """Raises ValueError for a file that could not be written; asked before hours of work."""
    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def tell_log(log: journal.Journal, counted: int) -> None:
    for line in log.trouble:
        print(f"alarms: {line}", file=sys.stderr)
    others = len(log.runs) - counted
    if log.runs:
        print(f"log: {counted} runs to go on from, {others} of other code, lane or ranks")


def runs(
    options: argparse.Namespace,
    chosen: Mapping[str, str],
    log: journal.Journal,
    known: Sequence[Run],
    code: str,
) -> Iterator[Run]:
    """The runs asked for, each told and in the log when it comes.

    Raises BrokenOffError if a worker process died or the code was changed meanwhile.
    """
    first = secrets.randbits(40) if options.seed is None else options.seed
    seeds = journal.fresh_seeds(first, log.seeds)
    told = {"lane": options.lane, "ranks": options.ranks, "code": code, "commit": journal.commit()}
    plan: Iterator[Task] = tasks(chosen, Counter(run.name for run in known), seeds, told)
    if options.minutes is not None:
        until = time.monotonic() + 60 * options.minutes
        plan = takewhile(lambda _: time.monotonic() < until, plan)
        length = f"{options.minutes:g} min"
    else:
        many = len(chosen) if options.runs is None else options.runs
        plan, length = islice(plan, many), str(many)
    made = in_processes(plan, options.workers) if options.workers else map(run_once, plan)
    for number, run in enumerate(made, start=1):
        if journal.digest() != code:
            raise BrokenOffError(
                "the code was changed while it was measured, so the last run is not counted; "
                "measure in a checkout that nobody edits"
            )
        journal.append(options.log, run)
        tell(number, length, run)
        yield run


def tasks(
    chosen: Mapping[str, str], done: Mapping[str, int], seeds: Iterable[int], told: dict[str, Any]
) -> Iterator[Task]:
    """Without end: always the implementation with the fewest runs, the first of them."""
    counts = {name: done.get(name, 0) for name in chosen}
    for seed in seeds:
        name = min(counts, key=counts.__getitem__)
        counts[name] += 1
        yield Task(name, chosen[name], seed, **told)


def in_processes(plan: Iterator[Task], workers: int) -> Iterator[Run]:
    """Results as they come, of fresh processes with one thread each."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=begin_worker)
    running: dict[Future[Run], Task] = {}
    try:
        for task in islice(plan, workers):
            running[pool.submit(run_once, task)] = task
        while running:
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                run = future.result()
                del running[future]
                for task in islice(plan, 1):
                    running[pool.submit(run_once, task)] = task
                yield run
    except BrokenProcessPool:
        lost = ", ".join(f"{task.name} with seed {task.seed}" for task in running.values())
        raise BrokenOffError(
            f"a worker process died in one of these runs, which are not counted: {lost}; "
            "repeat each with --workers 0"
        ) from None
    finally:
        for child in multiprocessing.active_children() if running else []:
            child.terminate()
        pool.shutdown(cancel_futures=True)


def tell(number: int, length: str, run: Run) -> None:
    found = ", ".join(alarm.id for alarm in run.alarms)
    print(
        f"{number}/{length}  {run.name}  seed {run.seed}  {run.judged} judged, {run.cases} cases, "
        f"{run.seconds:.1f} s  {f'ALARM: {found}' if found else 'no alarm'}",
        flush=True,
    )


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main(sys.argv[1:]))
