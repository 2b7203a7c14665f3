"""Formats narrower than bfloat16 are judged like others: nothing fails, next to nothing is unknown.

Inputs are drawn in the range that a format holds, since nothing is owed where numbers overflow.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from properties.boundary import round_to
from properties.execution import judge, select
from properties.judgement.experts import ExpertCall
from properties.lanes import Lane
from properties.loading import subject_of
from properties.strategies.experts import ExpertInputs, Sizes, drawn_parameters
from tests.narrow.adapters import E4M3, E5M2, AllFloat16, ComputeFloat16, Float16

ADAPTERS = (Float16, ComputeFloat16, AllFloat16, E4M3, E5M2)

# Routing and balancing are in float32 here, and differ only in how logits are stored.
ROUTERS = (E4M3, E5M2)

# A few of the gate lane's cases: all formats and all properties in 25 seconds.
GLANCE = Lane("glance", 0.025, random=False)

# Where a format is too coarse for the statement, as its specification says.
TOO_COARSE = {("LAY-ALIVE", E4M3), ("LAY-ALIVE", E5M2), ("QB-ONESTEP", E5M2)}


def looked_at():
    for adapter in ADAPTERS:
        topics = ["activation", "experts", "norm", "layer"]
        for topic in [*topics, *(["routing", "balancing"] if adapter in ROUTERS else [])]:
            yield pytest.param(adapter, topic, id=f"{adapter.__name__}-{topic}")


@pytest.mark.parametrize(("adapter", "topic"), list(looked_at()))
def test_every_property_is_decided(adapter, topic):
    subject = subject_of(adapter())
    wrong = []
    for entry in select(topics=[topic]):
        if "ranks" in entry.needs:
            continue
        outcome = judge(entry, subject, GLANCE)
        expected = "not offered" if (entry.id, adapter) in TOO_COARSE else "passed"
        if outcome.verdict != expected:
            wrong.append(f"{entry.id}: {outcome.verdict} {outcome.message}")
    assert not wrong, "\n".join(wrong)


def test_without_infinities_the_largest_number_stands_in_for_overflow():
    values = np.array([500.0, -np.inf, np.nan, 3.0])
    held = round_to(values, np.dtype(ml_dtypes.float8_e4m3fn))
    np.testing.assert_array_equal(held, [448.0, -448.0, np.nan, 3.0])
    assert round_to(values, np.dtype(ml_dtypes.float8_e5m2))[1] == -np.inf


@pytest.mark.parametrize("adapter", [Float16, E4M3, E5M2])
def test_outputs_and_gradients_of_large_experts_fit(adapter):
    rng = np.random.default_rng(0)
    shape = (33, 16)
    inputs = ExpertInputs(
        x=1e4 * rng.standard_normal(shape),
        expert_ids=np.argsort(rng.random((33, 5)), axis=1)[:, :4],
        weights=2.5 * rng.random((33, 4)),
        parameters=drawn_parameters(rng, Sizes(33, 5, 4, 16, 24), thin=False),
        beta_gate=4.0,
        beta_up=25.0,
        cotangent=1e4 * rng.standard_normal(shape),
    )
    call = ExpertCall.of(subject_of(adapter()), inputs)
    assert np.isfinite(call.expected().radius).all()
    for gradient in call.expected_gradients():
        assert np.isfinite(gradient.radius).all()
    assert call.cotangent.any()
    assert all(part.any() for part in vars(call.parameters).values())
