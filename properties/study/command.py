"""The command ``latentmoe-gate study``: arguments, refusals, and what is written where.

The measuring modules are imported when it runs, and matplotlib when figures are asked for, so that
the other commands start without them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from properties.errors import UnknownError, ViolationError
from properties.study.outputs import objection_to_file, objection_to_folder, write_whole

if TYPE_CHECKING:
    from properties.study.results import Study

SECTIONS = ("rules", "rounds", "exponent")
INSTANCES = 250
QUICK_INSTANCES = 10
UNDECIDED_ALLOWED = 0.05

EXIT_DONE, EXIT_VIOLATED, EXIT_CALL, EXIT_UNDECIDED, EXIT_FAILED = range(5)
EXIT_INTERRUPTED = 130

__all__ = ["add_command", "run"]


def add_command(commands: Any, workers: Callable[[str], int]) -> None:
    """Add ``study`` to the subparsers; ``workers`` parses a number of processes."""
    study: argparse.ArgumentParser = commands.add_parser(
        "study",
        help="measure how far Quantile Balancing comes",
        description="Measure how often and how fast Quantile Balancing reaches the LP optimum, by "
        "rule, by round and by batch size. Takes a few minutes; --quick shows it in seconds.",
        epilog="Exit codes: 0 done; 1 a certified routing is not the optimum; 2 the call is wrong; "
        "3 too many optima could not be certified; 4 the study itself failed.",
    )
    study.add_argument("--only", choices=SECTIONS, help="only this section")
    study.add_argument("--quick", action="store_true", help="small sizes, to see what comes out")
    study.add_argument(
        "--instances",
        type=_positive,
        metavar="N",
        help=f"per class of the rule table; default {INSTANCES}, with --quick {QUICK_INSTANCES}",
    )
    study.add_argument("--seed", type=_natural, default=0, metavar="N", help="default 0")
    study.add_argument(
        "-n",
        dest="workers",
        type=workers,
        default=2,
        metavar="WORKERS",
        help="worker processes; 0 stays in one process; default 2",
    )
    study.add_argument("--json", type=Path, metavar="FILE", help="write every number as JSON")
    study.add_argument("--figures", type=Path, metavar="DIR", help="write the figures as SVG")
    study.add_argument(
        "--page", type=Path, metavar="DIR", help="write DIR/study.md and DIR/figures/*.svg"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of instances")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: 0, 1, 2, …")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; returns the exit code. Everything that can be refused is, first."""
    if reason := _objection(options):
        return _tell(reason, EXIT_CALL)
    try:
        study, seconds = _measured(options)
    except KeyboardInterrupt:
        return _tell("interrupted; nothing was written", EXIT_INTERRUPTED)
    except ViolationError as error:
        return _tell(str(error), EXIT_VIOLATED)
    except (ArithmeticError, BrokenProcessPool, UnknownError) as error:
        return _tell(f"the study failed: {error}", EXIT_FAILED)
    return _delivered(options, study, seconds)


def _objection(options: argparse.Namespace) -> str:
    if options.page is not None and options.only is not None:
        return "--page shows all sections; leave out --only"
    if options.json is not None and (reason := objection_to_file(options.json)):
        return f"--json {options.json} cannot be written: {reason}"
    for name, folder in _folders(options):
        if reason := objection_to_folder(folder):
            return f"--{name} {folder} cannot be written: {reason}"
    if options.figures is not None or options.page is not None:
        return _missing_matplotlib()
    return ""


def _folders(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Where files go; the figures' folder of a page is made where it is missing."""
    folders = [(name, getattr(options, name)) for name in ("figures", "page")]
    if options.page is not None and (options.page / "figures").exists():
        folders.append(("page", options.page / "figures"))
    return [(name, folder) for name, folder in folders if folder is not None]


def _missing_matplotlib() -> str:
    try:
        import properties.study.figures  # noqa: F401
    except ModuleNotFoundError as error:
        return f"figures need matplotlib ({error}): pip install 'latentmoe-gate[report]'"
    return ""


def _measured(options: argparse.Namespace) -> tuple[Study, dict[str, float]]:
    from properties.study import exponent, rounds, rules
    from properties.study.results import Study
    from properties.study.workers import working

    seed, quick = options.seed, options.quick
    instances = options.instances or (QUICK_INSTANCES if quick else INSTANCES)
    shapes = rounds.QUICK_SHAPES if quick else rounds.SHAPES
    ratios = exponent.QUICK_RATIOS if quick else exponent.RATIOS
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    with working(options.workers) as workers:
        measuring: dict[str, Callable[[], Any]] = {
            "rules": lambda: rules.measure(seed, instances, workers),
            "rounds": lambda: rounds.measure(seed, shapes, workers),
            "exponent": lambda: exponent.measure(
                seed, ratios, exponent.seeds(quick=quick), workers
            ),
        }
        for name in SECTIONS if options.only is None else (options.only,):
            begun = time.perf_counter()
            found[name] = measuring[name]()
            seconds[name] = round(time.perf_counter() - begun, 3)
    return Study(seed, instances, quick, **found), seconds


def _delivered(options: argparse.Namespace, study: Study, seconds: dict[str, float]) -> int:
    from properties.study import results

    print(results.text(study))
    try:
        for path, data in _files(options, study, seconds).items():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, data)
            print(f"written: {path}", file=sys.stderr)
    except OSError as error:
        return _tell(f"not everything was written: {error}", EXIT_FAILED)
    if results.undecided_share(study) > UNDECIDED_ALLOWED:
        return _tell("too many optima could not be certified", EXIT_UNDECIDED)
    return EXIT_DONE


def _files(
    options: argparse.Namespace, study: Study, seconds: dict[str, float]
) -> dict[Path, bytes]:
    from properties.study import results

    files: dict[Path, bytes] = {}
    if options.json is not None:
        files[options.json] = results.document(study, seconds).encode()
    if options.figures is None and options.page is None:
        return files
    from properties.study.figures import drawn
    from properties.study.page import page

    drawings = drawn(study)
    if options.figures is not None:
        files.update({options.figures / name: data for name, data in drawings.items()})
    if options.page is not None:
        files.update({options.page / "figures" / name: data for name, data in drawings.items()})
        files[options.page / "study.md"] = page(study).encode()
    return files


def _tell(message: str, code: int) -> int:
    print(f"latentmoe-gate: {message}", file=sys.stderr)
    return code
