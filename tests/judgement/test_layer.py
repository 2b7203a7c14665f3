"""Judging a layer whose routing is hidden: every legal selection counts, and no other one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

import impl_torch
from properties.execution import judge
from properties.judgement.layer import (
    MOST_LISTED,
    LegalLayer,
    legal_selections,
    with_shared_experts,
)
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find
from properties.rounding import Arithmetic, Ball
from reference_numpy import ExpertParameters, LayerParameters, combine_weights, scores
from reference_numpy.routing import top_k_ids
from tests.mutants import layer, layer_bfloat16

FLOAT32 = Arithmetic()


def sets_of(found, token):
    rows = found.expert_ids[found.token == token]
    return [frozenset(row.tolist()) for row in rows]


@pytest.mark.parametrize("seed", range(30))
def test_selections_are_those_that_numbers_in_the_balls_bring_about(seed):
    rng = np.random.default_rng(seed)
    experts = int(rng.integers(2, 7))
    top_k = int(rng.integers(1, experts + 1))
    value = rng.integers(0, 6, (1, experts)) / 4
    radius = rng.choice([0.0, 0.125, 0.3], (1, experts))
    found = legal_selections(Ball(value, radius, FLOAT32), top_k)
    listed = sets_of(found, 0)
    assert len(set(listed)) == len(listed)
    assert found.complete.all()

    # Any numbers inside the balls choose a listed set …
    drawn = value + radius * rng.uniform(-1, 1, (200, experts))
    chosen = {frozenset(row.tolist()) for row in top_k_ids(drawn, top_k)}
    assert chosen <= set(listed)
    # … and each listed set, and no other, is a top k once its members are as large as can be.
    for members in combinations(range(experts), top_k):
        inside = np.isin(np.arange(experts), members)
        best = np.where(inside, value + radius, value - radius)[0]
        is_top = np.array_equal(np.sort(best)[experts - top_k :], np.sort(best[inside]))
        assert is_top == (frozenset(members) in listed)


def test_a_clear_token_has_one_selection_and_a_tied_one_all_of_them():
    biased = Ball(np.array([[0.1, 0.9, 0.5], [0.5, 0.5, 0.5]]), 0.0, FLOAT32)
    found = legal_selections(biased, 2)
    assert found.clear.tolist() == [True, False]
    assert sets_of(found, 0) == [{1, 2}]
    assert set(sets_of(found, 1)) == {frozenset(pair) for pair in ((0, 1), (0, 2), (1, 2))}


def test_too_many_selections_leave_a_token_undecided_unless_one_fits():
    found = legal_selections(Ball(np.zeros((1, 12)), 0.0, FLOAT32), 6)
    assert not found.complete[0]
    assert found.count[0] == MOST_LISTED
    outputs = Ball(np.arange(MOST_LISTED, dtype=float)[:, None], 0.25, FLOAT32)
    legal = LegalLayer(found, outputs, (1, 1))
    assert legal.nearest(np.array([[7.2]])).radius == 0.25
    assert legal.nearest(np.array([[7.2]])).value == 7.0
    assert legal.nearest(np.array([[7.5]])).radius == np.inf


def test_shared_experts_are_dealt_without_losing_a_unit():
    rng = np.random.default_rng(0)
    shared = ExpertParameters(*(rng.standard_normal(s) for s in ((3, 4, 5), (3, 4, 5), (3, 5, 4))))
    parameters = LayerParameters(*([np.zeros((1, 1))] * 6), shared_experts=shared)
    for count in (1, 2, 6):
        dealt = with_shared_experts(parameters, count).shared_experts
        assert dealt.gate_proj.shape == (count, 12 // count, 5)
        before = np.einsum("ehd,eoh->hedo", shared.gate_proj, shared.down_proj).sum((0, 1))
        after = np.einsum("ehd,eoh->hedo", dealt.gate_proj, dealt.down_proj).sum((0, 1))
        np.testing.assert_allclose(after, before)


# What a correct layer is free to do --------------------------------------------------------------


class TiesToTheLast(layer.Staged):
    """Ties fall to the highest id."""

    def terms(self, x_MD, p, config):
        s_MN = scores(self.logits(x_MD, p))
        last = s_MN.shape[1] - 1
        biased_MN = self.biased(s_MN, p.e_score_correction_bias)
        ids_MK = last - top_k_ids(biased_MN[:, ::-1], config.top_k)
        weights_MK = self.weights(s_MN, p.e_score_correction_bias, ids_MK)
        return self.scale(config) * weights_MK[:, :, None] * self.outputs(x_MD, p, config, ids_MK)


class BiasOfTheOtherSign(layer.BiasSubtracted):
    """Experts are chosen by s - b, and that is declared."""

    conventions = replace(layer.Staged.conventions, bias_sign=-1)


class BiasOnLogits(layer.Staged):
    """The bias is added to logits, and that is declared."""

    conventions = replace(layer.Staged.conventions, score_domain="logit")

    def biased(self, s_MN, bias_N):
        return np.log(s_MN / (1.0 - s_MN)) + bias_N


class OtherWeights(layer.Staged):
    """A large epsilon, and the raw score for K = 1, both declared."""

    conventions = replace(layer.Staged.conventions, weight_epsilon=1e-3, top1_renormalised=False)

    def weights(self, s_MN, bias_N, ids_MK):
        several = ids_MK.shape[1] > 1
        return combine_weights(s_MN, ids_MK, epsilon=1e-3, renormalise=several)


class WeightsKeptInStorage(layer_bfloat16.Staged):
    """Combine weights are rounded to bfloat16 before and after they are scaled."""

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        scaled_MK = (weights_MK.bfloat16() * config.routed_scale).bfloat16()
        return ids_MK, scaled_MK.float() / config.routed_scale


class ScaleOnTheSum(layer_bfloat16.Staged):
    """routed_scale multiplies the stored sum."""

    def combined(self, x_MD, p, config):
        unscaled = replace(config, routed_scale=1.0)
        return super().combined(x_MD, p, unscaled) * config.routed_scale


class WeightsOnHiddenUnits(layer_bfloat16.Staged):
    """Weights multiply the activation instead of the output, and slots are added in float32."""

    def weighted(self, x_MD, ids_MK, weights_MK, p, config):
        latent_ML = x_MD @ p.routed_expert_down_proj.T
        experts = p.experts
        betas = {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        rows = []
        for i, z_L in enumerate(latent_ML):
            gate_KH = experts.gate_proj[ids_MK[i]] @ z_L
            hidden_KH = impl_torch.situ_glu(gate_KH, experts.up_proj[ids_MK[i]] @ z_L, **betas)
            weighted_KH = (hidden_KH * weights_MK[i, :, None] * config.routed_scale).bfloat16()
            slots = experts.down_proj[ids_MK[i]] @ weighted_KH[:, :, None]
            rows.append(slots.float().sum(0)[:, 0].bfloat16())
        return torch.stack(rows)


CORRECT = (
    layer.Staged,
    layer_bfloat16.Staged,
    TiesToTheLast,
    BiasOfTheOtherSign,
    BiasOnLogits,
    OtherWeights,
    WeightsKeptInStorage,
    ScaleOnTheSum,
    WeightsOnHiddenUnits,
)


@pytest.mark.parametrize("property_id", ["LAY-VALUE", "LAY-TINY"])
@pytest.mark.parametrize("variant", CORRECT, ids=lambda v: f"{v.__module__[-8:]}-{v.__name__}")
def test_a_correct_layer_passes(variant, property_id):
    outcome = judge(find(property_id), subject_of(variant()), LANES["quick"])
    assert outcome.verdict == "passed", outcome.message
    assert outcome.unknown == 0


def test_a_token_of_which_an_end_is_nan_is_undecided():
    value, radius = np.array([[np.nan, 1.0, 2.0], [3.0, 1.0, 2.0]]), np.zeros((2, 3))
    radius[1, 0] = np.inf
    found = legal_selections(Ball(value, radius, FLOAT32), 1)
    assert found.complete.tolist() == [False, True]
    assert found.count.tolist() == [1, 2]
