"""The command ``latentmoe-gate``: run, list, explain, study."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from properties import report
from properties.errors import AdapterError
from properties.execution import select
from properties.guard.shadows import require_own
from properties.guard.supervision import supervised
from properties.pages import catalogue_page, explanation
from properties.registry import TOPICS, catalogue, find
from properties.study import command as study

MAX_WORKERS = 4

# What shells say of a program that Ctrl-C ended.
INTERRUPTED = 130

# pytest-xdist replaces so many workers; properties.guard.trace.GIVE_UP makes do with fewer.
RESTARTS = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _command(options)
    except KeyboardInterrupt:
        print("latentmoe-gate: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; Python would complain again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return report.EXIT_PASSED


def _command(options: argparse.Namespace) -> int:
    if options.command == "list":
        return _list(options.topic, markdown=options.markdown)
    if options.command == "explain":
        return _explain(options.id)
    if options.command == "study":
        return study.run(options)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="latentmoe-gate",
        description="Judge an implementation of the Stable LatentMoE layer by its properties.",
    )
    parser.add_argument("--version", action="version", version=version("latentmoe-gate"))
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="judge an implementation",
        epilog="Exit codes: 0 all offered properties hold; 1 a property is violated; 2 the adapter "
        "or the call is wrong; 3 no violation, but too many cases were undecided; 4 the suite "
        "itself failed.",
    )
    run.add_argument("implementation", help="package.module:Name, seen from the current folder")
    run.add_argument("--only", nargs="+", default=[], metavar="ID", help="only these properties")
    run.add_argument("--topic", nargs="+", default=[], choices=TOPICS, help="only these topics")
    run.add_argument("--lane", choices=("gate", "quick", "nightly"), default="gate")
    run.add_argument("--seed", type=int, metavar="N", help="draw other cases than the lane's own")
    run.add_argument(
        "-n",
        dest="workers",
        type=_workers,
        default="auto",
        metavar="WORKERS",
        help="worker processes; 0 stays in one process; default auto, at most 4",
    )
    run.add_argument(
        "--ranks",
        type=_ranks,
        metavar="N",
        help="judge worlds of 2 and 4 ranks up to N where the implementation has them; 1 judges "
        "none; default: 4 ranks, in the nightly lane both, in a whole quick run none",
    )
    run.add_argument(
        "--call-seconds",
        type=_seconds,
        metavar="N",
        help="how long one call may take before its process is ended; default 60, 0 is no limit",
    )
    run.add_argument(
        "--save", type=Path, metavar="FOLDER", help="write the arrays of failures there, as .npz"
    )
    run.add_argument("--json", type=Path, metavar="FILE", help="write the run as JSON")
    run.add_argument("--junitxml", type=Path, metavar="FILE", help="write a JUnit report")
    listing = commands.add_parser("list", help="list the properties")
    listing.add_argument("--topic", nargs="+", default=list(TOPICS), choices=TOPICS)
    listing.add_argument(
        "--markdown", action="store_true", help="all of them in full, as docs/properties.md"
    )
    explain = commands.add_parser("explain", help="print a property's specification")
    explain.add_argument("id", metavar="ID")
    study.add_command(commands, _workers)
    return parser


def _workers(text: str) -> int:
    if text == "auto":
        return min(MAX_WORKERS, os.cpu_count() or 1)
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of workers nor 'auto'")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; it is 0 or more")
    return seconds


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks; it is 1, 2 or 4")
    return int(text)


def _list(topics: Sequence[str], *, markdown: bool) -> int:
    if markdown:
        print(catalogue_page(), end="")
        return report.EXIT_PASSED
    for entry in catalogue().values():
        if entry.topic in topics:
            print(f"{entry.id:<17}{entry.kind:<16}{entry.headline}")
    return report.EXIT_PASSED


def _explain(property_id: str) -> int:
    try:
        entry = find(property_id)
    except KeyError as error:
        return _refuse(error.args[0])
    print(explanation(entry))
    return report.EXIT_PASSED


def _run(options: argparse.Namespace) -> int:
    try:
        require_own(Path.cwd())
        # Without ids there is nothing to look up, and the suite need not be imported here as well.
        if options.only and not select(options.only, options.topic):
            return _refuse("no property is both in --only and in --topic")
    except (AdapterError, KeyError) as error:
        return _refuse(error.args[0])
    for name in ("json", "junitxml"):
        path: Path | None = getattr(options, name)
        if path is not None and (reason := _unwritable(path)):
            return _refuse(f"--{name} {path} cannot be written: {reason}")
    with tempfile.TemporaryDirectory(prefix="latentmoe-gate-") as folder:
        result = Path(folder) / "run.json"
        ended = supervised(
            lambda alone: _pytest_command(options, result, alone=alone),
            _environment(options, folder),
            result.parent,
            result,
        )
        if ended.trouble:
            print(f"latentmoe-gate: {ended.trouble}", file=sys.stderr)
        if not ended.result:
            return report.EXIT_ADAPTER if ended.refused else report.EXIT_SUITE
        text = result.read_text(encoding="utf-8")
    if options.json is not None:
        options.json.write_text(text, encoding="utf-8")
        print(f"JSON: {options.json}")
    code: int = json.loads(text)["exit_code"]
    if code == report.EXIT_PASSED and ended.trouble:
        return report.EXIT_ADAPTER
    return code


def _unwritable(path: Path) -> str:
    """Why a report could not be written there; asked before the run, so that none is lost."""
    if path.is_dir():
        return "it is a folder; name a file"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _pytest_command(options: argparse.Namespace, result: Path, *, alone: bool) -> list[str]:
    """pytest with our plugin alone, so that the caller's configuration cannot change a verdict."""
    package = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "--pyargs", "properties"]
    command += ["-c", str(package / "gate.ini"), "--rootdir", str(package.parent)]
    command += ["--implementation", options.implementation, "--gate-json", str(result)]
    command += ["--gate-lane", options.lane, "--gate-folder", str(result.parent)]
    command += [word for name in options.only for word in ("--gate-only", name)]
    command += [word for name in options.topic for word in ("--gate-topic", name)]
    if options.seed is not None:
        command += ["--gate-seed", str(options.seed)]
    if options.ranks is not None:
        command += ["--gate-ranks", str(options.ranks)]
    if options.call_seconds is not None:
        command += ["--gate-call-seconds", str(options.call_seconds)]
    if options.save is not None:
        command += ["--gate-save", str(options.save.absolute())]
    command += ["-p", "no:faulthandler"]  # ours writes to a file, which outlives the process
    command += ["-p", "no:unraisableexception"]  # it collects garbage for a second at the end
    command += ["-p", "properties.plugin", "-p", "no:cacheprovider", "--noconftest"]
    if alone:
        command += ["--no-header"]  # it has been seen
    elif options.workers:
        command += ["-p", "xdist.plugin", "-n", str(options.workers), "--dist", "worksteal"]
        command += ["--max-worker-restart", str(RESTARTS)]
    if options.junitxml is not None:
        command += ["--junitxml", str(options.junitxml.absolute())]
    return command


def _environment(options: argparse.Namespace, folder: str) -> dict[str, str]:
    """The caller's environment, less what would let other plugins or options in."""
    environment = dict(os.environ)
    environment.pop("PYTEST_ADDOPTS", None)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if options.lane != "nightly":
        environment["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
    return environment


def _refuse(message: str) -> int:
    print(f"latentmoe-gate: {message}", file=sys.stderr)
    return report.EXIT_ADAPTER


if __name__ == "__main__":
    sys.exit(main())
