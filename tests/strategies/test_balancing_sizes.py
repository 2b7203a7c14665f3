"""What is drawn at the sizes where kernels that balance change.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find
from properties.strategies.balancing_sizes import (
    LONG,
    POWERS,
    SCANNED,
    WIDTHS,
    SizedBatch,
    SizedBatches,
)


def drawn() -> tuple[SizedBatches, ...]:
    """The inputs of every case of the gate lane."""
    cases: list[Any] = []
    entry = replace(find("QB-SIZES"), function=lambda subject, inputs: cases.append(inputs))
    assert judge(entry, subject_of(Reference()), LANES["gate"]).verdict == "passed"
    return tuple(cases)


def sizes(batch: SizedBatch) -> tuple[int, int, int, int]:
    return (*batch.logits.shape, batch.top_k, batch.num_bins)


def test_every_case_has_every_long_size_and_every_part_of_the_widths() -> None:
    assert drawn()
    for case in drawn():
        found = [sizes(batch) for batch in case.batches]
        assert set(LONG) <= set(found)
        for widths in WIDTHS:
            assert any(n in widths for m, n, *_ in found if m < 100)
        assert sum(k == 4 for _, _, k, _ in found if k != 22) >= 3


def test_every_case_has_every_power_of_two_and_every_stretch_of_bins() -> None:
    for case in drawn():
        widths = {len(batch.bias) for batch in case.batches}
        bins = {batch.num_bins for batch in case.batches if len(batch.bias) < 32}
        assert set(POWERS) <= widths
        for fewest, most in SCANNED:
            assert bins & set(range(fewest, most + 1))


def test_there_is_a_cutoff_everywhere_and_masks_and_low_biases_are_drawn() -> None:
    batches = [batch for case in drawn() for batch in case.batches]
    assert all(batch.top_k < len(batch.bias) for batch in batches)
    assert any(batch.bias.max() < -1.0 for batch in batches)
    masks = [batch.mask for batch in batches if batch.mask is not None]
    assert any(mask.any() and not mask.all() for mask in masks)


def test_some_tokens_want_experts_that_stand_side_by_side() -> None:
    batches = [batch for case in drawn() for batch in case.batches]
    best = [np.argsort(-b.logits.mean(axis=0))[: b.top_k] for b in batches if b.top_k > 2]
    assert any(np.ptp(ids) == len(ids) - 1 for ids in best)
    assert any(len(set(ids % 32)) == 1 for ids in best)


def test_cases_are_told_by_their_sizes() -> None:
    case = SizedBatches((SizedBatch(np.zeros((2, 3)), np.zeros(3), 1, 4),))
    printed: list[str] = []

    class Printer:
        text = staticmethod(printed.append)

    case._repr_pretty_(Printer(), cycle=False)
    assert printed == ["SizedBatches([(2, 3)])"]
