"""Run the gate on every public package that has an adapter here, and print property x package.

    python tests/peers/matrix.py [options of latentmoe-gate run]

Exit status: 0 if every adapter could be run, whatever the verdicts (a violated property is a
finding), else 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PEERS = {
    "nemo f32": "tests.peers.nemo_automodel_k3:Float32",
    "nemo bf16": "tests.peers.nemo_automodel_k3:BFloat16",
    "hf f32": "tests.peers.transformers_deepseek_v3:Float32",
    "hf f32 batched": "tests.peers.transformers_deepseek_v3:Float32Batched",
    "hf bf16": "tests.peers.transformers_deepseek_v3:BFloat16",
}


def main(options: Sequence[str]) -> int:
    """Run every peer in turn, then print the matrix of those that ran."""
    runs: dict[str, Any] = {}
    for label, adapter in PEERS.items():
        print(f"\n--- {label}: {adapter}", flush=True)
        run = judge(adapter, options)
        if run is not None:
            runs[label] = run
    print("\n".join(["", *matrix_lines(runs), "", *legend_lines(runs)]))
    broken = [label for label in PEERS if label not in runs or has_adapter_error(runs[label])]
    if broken:
        print(f"could not be judged: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def judge(adapter: str, options: Sequence[str]) -> Any:
    """The gate's JSON for one adapter, or None if there was no verdict.

    A process of its own for each, as their packages change torch's global state on import.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "run.json"
        command = [sys.executable, "-m", "properties.cli", "run", adapter, "--json", str(result)]
        subprocess.run([*command, *options], cwd=ROOT, check=False)
        return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def has_adapter_error(run: Mapping[str, Any]) -> bool:
    """Whether a method returned something that is not what the protocol asks for."""
    return any(entry["verdict"] == "adapter error" for entry in run["properties"])


def matrix_lines(runs: Mapping[str, Any]) -> list[str]:
    """A Markdown table: a row per property, in the order of the catalogue, a column per peer."""
    topics = {entry["id"]: entry["topic"] for run in runs.values() for entry in run["properties"]}
    cells = {
        label: {entry["id"]: cell(entry) for entry in run["properties"]}
        for label, run in runs.items()
    }
    table = [["topic", "property", *runs]]
    for name, topic in topics.items():
        table.append([topic, name, *(cells[label].get(name, "") for label in runs)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    return ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in table]


def cell(entry: Mapping[str, Any]) -> str:
    """A verdict and its worst ratio of error to radius."""
    verdict = {"failed": "FAILED", "not offered": "-"}.get(entry["verdict"], entry["verdict"])
    ratio = entry["worst_ratio"]
    return verdict if ratio is None or verdict == "-" else f"{verdict} {ratio:.2g}"


def legend_lines(runs: Mapping[str, Any]) -> list[str]:
    """What stands behind each column."""
    return [
        f"{label}: {run['name']} {run['version']} ({run['implementation']})"
        for label, run in runs.items()
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
