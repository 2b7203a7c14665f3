"""The script of docs/training.md runs, alone and on two ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.impl_torch.launch import launch

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def train(rank: int, world: int, script: str) -> dict[str, Any]:
    """Run the script; the biases it ends with, and how many experts this rank has."""
    names: dict[str, Any] = {}
    exec(compile(script, PAGE.name, "exec"), names)
    model = names["model"]
    return {
        "biases": [layer.gate.e_score_correction_bias.numpy() for layer in model],
        "pending": sum(int(layer.balancer.histogram.sum()) for layer in model),
        "router": [layer.gate.weight.detach().numpy() for layer in model],
        "experts": model[0].experts.gate_proj.shape[0],
    }


def test_the_script_trains_alone_and_on_two_ranks() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    alone = train(0, 1, script)
    assert alone["experts"] == 10
    one, two = launch(train, 2, script, torchrun=True)
    assert (one["experts"], two["experts"]) == (5, 5)
    for layer, bias in enumerate(one["biases"]):
        np.testing.assert_array_equal(bias, two["biases"][layer])
        np.testing.assert_array_equal(one["router"][layer], two["router"][layer])
        assert bias.any()
        assert (bias != alone["biases"][layer]).any()  # of other tokens
    assert (alone["pending"], one["pending"], two["pending"]) == (0, 0, 0)
