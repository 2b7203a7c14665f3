"""What the routing properties draw: every class of margin, size and extreme, in the gate lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from properties.execution import judge
from properties.judgement.routing import on_grid, require_margin, scored
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Conventions, Precision
from properties.reference import Reference
from properties.registry import find
from properties.strategies.arrays import LAYOUTS
from properties.strategies.routing import MARGINS, RoutingInputs
from properties.strategies.routing_extremes import SHAPES as EXTREME_SHAPES
from properties.strategies.routing_gradient import LARGE as LARGE_GRADIENTS
from properties.strategies.routing_gradient import GradientInputs
from properties.strategies.routing_groups import SHAPES as GROUPED_SHAPES
from properties.strategies.routing_margins import SHAPES, margin_inputs
from properties.strategies.routing_sizes import EXPERTS, LARGE
from properties.strategies.shapes import SEEDS
from tests.mutants.routing import Router


@cache
def drawn(property_id: str) -> tuple[Any, ...]:
    """The inputs of every case of the gate lane."""
    cases: list[Any] = []
    entry = replace(find(property_id), function=lambda subject, **inputs: cases.append(inputs))
    outcome = judge(entry, subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "passed", outcome.message
    return tuple(case["inputs"] for case in cases)


def routings(property_id: str) -> list[RoutingInputs]:
    return [getattr(inputs, "routing", inputs) for inputs in drawn(property_id)]


def margins_in(property_id: str) -> Counter[str]:
    partings = (inputs.parting for inputs in routings(property_id))
    return Counter(parting.margin for parting in partings if parting is not None)


def test_margins_are_drawn_equally_often() -> None:
    counts = margins_in("RTR-MARGIN")
    assert set(counts) == set(MARGINS)
    assert sum(counts.values()) == len(drawn("RTR-MARGIN"))
    assert min(counts.values()) >= 0.7 * len(drawn("RTR-MARGIN")) / len(MARGINS)


def test_batches_without_tokens_are_routed_but_have_no_cutoff_to_judge() -> None:
    assert any(not len(case.logits) for case in routings("RTR-VALID"))
    assert all(len(case.logits) for case in routings("RTR-CUTOFF"))


@pytest.mark.parametrize("property_id", ["RTR-RELABEL", "RTR-STRIDE", "RTR-GRAD", "RTR-GRAD-FLAT"])
def test_margins_are_drawn_among_other_inputs(property_id: str) -> None:
    counts = margins_in(property_id)
    assert all(counts[margin] >= 1 for margin in MARGINS)
    assert 0.5 * len(drawn(property_id)) < len(drawn(property_id)) - sum(counts.values())


class Coarse(Router):
    """Routes in bfloat16."""

    precision = Precision(storage="bfloat16", routing="bfloat16")


class Single(Router):
    """Routes in float32."""

    precision = Precision()


class OnLogits(Router):
    """Adds the bias to logits."""

    conventions = Conventions(score_domain="logit")


@pytest.mark.parametrize("router", [Router, Single, Coarse, OnLogits])
def test_a_case_has_the_margin_that_it_states(router: Any) -> None:
    subject = subject_of(router())
    for seed in range(0, SEEDS, SEEDS // 300):
        inputs = margin_inputs(seed)
        logits, bias = on_grid(subject, inputs)
        assert inputs.parting is not None
        biased = scored(subject, logits, bias).biased
        with subject.new_case() as case:
            require_margin(subject, biased, inputs.top_k, inputs.parting.margin)
        assert not case.unknown
        kept, left = (biased.value[:, j] for j in (inputs.parting.kept, inputs.parting.left))
        assert (kept >= left).all()
        assert (kept > left).all() == (inputs.parting.margin != "exact")
        assert np.array_equal(bias, bias.astype(subject.routing_dtype).astype(np.float64))


def test_another_margin_than_the_stated_one_is_noticed() -> None:
    subject = subject_of(Router())
    biased = scored(subject, np.zeros((1, 3)), np.array([1.0, 0.5, 0.0])).biased
    for margin, decided in zip(MARGINS, (True, False, False), strict=True):
        with subject.new_case() as case:
            require_margin(subject, biased, 1, margin)
        assert bool(case.unknown) != decided


def sizes(inputs: Iterable[RoutingInputs]) -> set[tuple[int, int]]:
    return {np.shape(one.logits) for one in inputs}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("property_id", "shapes"),
    [
        ("RTR-MARGIN", {shape[:2] for shape in SHAPES}),
        ("RTR-LARGE", {shape[:2] for shape in LARGE if shape[2] == 1} | {(513, 8), (4099, 16)}),
        ("RTR-LARGE", {shape[:2] for shape in LARGE if shape[1] >= 256}),
        ("RTR-GRAD", {shape[:2] for shape in LARGE_GRADIENTS}),
        ("RTR-INFINITE", set(EXTREME_SHAPES)),
        ("RTR-NAN", set(EXTREME_SHAPES)),
        ("RTR-NEGINF", set(EXTREME_SHAPES)),
        ("RTR-GROUPS", {shape[:2] for shape in GROUPED_SHAPES}),
    ],
)
def test_every_size_is_drawn(property_id: str, shapes: set[tuple[int, int]]) -> None:
    assert shapes <= sizes(routings(property_id))


def test_every_number_of_experts_is_relabelled() -> None:
    assert set(EXPERTS) <= {len(inputs.bias) for inputs in routings("RTR-RELABEL")}
    for inputs in drawn("RTR-RELABEL"):
        assert sorted(inputs.order) == list(range(len(inputs.routing.bias)))


@pytest.mark.parametrize("property_id", ["RTR-RELABEL", "RTR-GRAD", "RTR-GROUPS"])
def test_numbers_of_experts_between_powers_of_two_are_drawn(property_id: str) -> None:
    drawn_sizes = {len(inputs.bias) for inputs in routings(property_id)}
    for low, high, least in ((33, 64, 1), (65, 128, 2), (129, 254, 3)):
        between = {n for n in drawn_sizes if low <= n < high}
        assert len(between) >= least, (low, sorted(drawn_sizes))


@pytest.mark.parametrize("property_id", ["RTR-VALID", "RTR-RELABEL", "RTR-GRAD", "RTR-GROUPS"])
def test_four_of_many_experts_are_drawn(property_id: str) -> None:
    assert any(case.top_k == 4 and len(case.bias) >= 64 for case in routings(property_id))


def test_groups_of_many_sizes_some_low_and_some_tied() -> None:
    cases = drawn("RTR-GROUPS")
    groups = {(len(case.routing.bias) // case.num_groups, case.num_groups) for case in cases}
    sizes_of_groups = {size for size, count in groups if count > 1}
    assert {2, 3, 8, 32} <= sizes_of_groups
    assert any(size > 64 for size in sizes_of_groups)
    assert sum(bool((case.routing.bias < -1e9).any()) for case in cases) > 5
    tied = [case for case in cases if case.routing.logits.size and not case.routing.bias.any()]
    assert sum(np.unique(case.routing.logits).size < 5 for case in tied) > 5


@pytest.mark.parametrize("top_k", [1, 2, 4, 6, 9, 10, 12, 16, 22, 24])
def test_every_usual_top_k_is_drawn(top_k: int) -> None:
    assert any(inputs.top_k == top_k for inputs in routings("RTR-RELABEL"))


@pytest.mark.parametrize("extreme", [-110.0, -1e8, 30.0, 1e4, np.inf, -np.inf])
def test_rows_at_one_extreme_are_drawn(extreme: float) -> None:
    rows = [row for inputs in routings("RTR-INFINITE") for row in inputs.logits]
    assert any((row == extreme).all() for row in rows)
    assert any((row == extreme).any() and (row != extreme).any() for row in rows)


def test_poisoned_rows_stand_beside_healthy_ones_and_alone() -> None:
    healthy = Counter(
        int(np.sign(np.count_nonzero(~inputs.nan.any(axis=1)))) for inputs in drawn("RTR-NAN")
    )
    assert healthy[1] > 50
    assert healthy[0] > 3
    assert all(inputs.nan.any() for inputs in drawn("RTR-NAN"))
    assert any(0 < inputs.nan.sum() < inputs.nan[0].size for inputs in drawn("RTR-NAN"))


def test_walls_leave_enough_experts_and_hide_good_ones() -> None:
    tempting = 0
    for inputs in routings("RTR-NEGINF"):
        finite = np.isfinite(inputs.bias)
        assert inputs.top_k <= np.count_nonzero(finite) < len(finite)
        tempting += bool(inputs.logits[:, ~finite].max() > inputs.logits[:, finite].max())
    assert tempting > 20


@pytest.mark.parametrize("property_id", ["RTR-GRAD", "RTR-MARGIN", "RTR-GROUPS", "RTR-SMALLGAP"])
def test_every_layout_is_drawn(property_id: str) -> None:
    assert {inputs.layout for inputs in routings(property_id)} == set(LAYOUTS)


def test_cotangents_of_every_kind() -> None:
    cotangents = [inputs.cotangent for inputs in drawn("RTR-GRAD")]
    assert all(isinstance(inputs, GradientInputs) for inputs in drawn("RTR-GRAD"))
    assert any((c == 0.0).sum() == c.size - len(c) and c.shape[1] > 1 for c in cotangents)
    assert any((c == 0.0).all(axis=1).any() and (c != 0.0).any() for c in cotangents)
    largest = [np.abs(c).max(initial=0.0) for c in cotangents]
    assert max(largest) > 1e7
    assert any(0.0 < size < 1e-7 for size in largest)
    assert not all(c.size for c in cotangents)
    assert any(not c.flags.c_contiguous for c in cotangents)


def test_bfloat16_cannot_tell_small_gaps_apart() -> None:
    coarse = [
        len(set(inputs.bias.astype(ml_dtypes.bfloat16).tolist()))
        for inputs in routings("RTR-SMALLGAP")
    ]
    assert max(coarse) == 1
    assert all(np.ptp(inputs.bias) < 2e-3 for inputs in routings("RTR-SMALLGAP"))
