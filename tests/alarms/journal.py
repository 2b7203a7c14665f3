"""The log of whole runs: one line of JSON each, from which nothing is ever taken away."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from itertools import count
from pathlib import Path
from platform import python_version

ROOT = Path(__file__).resolve().parents[2]

# What decides a verdict. Runs of other code are not added to these.
JUDGED_BY = ("properties", "reference_numpy", "lp_oracle", "impl_torch", "tests/variants")
JUDGED_WITH = ("tests/alarms/judging.py", "tests/ranks/pooled.py")

PACKAGES = ("hypothesis", "numpy", "scipy", "ml_dtypes", "torch")

_SEED = re.compile(r'\{"seed": (\d+),')


class LogError(Exception):
    """The file is no log of runs."""


@dataclass(frozen=True)
class Alarm:
    """A property that did not pass, with what was said of it and the calls that show it."""

    id: str
    verdict: str
    message: str
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One implementation under every property that calls one, drawn from one seed.

    ``verdicts`` counts the properties by verdict, ``left_out`` those of them that the declared
    conventions leave nothing to ask of. ``code`` is the digest of what decided, see ``digest``.
    """

    seed: int
    name: str
    reference: str
    lane: str
    ranks: bool
    code: str
    commit: str
    versions: dict[str, str]
    ended: str
    seconds: float
    verdicts: dict[str, int]
    left_out: int
    cases: int
    undecided: int
    alarms: tuple[Alarm, ...] = ()

    @property
    def judged(self) -> int:
        """The properties that had a case."""
        return sum(self.verdicts.values()) - self.verdicts.get("not offered", 0)


@dataclass
class Journal:
    """What a log holds: its runs, every seed in it, and what is wrong with lines of it."""

    runs: list[Run] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    trouble: list[str] = field(default_factory=list)

    def of(self, code: str, lane: str, *, ranks: bool) -> list[Run]:
        """The runs that may be added up: of that code, lane and choice of ranks."""
        return [run for run in self.runs if (run.code, run.lane, run.ranks) == (code, lane, ranks)]


def read(path: Path) -> Journal:
    """The log at that path, empty where there is none yet.

    A line that was cut off, as by an interrupted write, is told in ``trouble``. Raises LogError for
    a file of something else.
    """
    journal = Journal()
    if not path.exists():
        return journal
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line:
            continue
        known = _SEED.match(line)
        if known is not None:
            journal.seeds.add(int(known[1]))
        try:
            journal.runs.append(_run(json.loads(line)))
        except json.JSONDecodeError:
            if not line.startswith('{"seed": '[: len(line)]):
                raise _no_log(path, number) from None
            journal.trouble.append(
                f"line {number} of {path} is cut off: that run is not counted, every other is"
            )
        except (TypeError, KeyError, AttributeError):
            raise _no_log(path, number) from None
    return journal


def _run(told: dict[str, object]) -> Run:
    alarms = told.pop("alarms")
    if told.keys() != {part.name for part in fields(Run)} - {"alarms"}:
        raise KeyError
    found = [Alarm(**{**alarm, "calls": tuple(alarm["calls"])}) for alarm in alarms]  # type: ignore[attr-defined]
    return Run(**told, alarms=tuple(found))  # type: ignore[arg-type]


def _no_log(path: Path, number: int) -> LogError:
    return LogError(
        f"line {number} of {path} is no run of this tool; name another file with --log, or none yet"
    )


def append(path: Path, run: Run) -> None:
    """Add a run and see it written. A line that was cut off before stays a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        broken = end > 0 and file.read(1) != b"\n"
        line = json.dumps(asdict(run)) + "\n"
        file.write(("\n" * broken + line).encode())
        file.flush()
        os.fsync(file.fileno())


def fresh_seeds(first: int, used: Collection[int]) -> Iterator[int]:
    """Seeds from that one on, none of those that were used."""
    return (seed for seed in count(first) if seed not in used)


def digest(root: Path = ROOT) -> str:
    """Twelve hex digits that change with any file that decides a verdict."""
    found = [path for folder in JUDGED_BY for path in (root / folder).rglob("*.py")]
    found += [root / name for name in JUDGED_WITH]
    total = hashlib.sha256()
    for path in sorted(found):
        name = path.relative_to(root).as_posix().encode()
        total.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out, "-dirty" where deciding files differ from it."""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *JUDGED_BY, *JUDGED_WITH)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + "-dirty" * bool(changed)


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def versions() -> dict[str, str]:
    """Python and the packages that draw and compute."""
    return {"python": python_version()} | {name: version(name) for name in PACKAGES}
