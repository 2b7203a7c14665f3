"""The weighted sum of experts against loops over scalars, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reference_numpy.activation import situ_glu
from reference_numpy.experts import ExpertParameters, expert, expert_vjp, experts, experts_vjp

Floats = NDArray[np.float64]


def draw_parameters(
    rng: np.random.Generator, num_experts: int, width: int, hidden: int
) -> ExpertParameters:
    return ExpertParameters(
        gate_proj=rng.normal(size=(num_experts, hidden, width)),
        up_proj=rng.normal(size=(num_experts, hidden, width)),
        down_proj=rng.normal(size=(num_experts, width, hidden)),
    )


def draw_ids(rng: np.random.Generator, tokens: int, num_experts: int, top_k: int) -> NDArray[Any]:
    return np.argsort(rng.normal(size=(tokens, num_experts)), axis=1)[:, :top_k]


def one_token(z_L: Floats, parameters: ExpertParameters, j: int) -> Floats:
    """E_j of one token, Eq. 12, with every product written out."""
    gate_HL, up_HL, down_LH = (
        getattr(parameters, name)[j] for name in ("gate_proj", "up_proj", "down_proj")
    )
    width, hidden = down_LH.shape
    activations = []
    for h in range(hidden):
        gate = sum(gate_HL[h, i] * z_L[i] for i in range(width))
        up = sum(up_HL[h, i] * z_L[i] for i in range(width))
        activations.append(situ_glu(np.array(gate), np.array(up)))
    return np.array(
        [sum(down_LH[i, h] * activations[h] for h in range(hidden)) for i in range(width)]
    )


def test_one_hidden_unit_by_hand() -> None:
    # g = 2, v = 50 give A = 39.238953585135660 (50 digits), which W_d = (2, -1) spreads.
    out = expert(
        np.array([[1.0, 10.0]]),
        np.array([[2.0, 0.0]]),
        np.array([[0.0, 5.0]]),
        np.array([[2.0], [-1.0]]),
    )
    np.testing.assert_allclose(out, [[78.47790717027132, -39.23895358513566]], rtol=1e-14)


@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (5, 2), (3, 3)])
def test_the_sum_runs_over_the_chosen_experts(num_experts: int, top_k: int) -> None:
    rng = np.random.default_rng(10)
    parameters = draw_parameters(rng, num_experts, 3, 4)
    x_ML, ids_MK = rng.normal(size=(6, 3)), draw_ids(rng, 6, num_experts, top_k)
    weights_MK = rng.uniform(size=(6, top_k))
    got = experts(x_ML, ids_MK, weights_MK, parameters)
    for i in range(6):
        terms = [
            weights_MK[i, a] * one_token(x_ML[i], parameters, ids_MK[i, a]) for a in range(top_k)
        ]
        np.testing.assert_allclose(got[i], sum(terms), rtol=1e-12, atol=1e-12)


def test_identical_experts_equal_one_of_them() -> None:
    rng = np.random.default_rng(11)
    one = draw_parameters(rng, 1, 3, 4)
    same = ExpertParameters(*(np.repeat(getattr(one, f.name), 4, axis=0) for f in fields(one)))
    x_ML, weights_MK = rng.normal(size=(5, 3)), np.full((5, 2), 0.5)
    got = experts(x_ML, draw_ids(rng, 5, 4, 2), weights_MK, same)
    alone = expert(x_ML, one.gate_proj[0], one.up_proj[0], one.down_proj[0])
    np.testing.assert_allclose(got, alone, rtol=1e-14)


def test_betas_reach_the_activation() -> None:
    rng = np.random.default_rng(12)
    parameters = draw_parameters(rng, 2, 3, 4)
    x_ML, ids_MK, weights_MK = 100 * rng.normal(size=(4, 3)), np.zeros((4, 1), int), np.ones((4, 1))
    small = experts(x_ML, ids_MK, weights_MK, parameters, beta_gate=1.0, beta_up=0.5)
    # Eq. 19: every hidden unit is at most beta_gate beta_up.
    assert (np.abs(small) <= 0.5 * np.abs(parameters.down_proj[0]).sum(axis=1) + 1e-12).all()
    assert np.abs(small).max() > 0.1


@pytest.mark.parametrize(("tokens", "num_experts", "top_k"), [(0, 3, 2), (1, 1, 1), (0, 1, 1)])
def test_empty_batches_and_single_experts(tokens: int, num_experts: int, top_k: int) -> None:
    rng = np.random.default_rng(13)
    parameters = draw_parameters(rng, num_experts, 3, 4)
    x_ML, ids_MK = np.ones((tokens, 3)), np.zeros((tokens, top_k), dtype=int)
    weights_MK = np.ones((tokens, top_k))
    assert experts(x_ML, ids_MK, weights_MK, parameters).shape == (tokens, 3)
    d_x, d_weights, d_parameters = experts_vjp(x_ML, ids_MK, weights_MK, parameters, x_ML)
    assert d_x.shape == (tokens, 3)
    assert d_weights.shape == (tokens, top_k)
    assert (d_parameters.gate_proj == 0).all() == (tokens == 0)


@pytest.mark.parametrize("repeated", [False, True])
def test_gradients_against_differences(check_gradient: Callable[..., None], repeated: bool) -> None:
    rng = np.random.default_rng(14)
    parameters = draw_parameters(rng, 4, 3, 2)
    x_ML, cotangent_ML = rng.normal(size=(2, 5, 3))
    ids_MK, weights_MK = draw_ids(rng, 5, 3, 2), rng.normal(size=(5, 2))
    if repeated:  # no routing names an expert twice, but the sum is defined and so is its gradient
        ids_MK[1] = 2
    betas = {"beta_gate": 2.0, "beta_up": 3.0}
    d_x, d_weights, d_parameters = experts_vjp(
        x_ML, ids_MK, weights_MK, parameters, cotangent_ML, **betas
    )

    def value() -> float:
        return float(np.sum(cotangent_ML * experts(x_ML, ids_MK, weights_MK, parameters, **betas)))

    check_gradient(value, x_ML, d_x)
    check_gradient(value, weights_MK, d_weights)
    for field in fields(ExpertParameters):
        gradient = getattr(d_parameters, field.name)
        check_gradient(value, getattr(parameters, field.name), gradient)
        assert (gradient[3] == 0).all()  # expert 3 is never named: exactly zero
        assert (gradient[ids_MK] != 0).all()


def test_a_stack_of_experts_has_a_gradient_each() -> None:
    rng = np.random.default_rng(15)
    parameters = draw_parameters(rng, 3, 2, 4)
    x_ML, cotangent_ML = rng.normal(size=(2, 5, 2))
    names = ("gate_proj", "up_proj", "down_proj")
    stacked = expert_vjp(x_ML, *(getattr(parameters, n) for n in names), cotangent_ML)
    for j in range(3):
        alone = expert_vjp(x_ML, *(getattr(parameters, n)[j] for n in names), cotangent_ML)
        for ours, theirs in zip(stacked, alone, strict=True):
            np.testing.assert_allclose(ours[j], theirs, rtol=1e-13, atol=1e-13)


def test_whoever_adds_slots_otherwise_passes_the_sum() -> None:
    rng = np.random.default_rng(17)
    parameters, ids = draw_parameters(rng, 5, 2, 3), draw_ids(rng, 4, 5, 2)
    x_ML, weights_MK, cotangent_ML = (rng.normal(size=size) for size in ((4, 2), (4, 2), (4, 2)))
    arguments = (x_ML, ids, weights_MK, parameters, cotangent_ML)
    d_x, d_weights, _ = experts_vjp(*arguments)
    own = experts_vjp(*arguments, add_slots=lambda terms_MKL: 2.0 * terms_MKL.sum(axis=1))
    np.testing.assert_array_equal(own[0], 2.0 * d_x)
    np.testing.assert_array_equal(own[1], d_weights)


def test_idle_experts_have_zeros_of_the_format_of_the_others() -> None:
    rng = np.random.default_rng(18)
    parameters = draw_parameters(rng, 3, 2, 4)
    ids, weights, x_ML = np.ones((2, 1), dtype=int), np.ones((2, 1)), rng.normal(size=(2, 2))
    _, _, gradients = experts_vjp(x_ML, ids, weights, parameters, x_ML)
    for name in ("gate_proj", "up_proj", "down_proj"):
        gradient = getattr(gradients, name)
        assert gradient.dtype == np.float64
        np.testing.assert_array_equal(gradient[[0, 2]], np.zeros_like(gradient[[0, 2]]))


def test_errors_name_what_was_wrong() -> None:
    rng = np.random.default_rng(16)
    good = draw_parameters(rng, 3, 2, 4)
    x_ML, ids_MK, weights_MK = np.ones((5, 2)), np.zeros((5, 1), dtype=int), np.ones((5, 1))
    flat = ExpertParameters(good.gate_proj, good.up_proj, good.gate_proj)
    short = ExpertParameters(good.gate_proj, good.up_proj[:2], good.down_proj)
    for arguments, message in [
        ((x_ML[0], ids_MK, weights_MK, good), r"x has shape \(2,\), expected \(any, any\)"),
        ((x_ML, ids_MK, weights_MK[:4], good), r"weights has shape \(4, 1\), expected \(5, 1\)"),
        (
            (x_ML, ids_MK[:4], weights_MK, good),
            r"expert_ids has shape \(4, 1\), expected \(5, any\)",
        ),
        ((x_ML, ids_MK + 3, weights_MK, good), r"expert_ids span 3 \.\. 3"),
        ((x_ML, ids_MK - 1, weights_MK, good), r"expert_ids span -1 \.\. -1"),
        ((x_ML, ids_MK, weights_MK, flat), r"parameters.down_proj has shape \(3, 4, 2\)"),
        ((x_ML, ids_MK, weights_MK, short), r"parameters.up_proj has shape \(2, 4, 2\)"),
        ((np.ones((5, 3)), ids_MK, weights_MK, good), r"parameters.gate_proj has shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            experts(*arguments)
    with pytest.raises(ValueError, match=r"cotangent has shape \(4, 2\)"):
        experts_vjp(x_ML, ids_MK, weights_MK, good, x_ML[:4])
    with pytest.raises(ValueError, match="beta_up = 0 must be positive"):
        experts(x_ML, ids_MK, weights_MK, good, beta_up=0)
