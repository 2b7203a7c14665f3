"""Calls that end their process or never come back: the run goes on, and says which they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from properties.guard import watchdog
from properties.guard.aftermath import loading, outcome_of_death, unfinished
from properties.guard.trace import GIVE_UP, Trace, decoded
from properties.guard.watchdog import read
from properties.literals import call_literal
from properties.protocol import ExpertParameters

ROOT = Path(__file__).parents[2]

ZOO = ("NRM-VALUE", "ACT-VALUE", "LAY-LOGITS", "RTR-GRAD", "RTR-VALID")


def gate(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "properties.cli", "run", *arguments, "--lane", "quick"]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_run_goes_on(workers: str, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    options = ("-n", workers, "--call-seconds", "2", "--json", str(report))
    done = gate("tests.hostile.adapters:Zoo", "--only", *ZOO, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {entry["id"]: entry for entry in json.loads(report.read_text())["properties"]}
    assert {name: entry["verdict"] for name, entry in found.items()} == {
        **dict.fromkeys(ZOO, "failed"),
        "RTR-VALID": "passed",
    }
    for name, told, shown in (
        ("NRM-VALUE", "rms_norm ended the process (SIGSEGV)", "rms_norm(\n    x=np."),
        ("ACT-VALUE", "situ_glu did not come back within 2 s", "situ_glu(\n    gate=np."),
        (
            "LAY-LOGITS",
            "router_logits ended the process (exit code 0)",
            "router_logits(\n    x=np.",
        ),
        ("RTR-GRAD", "route_vjp raised KeyboardInterrupt", "route_vjp(\n    logits=np."),
    ):
        assert told in found[name]["message"]
        assert found[name]["calls"][-1].startswith(shown)
        assert f"{name} (theorem): failed" in done.stdout
        assert f"--only {name} --lane quick --call-seconds 2" in done.stdout
    assert "in rms_norm" in found["NRM-VALUE"]["message"]
    assert "in hold" in found["ACT-VALUE"]["message"]


def test_a_flood_of_output_is_clipped_and_a_module_that_exits_refused(tmp_path: Path) -> None:
    done = gate("tests.hostile.adapters:Floods", "--only", "NRM-VALUE", "-n", "0")
    assert done.returncode == 1
    assert len(done.stdout) < 30_000
    assert "characters are left out" in done.stdout
    (tmp_path / "gone.py").write_text("import os\nos._exit(0)\n")
    done = gate("gone:A", "--only", "NRM-VALUE", cwd=tmp_path)
    assert done.returncode == 2
    assert "importing and constructing gone:A ended the process (exit code 0)" in done.stderr


def test_a_thread_that_keeps_the_process_is_an_adapter_error() -> None:
    done = gate("tests.hostile.adapters:KeepsThread", "--only", "NRM-VALUE", "-n", "0")
    assert done.returncode == 2
    assert "threads that the adapter left running: left running" in done.stderr


def test_a_file_that_hides_the_suite_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lp_oracle.py").write_text("")
    done = gate("tests.hostile.adapters:Norm", "--only", "NRM-VALUE", cwd=tmp_path)
    assert done.returncode == 2
    assert "lp_oracle.py hides the package lp_oracle of latentmoe-gate" in done.stderr


# The parts ----------------------------------------------------------------------------------------

HANGS = """
import sys
from pathlib import Path
import properties.guard.trace
from tests.hostile.adapters import hold
properties.guard.trace.LOAD_SECONDS = 0.3
trace = properties.guard.trace.Trace(Path(sys.argv[1]))
with trace.loading("their:Adapter"):
    hold()
"""


def test_an_import_that_never_ends_is_ended(tmp_path: Path) -> None:
    watching = watchdog.start(tmp_path, tell=False)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path)], env=environment, check=False
    )
    watchdog.close(watching)
    assert done.returncode < 0
    assert time.monotonic() - started < 60.0
    told = loading(tmp_path, "SIGKILL")
    assert told.startswith("importing and constructing their:Adapter took more than 0 s")
    assert "in hold" in told


ARGUMENTS = {
    "x": np.arange(12.0, dtype=np.float32).reshape(3, 4).T[::-1],
    "weights": np.zeros((30, 30), np.float16),
    "parameters": ExpertParameters(np.ones((1, 2, 3)), np.ones((1, 2, 3)), np.ones((1, 3, 2))),
    "mask": np.array([True, False]),
    "state": {"bias": np.array([np.nan, -np.inf]), "histogram": None},
    "top_k": 2,
    "eps": 1e-5,
}


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Trace]:
    """A trace of this process."""
    made = Trace(tmp_path, 60.0)
    yield made
    made.close()


def test_a_trace_prints_as_the_call_does(trace: Trace, tmp_path: Path) -> None:
    with trace.judging("NRM-VALUE"):
        trace.begin("experts", ARGUMENTS)
        since, limit, (property_id, label, told) = read(tmp_path / f"{os.getpid()}.now")
        trace.end()
        idle = read(tmp_path / f"{os.getpid()}.now")[0]
    assert (property_id, label, limit, idle) == ("NRM-VALUE", "experts", 60.0, 0.0)
    assert 0.0 < since <= time.monotonic()
    assert call_literal(label, decoded(told)) == call_literal("experts", ARGUMENTS)
    assert unfinished(tmp_path, "") == []


def test_arguments_without_measure_are_left_out(trace: Trace, tmp_path: Path) -> None:
    with trace.judging("NRM-VALUE"):
        trace.begin("experts", {str(n): np.ones(600) + n for n in range(200)})
        outcome = outcome_of_death(tmp_path, "NRM-VALUE", "SIGSEGV")
    assert outcome.calls == ["experts(…)  # too large to be kept"]


def test_a_method_that_always_ends_its_process_is_given_up(trace: Trace, tmp_path: Path) -> None:
    for number in range(GIVE_UP["died"]):
        assert trace.given_up(("balancer", "route")) == ""
        note = json.dumps({"label": "split.observe"})
        (tmp_path / f"QB-{number}.died").write_text(note)
    told = trace.given_up(("balancer", "route"))
    assert told.startswith("not judged: balancer ended the process in QB-0, QB-1")
    assert trace.given_up(("route",)) == ""
    for number in range(GIVE_UP["hung"]):
        (tmp_path / f"RTR-{number}.hung").write_text(json.dumps({"label": "route"}))
    assert "route did not come back in RTR-0, RTR-1" in trace.given_up(("route",))
