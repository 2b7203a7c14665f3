"""What the balancing properties draw: every size, mask and tie, and every way to miss a rank.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from properties.execution import judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find
from properties.strategies.balancing import SIZES, BatchInputs
from properties.strategies.rank_mistakes import (
    END,
    MISTAKES,
    load_step,
    loads_that_show,
    total,
    wrong_ranks,
)
from properties.strategies.ranks import PUBLISHED, RATIOS

OF_BATCHES = ("QB-VALUE", "QB-CENTRE", "QB-SHIFT", "QB-COUNT", "QB-HIST-ERROR")


@cache
def drawn(property_id: str) -> tuple[Any, ...]:
    """The inputs of every case of the gate lane."""
    cases: list[Any] = []
    entry = replace(find(property_id), function=lambda subject, **inputs: cases.append(inputs))
    outcome = judge(entry, subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "passed", outcome.message
    return tuple(case["inputs"] for case in cases)


def batches(property_id: str) -> list[BatchInputs]:
    return [getattr(inputs, "batch", inputs) for inputs in drawn(property_id)]


@pytest.mark.parametrize("property_id", OF_BATCHES)
def test_readable_batches_are_a_class_and_not_most_of_them(property_id: str) -> None:
    found = batches(property_id)
    readable = sum(b.logits.shape[0] <= 5 and b.logits.shape[1] <= 4 for b in found)
    assert 0.02 * len(found) <= readable <= 0.45 * len(found)


@pytest.mark.parametrize("property_id", OF_BATCHES)
def test_hardly_any_batch_is_drawn_twice(property_id: str) -> None:
    found = batches(property_id)
    assert len({repr(vars(batch)) for batch in found}) >= 0.9 * len(found)


def test_every_size_is_drawn_for_exact_updates_and_for_histograms() -> None:
    for property_id in ("QB-VALUE", "QB-HIST-ERROR"):
        experts = Counter(batch.logits.shape[1] for batch in batches(property_id))
        assert {n for n, _ in SIZES if n > 512} <= set(experts)
        assert len({n for n, _ in SIZES} - set(experts)) <= 2


def test_masks_and_batches_without_tokens_are_drawn() -> None:
    found = batches("QB-VALUE")
    assert any(not batch.logits.shape[0] for batch in found)
    assert any(batch.mask is not None and not batch.mask.any() for batch in found)
    assert sum(batch.mask is None for batch in found) > len(found) // 4
    assert any(batch.logits.shape[1] == batch.top_k for batch in found)


# Ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top_k", "num_experts"), PUBLISHED)
def test_a_load_that_shows_a_mistake_shows_it(top_k: int, num_experts: int) -> None:
    for seed in range(5):
        shown = loads_that_show(np.random.default_rng(seed), top_k, num_experts)
        for name, load in shown.items():
            assert 0 < load < END
            assert load % load_step(top_k, num_experts) == 0
            assert wrong_ranks(name, np.array([load]), top_k, num_experts)[0] != load


def test_every_mistake_shows_at_some_ratio() -> None:
    rng = np.random.default_rng(0)
    shown = {name for ratio in RATIOS for name in loads_that_show(rng, *ratio)}
    assert shown == set(MISTAKES)


def test_published_sizes_draw_every_mistake_that_occurs_in_every_case() -> None:
    for case in drawn("QB-RANK-SIZES"):
        ratios = [(one.experts.top_k, one.experts.num_experts) for one in case]
        assert ratios == list(PUBLISHED)
        for one, ratio in zip(case, ratios, strict=True):
            loads = np.array(one.experts.loads)
            for name in loads_that_show(np.random.default_rng(1), *ratio):
                assert (wrong_ranks(name, loads, *ratio) != loads).any(), (name, ratio)
            assert loads.max() > END
            assert (loads % 2 == 1).any() or load_step(*ratio) % 2 == 0


def test_counts_hold_every_token_and_fit_32_bits() -> None:
    for inputs in drawn("QB-RANK"):
        for load in inputs.experts.loads:
            counts = inputs.counts(load, 20)
            tokens = total(np.array(load), inputs.experts.top_k, inputs.experts.num_experts)
            assert (counts.sum(axis=1) == tokens).all()
            assert (counts >= 0).all()
            assert tokens < 2**31


def test_every_ratio_is_drawn() -> None:
    found = Counter((x.experts.top_k, x.experts.num_experts) for x in drawn("QB-RANK"))
    assert len(found) >= 0.75 * len(RATIOS)
