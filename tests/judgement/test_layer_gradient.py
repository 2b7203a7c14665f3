"""Judging gradients of a layer whose routing is hidden: what is found, and what is left free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from impl_torch import routing
from impl_torch.adapter import Float32, StableLatentMoE
from properties.execution import judge
from properties.judgement.layer import on_arrays
from properties.judgement.layer_calls import LayerCall
from properties.judgement.layer_gradient import (
    legal_gradients,
    named_arrays,
    parameter_gradients,
    possibly_chosen,
    selections_of,
    silenced,
)
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import ExpertParameters, LayerConfig, LayerParameters, Precision
from properties.reference import Reference
from properties.registry import find
from properties.strategies import layer_seeded
from reference_numpy import layer_vjp
from tests.mutants import layer_bfloat16, layer_gradient


def pinned(subject, **changes):
    inputs = layer_seeded.generic()
    call = LayerCall.of(subject, replace(inputs.layer, **changes))
    return call, subject.round_to_storage(inputs.cotangent)


def test_reading_x_in_separate_places_gives_the_gradients_of_one_place():
    subject = subject_of(Reference())
    call, cotangent = pinned(subject)
    selections = selections_of(subject, call)
    legal, found = legal_gradients(subject, call, cotangent, selections)
    d_x, expected = layer_vjp(call.x, call.parameters, cotangent, config=call.config)
    np.testing.assert_allclose(legal.single().value, d_x, rtol=1e-12)
    together = parameter_gradients(subject, call, cotangent, selections)
    for (name, exact), (_, apart), (_, one) in zip(
        named_arrays(expected), named_arrays(found), named_arrays(together), strict=True
    ):
        np.testing.assert_allclose(apart.value, exact, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(one.value, exact, rtol=1e-12, err_msg=name)
        assert apart.shape == exact.shape


def test_tokens_with_several_selections_lose_their_cotangent():
    subject = subject_of(Reference())
    call, cotangent = pinned(subject)
    tied = np.zeros_like(call.parameters.gate_weight)
    bias = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    parameters = replace(call.parameters, gate_weight=tied, e_score_correction_bias=bias)
    selections = selections_of(subject, replace(call, parameters=parameters))
    assert not selections.clear.any()
    assert not silenced(cotangent, selections).any()
    assert possibly_chosen(selections, cotangent, 8).all()
    assert not possibly_chosen(selections, np.zeros_like(cotangent), 8).any()


def test_one_minus_s_may_come_from_the_rounded_score(monkeypatch):
    """As torch's own sigmoid does it: at a logit of 12 the difference has lost half its digits."""
    monkeypatch.setattr(routing, "sigmoid", torch.sigmoid)
    subject = subject_of(Float32())
    ones = np.ones((2, 1, 1))
    layer = LayerParameters(
        gate_weight=np.array([[12.0], [0.0]]),
        e_score_correction_bias=np.zeros(2),
        routed_expert_down_proj=np.ones((1, 1)),
        experts=ExpertParameters(ones, ones, np.array([[[1.0]], [[-1.0]]])),
        routed_expert_norm=np.ones(1),
        routed_expert_up_proj=np.ones((1, 1)),
        shared_experts=ExpertParameters(*(np.zeros((1, 1, 1)) for _ in range(3))),
    )
    config = LayerConfig(top_k=2, norm_eps=1.0)
    call = LayerCall(x=np.ones((1, 1)), parameters=layer, config=config, training=False)
    _, expected = legal_gradients(subject, call, np.ones((1, 1)), selections_of(subject, call))
    _, found = subject.layer_vjp(call.x, layer, np.ones((1, 1)), config=config)
    error = np.abs(found.gate_weight - expected.gate_weight.value)
    direct = 1.7989286798e-06
    assert abs(found.gate_weight[0, 0] - direct) > 1e-3 * direct
    assert (error <= expected.gate_weight.radius).all()


# What a correct layer is free to do --------------------------------------------------------------


class SharedSideBySide(layer_gradient.Staged):
    """All shared experts in one block."""

    def shared(self, x_MD, p, config):
        shared = p.shared_experts
        down = shared.down_proj.transpose(0, 1).flatten(1)[None]
        one = type(shared)(
            shared.gate_proj.flatten(0, 1)[None], shared.up_proj.flatten(0, 1)[None], down
        )
        return super().shared(x_MD, replace(p, shared_experts=one), config)


class Float16(StableLatentMoE):
    """float16 in memory: gradients have to fit below 65504."""

    name, precision = "float16", Precision("float32", "float32", "float16")


class RoutedLast(layer_bfloat16.Staged):
    """The shared experts come first, so that the terms of d_x are added in another order."""

    def layer_forward(self, x, p, *, config, training):
        x_MD = x.reshape(-1, x.shape[-1])
        shared = self.shared(x_MD, p, config)
        return (shared + self.routed(x_MD, p, config)).reshape(x.shape)


class NoGradientOfTheBias(Reference):
    """The selection bias has no gradient rather than a gradient of 0."""

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return d_x, replace(gradients, e_score_correction_bias=None)


class NegativeZeros(Reference):
    """Idle experts get -0."""

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        signed = on_arrays(lambda g: np.where(g == 0.0, -0.0, g), gradients)
        return d_x, signed


class OtherConventions(Reference):
    """Experts are chosen by s - b, and that is declared."""

    conventions = replace(Reference.conventions, bias_sign=-1)

    def layer_vjp(self, x, parameters, cotangent, *, config):
        own = replace(parameters, e_score_correction_bias=-parameters.e_score_correction_bias)
        return super().layer_vjp(x, own, cotangent, config=config)


class OtherWeights(Reference):
    """A large epsilon, and the raw score for K = 1, both declared."""

    conventions = replace(Reference.conventions, weight_epsilon=1e-3, top1_renormalised=False)

    def layer_vjp(self, x, parameters, cotangent, *, config):
        own = {"epsilon": 1e-3, "top1_renormalised": False}
        return layer_vjp(x, parameters, cotangent, config=config, **own)


CORRECT = (
    layer_gradient.Staged,
    layer_bfloat16.Staged,
    SharedSideBySide,
    Float16,
    RoutedLast,
    NoGradientOfTheBias,
    NegativeZeros,
    OtherConventions,
    OtherWeights,
)


@pytest.mark.parametrize("property_id", ["LAY-GRAD", "LAY-SPARSE", "LAY-ALIVE"])
@pytest.mark.parametrize("variant", CORRECT, ids=lambda v: f"{v.__module__[-8:]}-{v.__name__}")
def test_correct_gradients_pass(variant, property_id):
    outcome = judge(find(property_id), subject_of(variant()), LANES["quick"])
    assert outcome.verdict == "passed", outcome.message
    assert outcome.unknown == 0
