"""A rank that fails ends the run in words: which rank, in which call, and where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from properties.errors import RanksError, ViolationError
from properties.loading import load, subject_of
from properties.ranks import Program, close_launches, controller, launch, run
from properties.subject import Subject

ROOT = Path(__file__).parents[2]
SECONDS = 4.0


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    close_launches()  # of tests before, in the same process
    yield
    close_launches()


def subject(name: str, module: str = "tests.ranks.failing") -> Subject:
    loaded = load(f"{module}:{name}")
    loaded.rank_seconds = SECONDS
    return loaded


def programs(world: int = 2) -> list[Program]:
    """Each rank observes a token and updates."""
    made = []
    for _ in range(world):
        program = Program()
        program.make("balancer", "balancer", num_experts=2, top_k=1)
        program.call_on("balancer", "observe", logits=np.array([[0.5, 1.0]]))
        program.call_on("balancer", "update")
        program.read("balancer", "bias", "bias")
        made.append(program)
    return made


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "Raises",
            (
                "rank 1 of 2 raised in balancer.update: ZeroDivisionError: no tokens on this rank",
                "Traceback",
                "failing.py",
            ),
        ),
        ("Exits", ("rank 1 of 2 died in balancer.update (exit code 7)", "giving up")),
        ("IsKilled", ("rank 1 of 2 died in balancer.update (signal SIGKILL) and wrote nothing",)),
        (
            "Segfaults",
            (
                "rank 1 of 2 died in balancer.update (signal SIGSEGV)",
                "Segmentation fault",
                "in fail",
            ),
        ),
        (
            "Sleeps",
            (
                "rank 1 of 2 is still in balancer.update after 4 s, at:",
                "in fail",
                "rank 0 finished",
            ),
        ),
        ("HoldsTheInterpreter", ("rank 1 of 2 is still in balancer.update after 4 s", "in fail")),
        (
            "ConstructorRaises",
            ("rank 1 of 2 raised in the constructor", "no device for rank 1"),
        ),
    ],
)
def test_a_rank_that_fails_is_named_with_its_call(name: str, told: tuple[str, ...]) -> None:
    failing = subject(name)
    began = time.monotonic()
    with pytest.raises(RanksError) as caught:
        run(failing, programs(), "TEST")
    for words in told:
        assert words in str(caught.value)
    assert time.monotonic() - began < launch.START_SECONDS
    assert not controller._launches

    # The answer to the next question is the same, at once.
    began = time.monotonic()
    with pytest.raises(RanksError) as again:
        run(failing, programs(), "TEST")
    assert str(again.value) == str(caught.value)
    assert time.monotonic() - began < 0.5


def test_a_module_that_cannot_be_imported_in_a_rank() -> None:
    with pytest.raises(RanksError, match=r"rank 1 of 2 raised in the constructor.*no kernel lib"):
        run(subject("Imported", "tests.ranks.broken_import"), programs(), "TEST")


def test_a_rank_that_waits_for_another_is_told_from_one_that_finished() -> None:
    waiting = subject("SkipsWithoutTokens", "tests.mutants.ranks_balancing")
    waiting.rank_seconds = 30.0  # of which the import of torch may need a part
    first, second = programs()
    del second.steps[1]
    run(waiting, programs(), "START")
    waiting.rank_seconds = SECONDS
    with pytest.raises(RanksError) as caught:
        run(waiting, [first, second], "TEST")
    assert "rank 0 of 2 is still in balancer.update" in str(caught.value)
    assert "all_reduce" in str(caught.value)
    assert "rank 1 finished" in str(caught.value)


def test_an_input_that_a_rank_changed_is_a_violation() -> None:
    with pytest.raises(ViolationError, match=r"rank 1 of 2: .*modified one of its inputs"):
        run(subject("ChangesItsInput"), programs(), "TEST")


def test_ranks_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(controller, "_refused", {})
    with pytest.raises(RanksError, match=r"2 ranks could not be started: torchrun ended"):
        run(subject("Raises"), programs(), "TEST")
    monkeypatch.undo()
    # Not asked again: it would take as long again.


def test_what_torch_says_of_a_failed_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_refused", {})
    monkeypatch.setenv("PYTHONHASHSEED", "no number")
    with pytest.raises(RanksError, match="PYTHONHASHSEED must be"):
        run(subject("Raises"), programs(), "TEST")


def test_without_torch_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(controller, "_refused", {})
    with pytest.raises(RanksError, match=r"has no torch; install it, or .* --ranks 1"):
        run(subject("Raises"), programs(), "TEST")


def test_an_object_without_a_name_cannot_be_launched() -> None:
    nameless = subject_of(load("tests.ranks.failing:Raises").implementation)
    with pytest.raises(RanksError, match=r"<object> is none; judge it as package.module:Name"):
        run(nameless, programs(), "TEST")


def test_the_run_of_an_implementation_whose_rank_dies_exits_with_2() -> None:
    command = [sys.executable, "-m", "properties.cli", "run", "tests.ranks.failing:Exits"]
    command += ["--only", "QB-RANKS", "NRM-VALUE", "--lane", "quick", "--ranks", "2", "-n", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "rank 1 of 2 died in balancer.update (exit code 7)" in done.stdout
    assert "rank 1: balancer.observe(" in done.stdout
    assert "--only QB-RANKS --lane quick --ranks 2" in done.stdout
    assert "ADAPTER ERROR" in done.stdout


# The end of ranks --------------------------------------------------------------------------------


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(processes: list[int], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(alive, processes)):
        time.sleep(0.1)
    return not any(map(alive, processes))


needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks processes up in /proc")


@needs_proc
def test_closing_ends_all_processes() -> None:
    run(subject("Works"), programs(), "TEST")
    started = controller._launches[2]
    processes = [started._torchrun.pid, *started._processes.values()]
    assert all(map(alive, processes))
    close_launches()
    assert gone(processes, 5.0)
    assert not started._folder.exists()


def test_torchrun_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(RanksError):
        run(subject("IsKilled"), programs(), "TEST")
    left = {path.name for path in tmp_path.iterdir()}
    assert {name for name in left if not name.startswith("torchinductor")} == set()  # its cache


@needs_proc
@pytest.mark.parametrize("name", ["Works", "Sleeps", "HoldsTheInterpreter"])
def test_ranks_end_with_a_controller_that_is_killed(name: str, tmp_path: Path) -> None:
    """Idle or in the middle of a call, and even where the call holds the interpreter."""
    script = textwrap.dedent(f"""
        import os, sys, threading, time
        from tests.ranks.test_failures import programs, subject
        from properties.ranks import controller, run
        asked = subject({name!r})
        asked.rank_seconds = 600.0
        threading.Thread(target=run, args=(asked, programs(), "TEST"), daemon=True).start()
        while 2 not in controller._launches or not asked.case.calls:
            time.sleep(0.1)
        time.sleep(2.0)
        launch = controller._launches[2]
        print(launch._torchrun.pid, *launch._processes.values(), flush=True)
        time.sleep(600.0)
    """)
    path = tmp_path / "controller.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as started:
        assert started.stdout is not None
        processes = [int(word) for word in started.stdout.readline().split()]
        assert len(processes) == 3
        assert all(map(alive, processes))
        started.send_signal(signal.SIGKILL)
    assert gone(processes, 60.0)
