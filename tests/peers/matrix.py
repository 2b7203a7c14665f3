"""Run the gate on every public package that has an adapter here, and print property x package.

    python tests/peers/matrix.py [--ours] [--peers WORD...] [options of latentmoe-gate run]

``--ours`` judges this repository's own implementations instead (docs/matrix.md). ``--peers`` keeps
the columns whose adapter contains one of the words. Exit status: 0 if every
adapter could be run, whatever the verdicts (a violated property is a finding), else 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# What no package offers, balancing, is left out; statements on the oracle need no package.
TOPICS = ("activation", "routing", "experts", "norm", "layer")

TABLES = {
    "nemo-automodel": {
        "K3 f32": "tests.peers.nemo_automodel_k3:Float32",
        "K3 bf16": "tests.peers.nemo_automodel_k3:BFloat16",
        "K3 f32 chunks": "tests.peers.nemo_automodel_chunked:KimiK3Float32",
        "K3 bf16 chunks": "tests.peers.nemo_automodel_chunked:KimiK3BFloat16",
        "DSV3 f32 chunks": "tests.peers.nemo_automodel_chunked:DeepseekV3Float32",
        "DSV3 f32": "tests.peers.nemo_automodel_moe:DeepseekV3Float32",
        "DSV3 f32 grouped": "tests.peers.nemo_automodel_moe:DeepseekV3Float32Grouped",
        "DSV3 bf16": "tests.peers.nemo_automodel_moe:DeepseekV3BFloat16",
        "Nemo3 bf16": "tests.peers.nemo_automodel_moe:NemotronV3BFloat16",
        "KimiLin f32": "tests.peers.nemo_automodel_moe:KimiLinearFloat32",
    },
    "transformers, routers and experts": {
        "DSV3 f32": "tests.peers.transformers_deepseek_v3:Float32",
        "DSV3 f32 batched": "tests.peers.transformers_deepseek_v3:Float32Batched",
        "DSV3 f32 eager": "tests.peers.transformers_deepseek_v3:Float32Eager",
        "DSV3 bf16": "tests.peers.transformers_deepseek_v3:BFloat16",
        "DSV3 bf16 eager": "tests.peers.transformers_deepseek_v3:BFloat16Eager",
        "KimiLin f32": "tests.peers.transformers_kimi_linear:Float32",
        "NemoH f32": "tests.peers.transformers_nemotron_h:Float32",
        "NemoH bf16 eager": "tests.peers.transformers_nemotron_h:BFloat16Eager",
    },
    "transformers, Inkling 2 and further routers": {
        "Inkling2 f32": "tests.peers.transformers_inkling2:Float32",
        "Inkling2 bf16": "tests.peers.transformers_inkling2:BFloat16",
        "MiniMax f32": "tests.peers.transformers_routers:MiniMaxM2",
        "Laguna bf16": "tests.peers.transformers_routers:LagunaBFloat16",
        "Kolibri f32": "tests.peers.transformers_routers:Kolibri1",
        "Muse f32": "tests.peers.transformers_routers:MuseSpark",
    },
}


OURS = {
    "this repository": {
        "Reference": "properties.reference:Reference",
        "Float64": "impl_torch.adapter:Float64",
        "Float32": "impl_torch.adapter:Float32",
        "BFloat16": "impl_torch.adapter:BFloat16",
    }
}


def main(arguments: Sequence[str]) -> int:
    """Judge every peer in turn, then print a matrix for each table."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--peers", nargs="+", default=[""])
    parser.add_argument("--results", type=Path, help="keep each run's JSON in this folder")
    own, options = parser.parse_known_args(arguments)
    if not own.ours and not {"--topic", "--only"} & set(options):
        options += ["--topic", *TOPICS]
    tables, broken = [], []
    for title, peers in (OURS if own.ours else TABLES).items():
        chosen = {
            label: adapter
            for label, adapter in peers.items()
            if any(word in adapter for word in own.peers)
        }
        runs = {label: judge(adapter, options, own.results) for label, adapter in chosen.items()}
        broken += [chosen[label] for label, run in runs.items() if not has_verdicts(run)]
        tables.append((title, {label: run for label, run in runs.items() if run is not None}))
    for title, runs in filter(itemgetter(1), tables):
        print("\n".join(["", title, "", *matrix_lines(runs), "", *legend_lines(runs)]))
    if broken:
        print(f"could not be judged: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def judge(adapter: str, options: Sequence[str], results: Path | None) -> Any:
    """The gate's JSON for one adapter, or None if there was no verdict.

    A process of its own for each, as their packages change torch's global state on import.
    """
    print(f"\n--- {adapter}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result = (results or Path(folder)).absolute() / f"{adapter.replace(':', '.')}.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", "properties.cli", "run", adapter, "--json", str(result)]
        subprocess.run([*command, *options], cwd=ROOT, check=False)
        return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def has_verdicts(run: Any) -> bool:
    """Whether there was a run, and every method returned what the protocol asks for."""
    return run is not None and all(
        entry["verdict"] != "adapter error" for entry in run["properties"]
    )


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
    """The worst ratio of error to radius where a property passed, else the verdict."""
    if entry["verdict"] != "passed":
        return {"failed": "FAILED", "not offered": "-"}.get(entry["verdict"], entry["verdict"])
    return "ok" if entry["worst_ratio"] is None else f"{entry['worst_ratio']:.2g}"


def legend_lines(runs: Mapping[str, Any]) -> list[str]:
    """What stands behind each column."""
    return [
        f"{label}: {run['name']} {run['version']} ({run['implementation']})"
        for label, run in runs.items()
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
