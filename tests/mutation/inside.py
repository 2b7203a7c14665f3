"""What runs in the copy of the repository; the only file that imports mutmut.

python inside.py generate | run | called | diffs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# The folder of a script is on its path; modules of the copy are what is to be imported.
sys.path.pop(0)

# One process tests the mutants, so that times stay comparable.
CHILDREN = 1


def generate() -> None:
    """Write the mutants without running any."""
    from mutmut import __main__ as mutmut

    Path("mutants").mkdir()
    mutmut.set_mutant_under_test("mutant_generation")
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.create_mutants(CHILDREN)


def run() -> None:
    """Run the mutants whose result is not known."""
    from mutmut.__main__ import cli

    cli(["run", "--max-children", str(CHILDREN)])


def called() -> None:
    """Write called.json: functions that loading the tests calls, before any mutant is there."""
    from mutmut.mutation.trampoline import set_mutant_under_test
    from mutmut.runners.harness import PytestRunner
    from mutmut.state import state
    from mutmut.utils.file_utils import setup_source_paths

    setup_source_paths()
    set_mutant_under_test("stats")
    PytestRunner().warm_up()
    Path("called.json").write_text(json.dumps(sorted(state()._stats)), encoding="utf-8")


def diffs() -> None:
    """Write diffs.json: what each mutant named in asked.json changes."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    found = {}
    for name in json.loads(Path("asked.json").read_text(encoding="utf-8")):
        lines = get_diff_for_mutant(name).splitlines()[2:]
        found[name] = {
            key: "\n".join(line[1:].strip() for line in lines if line.startswith(sign))
            for key, sign in (("before", "-"), ("after", "+"))
        }
    Path("diffs.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    {"generate": generate, "run": run, "called": called, "diffs": diffs}[sys.argv[1]]()
