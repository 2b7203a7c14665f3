"""Judging calls of the experts: layouts, results that stay, both ways to the weights' gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from properties.errors import ViolationError
from properties.execution import judge
from properties.judgement.experts import ExpertCall, near, parts
from properties.judgement.experts_calls import WAYS, laid_out_in
from properties.judgement.memory import Kept
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Conventions
from properties.reference import Reference
from properties.registry import find
from properties.rounding import Arithmetic, Ball
from properties.strategies.experts import ExpertInputs, Sizes, drawn_parameters
from properties.strategies.experts_seeded import ANY_SIZES
from properties.strategies.experts_sized import LONG_SIZES

FLOAT32 = Arithmetic()


def drawn_call(seed=0, tokens=6, experts=5, top_k=3):
    rng = np.random.default_rng(seed)
    sizes = Sizes(tokens, experts, top_k, 4, 3)
    inputs = ExpertInputs(
        x=rng.standard_normal((tokens, 4)),
        expert_ids=np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k],
        weights=rng.random((tokens, top_k)),
        parameters=drawn_parameters(rng, sizes, thin=False),
        beta_gate=4.0,
        beta_up=25.0,
        cotangent=rng.standard_normal((tokens, 4)),
    )
    return ExpertCall.of(subject_of(Reference()), inputs)


def test_every_argument_meets_every_layout_and_keeps_its_values():
    call = drawn_call()
    turned = [laid_out_in(call, way) for way in range(WAYS)]
    for name in ("x", "expert_ids", "weights", "cotangent"):
        arrays = [getattr(one, name) for one in turned]
        assert all(np.array_equal(array, getattr(call, name)) for array in arrays)
        assert len({array.strides for array in arrays}) == WAYS
    for one in turned:
        for part, same in zip(parts(one.parameters), parts(call.parameters), strict=True):
            assert np.array_equal(part, same)
    for name in ("gate_proj", "up_proj", "down_proj"):
        assert len({getattr(one.parameters, name).strides for one in turned}) == WAYS


def test_both_ways_to_the_gradient_of_the_weights_lie_in_its_ball():
    call = drawn_call()
    expected = call.expected_gradients().weights
    other = call._weights_gradient_before_down()
    np.testing.assert_allclose(other.value, expected.value, rtol=1e-12, atol=1e-14)
    reach = np.abs(other.value - expected.value) + other.radius
    assert np.all(reach <= expected.radius)
    assert np.all(expected.radius < 1e-12)


def test_gradients_of_a_part_are_those_of_its_rows():
    call = drawn_call()
    rows = np.array([4, 1])
    whole, part = call.gradients(), call.rows(rows).gradients()
    np.testing.assert_allclose(part.x, whole.x[rows], rtol=1e-13)
    np.testing.assert_allclose(part.weights, whole.weights[rows], rtol=1e-13)


def test_relabelled_experts_take_their_parameters_along():
    call = drawn_call()
    name = np.array([3, 0, 4, 1, 2])
    renamed = call.relabelled(name)
    for old, new in zip(parts(call.parameters), parts(renamed.parameters), strict=True):
        assert np.array_equal(new[name], old)
    np.testing.assert_allclose(renamed.result(), call.result(), rtol=1e-13)


def test_idle_experts_are_those_without_tokens():
    call = drawn_call()
    call = replace(call, expert_ids=np.broadcast_to(np.array([4, 0, 2]), (6, 3)))
    assert call.idle.tolist() == [1, 3]
    assert call.rows(np.arange(0)).idle.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_first_result_that_is_no_number_is_a_violation(bad):
    ball = Ball(np.ones(2), np.full(2, 0.25), FLOAT32)
    assert near(np.array([1.0, 0.9]), ball, ball).radius == pytest.approx([0.5, 0.5])
    with pytest.raises(ViolationError, match="not finite"):
        near(np.array([1.0, bad]), ball, ball)
    unknown = Ball(np.ones(2), np.array([0.25, np.inf]), FLOAT32)
    assert near(np.array([1.0, bad]), unknown).radius[1] == np.inf


def test_a_result_that_a_later_call_changes_is_noticed():
    call = drawn_call()
    call.result()
    kept = Kept.of_last_call(call.subject, "the result")
    kept.require_unchanged()
    kept.arrays[0][0, 0] += 1.0
    with pytest.raises(ViolationError, match="a later call changed the result"):
        kept.require_unchanged()


def test_gradients_are_kept_as_five_arrays():
    call = drawn_call()
    call.gradients()
    assert len(Kept.of_last_call(call.subject, "gradients").arrays) == 5


def test_repetition_is_not_offered_where_it_is_not_declared():
    class Undetermined(Reference):
        conventions = Conventions(deterministic=False)

    outcome = judge(find("DSP-REPEAT"), subject_of(Undetermined()), LANES["quick"])
    assert outcome.verdict == "not offered"
    assert outcome.message == "declares deterministic=False"


def test_sizes_lie_on_both_sides_of_tiles_and_chunks():
    tokens, slots = ({size[i] for size in LONG_SIZES} for i in (0, 2))
    for edge in (64, 128, 256):
        assert {edge - 1, edge, edge + 1} <= tokens
    assert max(slots) > 8
    assert max(max(size[3:]) for size in LONG_SIZES) > 128
    assert any(size.latent != size.hidden for size in LONG_SIZES)
    assert {1, 2, 257} <= {size.experts for size in ANY_SIZES}
    assert any(size.top_k == 16 for size in ANY_SIZES)
    assert any(size.latent == size.hidden == 4 for size in ANY_SIZES)
