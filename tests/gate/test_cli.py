"""The command line and the plugin, as a user meets them: in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from properties.report import unjudged_lines

ROOT = Path(__file__).parents[2]


def gate(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "properties.cli", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def run(adapter: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return gate("run", f"tests.gate.adapters:{adapter}", "-n", "0", *arguments)


def test_a_pass_has_header_topics_and_verdict(tmp_path: Path) -> None:
    report, junit = tmp_path / "run.json", tmp_path / "run.xml"
    done = run("Minimal", "--topic", "norm", "--json", str(report), "--junitxml", str(junit))
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "implementation  tests.gate.adapters:Minimal (minimal 1)",
        "precision       compute float64, accumulate float64, storage float64, routing float64",
        "conventions     the report’s",
        "offers          rms_norm",
        "lane gate",
        "Hypothesis ",
        "PASSED: every offered property holds",
    ):
        assert told in done.stdout
    document = json.loads(report.read_text())
    assert document["exit_code"] == 0
    [norm] = [entry for entry in document["properties"] if entry["id"] == "NRM-VALUE"]
    assert norm["verdict"] == "passed"
    assert norm["worst_ratio"] <= 1.0
    names = {node.get("name") for node in ElementTree.parse(junit).iter("property")}
    assert {"property", "verdict", "worst_ratio"} <= names


def test_a_violation_exits_with_1_and_shows_how_to_see_it_again() -> None:
    done = run("WithoutEps", "--only", "NRM-VALUE", "--seed", "4")
    assert done.returncode == 1
    topics, failures = done.stdout.index("verdicts by topic"), done.stdout.index("FAILURES")
    assert topics < failures
    for told in (
        "NRM-VALUE (theorem): failed",
        "RMSNorm(x) = x / sqrt(mean(x^2) + eps) * weight",
        "rms_norm(",
        "x=np.array(",
        "latentmoe-gate run tests.gate.adapters:WithoutEps --only NRM-VALUE --seed 4",
        "FAILED: a property is violated",
    ):
        assert told in done.stdout


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        ("Missing", "has no 'Missing'"),
        ("ConstructorRaises", "no device"),
        ("OffersNothing", "offers none of the protocol's methods"),
        ("ReturnsFloat32", "expected a numpy.ndarray of shape"),
        ("WrongSignature", "cannot be called as the protocol does"),
    ],
)
def test_a_wrong_adapter_exits_with_2(adapter: str, told: str) -> None:
    done = run(adapter, "--only", "NRM-VALUE")
    assert done.returncode == 2
    assert told in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_selecting_only_what_is_not_offered_is_no_pass() -> None:
    done = run("Minimal", "--only", "RTR-VALID")
    assert done.returncode == 2
    assert "nothing was judged" in done.stdout


def test_unknown_names_are_refused() -> None:
    done = run("Minimal", "--only", "NRM-VALU")
    assert done.returncode == 2
    assert "did you mean NRM-VALUE" in done.stderr
    assert gate("explain", "NO-SUCH").returncode == 2
    assert run("Minimal", "--topic", "physics").returncode == 2


def test_reports_that_cannot_be_written_are_refused_before_the_run(tmp_path: Path) -> None:
    for option in ("--json", "--junitxml"):
        done = run("Minimal", option, str(tmp_path))
        assert done.returncode == 2
        assert "it is a folder" in done.stderr
        assert "test session starts" not in done.stdout


def test_an_empty_selection_is_the_callers_mistake() -> None:
    done = run("Minimal", "--only", "NRM-VALUE", "--topic", "routing")
    assert done.returncode == 2
    assert "no property is both" in done.stderr


def test_workers_give_the_same_verdicts(tmp_path: Path) -> None:
    ratios = []
    for workers in ("0", "2"):
        report = tmp_path / f"{workers}.json"
        run("Minimal", "-n", workers, "--topic", "norm", "--json", str(report))
        document = json.loads(report.read_text())
        ratios.append([(entry["id"], entry["worst_ratio"]) for entry in document["properties"]])
    assert ratios[0] == ratios[1]


def test_a_crash_of_the_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(
        "import os\n"
        "from tests.gate.adapters import Minimal\n"
        "class Crash(Minimal):\n"
        "    def rms_norm(self, x, weight, *, eps):\n"
        "        os.kill(os.getpid(), 11)\n"
    )
    for workers in ("0", "1"):
        done = gate("run", "crashing:Crash", "--only", "NRM-VALUE", "-n", workers, cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "rms_norm ended the process (SIGSEGV)" in done.stdout
        assert "NRM-VALUE" in done.stdout + done.stderr


def test_an_adapter_is_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tests.gate.adapters import Minimal as Mine\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not for the gate')\n")
    done = gate("run", "mine:Mine", "--only", "NRM-VALUE", "-n", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "conftest.py",
        "mine.py",
        "pytest.ini",
    ]


def test_offered_methods_that_nothing_judges_are_named() -> None:
    assert unjudged_lines(("layer", "balancer.to", "poison")) == []
    told = ["offered, but not judged in this version: of_a_later_version"]
    assert unjudged_lines(("layer", "of_a_later_version")) == told


def test_list_and_explain() -> None:
    listed = gate("list", "--topic", "norm")
    assert listed.returncode == 0
    assert "NRM-VALUE        theorem" in listed.stdout
    explained = gate("explain", "nrm-value")
    assert explained.returncode == 0
    assert "If it fails" in explained.stdout
    assert "Eq. 11" in explained.stdout
    assert "quantile_update or balancer" in gate("explain", "QB-SPAN").stdout
    assert "an order statistic with fixed weights" in gate("explain", "QB-SPAN").stdout


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = [sys.executable, "-m", "properties.cli", "list", "--markdown"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def plain_pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_plain_pytest_judges_and_sees_adapter_errors(tmp_path: Path) -> None:
    common = ("--pyargs", "properties", "--gate-only", "NRM-VALUE", "--implementation")
    good = plain_pytest(*common, "tests.gate.adapters:Minimal", cwd=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "1 passed" in good.stdout
    bad = plain_pytest(*common, "tests.gate.adapters:WithoutEps", cwd=tmp_path)
    assert bad.returncode == 1
    absent = plain_pytest(*common, "tests.gate.adapters:Missing", cwd=tmp_path)
    assert absent.returncode == 4
    assert "has no 'Missing'" in absent.stderr


def test_the_plugin_is_inert_without_an_implementation(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\ndef test_theirs():\n    assert 'properties.registry' not in sys.modules\n"
    )
    done = plain_pytest("test_theirs.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "verdicts by topic" not in done.stdout
    unnamed = plain_pytest("--pyargs", "properties.test_norm", cwd=tmp_path)
    assert unnamed.returncode == 1
    assert "no implementation is named" in unnamed.stdout


def test_an_adapter_that_is_refused_beside_workers_is_told_once() -> None:
    done = gate("run", "tests.gate.adapters:NoSuch", "-n", "2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("has no 'NoSuch'; it defines Minimal") == 1
    assert "Traceback" not in done.stdout + done.stderr
