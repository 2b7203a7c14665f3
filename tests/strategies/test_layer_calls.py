"""What the layer is called with at size, far off and in turn: every class, in the gate lane."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from properties.execution import judge
from properties.judgement.layer_calls import LayerCall
from properties.judgement.layer_repeats import Judged, laid_out_in
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find
from properties.strategies.arrays import LAYOUTS
from properties.strategies.layer_calls import FAR, LONG, LONG_SUMS, MANY, SIZES, SMALL


@cache
def drawn(property_id: str) -> tuple[Any, ...]:
    """The inputs of every case of the gate lane."""
    cases: list[Any] = []
    entry = replace(find(property_id), function=lambda subject, **inputs: cases.append(inputs))
    outcome = judge(entry, subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "passed", outcome.message
    return tuple(next(iter(case.values())) for case in cases)


def shapes(inputs: Any) -> tuple[int, ...]:
    """M, N, D, H and L."""
    parameters = inputs.layer.parameters
    experts, model = parameters.gate_weight.shape
    tokens = inputs.layer.x.size // model
    return tokens, experts, model, *parameters.experts.gate_proj.shape[1:]


def sizes_of(table: Any) -> set[tuple[int, ...]]:
    """M, N, D, H and L of each row."""
    widths = ((row.tokens, row.layer) for row in table)
    return {(m, size.experts, size.model, size.hidden, size.latent) for m, size in widths}


def test_every_size_is_drawn_in_every_case() -> None:
    for case in drawn("LAY-SIZES"):
        assert {shapes(inputs) for inputs in case.layers(2.0**-24)} == sizes_of(SIZES)


def test_every_small_size_is_drawn() -> None:
    assert {shapes(inputs) for inputs in drawn("LAY-FAR")} == sizes_of(SMALL)


def test_tokens_are_far_off_on_both_sides() -> None:
    largest = [np.abs(inputs.layer.x).max() for inputs in drawn("LAY-FAR")]
    assert min(largest) < 1e-6
    assert max(largest) > 1e5
    assert {-8, 6} <= set(FAR)


def test_every_sum_of_the_backward_pass_is_long_once() -> None:
    found = set()
    for case in drawn("LAY-GRAD-MIXED"):
        inputs = case.sized(2.0**-24)
        tokens, _, model, hidden, latent = shapes(inputs)
        shared = inputs.layer.parameters.shared_experts.gate_proj.shape[1]
        sums = {"model": model, "latent": latent, "hidden": hidden, "shared_hidden": shared}
        found |= {name for name, terms in sums.items() if terms == LONG}
        found |= {"tokens"} if tokens == MANY else set()
        assert max(shapes(case.sized(2.0**-8))) <= 32
    assert found == set(LONG_SUMS)


def test_layers_in_turn_have_one_size_and_other_numbers() -> None:
    for first, second, _ in drawn("LAY-CALLS"):
        assert shapes(first) == shapes(second)
        assert first.layer.x.tobytes() != second.layer.x.tobytes()
    configs = [(first.layer.config, second.layer.config) for first, second, _ in drawn("LAY-CALLS")]
    assert any(first.beta_gate != second.beta_gate for first, second in configs)
    assert any(first.norm_eps != second.norm_eps for first, second in configs)
    assert any(first.routed_scale != second.routed_scale for first, second in configs)


def test_every_array_has_every_layout_and_keeps_its_values() -> None:
    subject = subject_of(Reference())
    inputs = drawn("LAY-LAYOUT")[-1]
    judged = Judged.of(subject, inputs)
    strides = set()
    for way in range(len(LAYOUTS)):
        call: LayerCall = laid_out_in(judged, way).call
        up_DL = call.parameters.routed_expert_up_proj
        np.testing.assert_array_equal(up_DL, judged.call.parameters.routed_expert_up_proj)
        np.testing.assert_array_equal(call.x, judged.call.x)
        strides.add((up_DL.strides, up_DL.flags.c_contiguous))
    assert len(strides) >= len(LAYOUTS) - 1
