"""Eq. 11 token by token, the place of every factor in it, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reference_numpy.experts import ExpertParameters
from reference_numpy.layer import (
    LayerConfig,
    LayerParameters,
    latent,
    layer,
    layer_vjp,
    routed_output,
    routed_sum,
    router_logits,
    shared_outputs,
)
from reference_numpy.norm import rms_norm
from reference_numpy.routing import Routing, combine_weights, route, scores

Floats = NDArray[np.float64]
D, L, N, K, M = 5, 3, 6, 2, 7


def draw_parameters(seed: int, *, shared: int = 2) -> LayerParameters:
    rng = np.random.default_rng(seed)

    def stack(count: int, width: int, hidden: int) -> ExpertParameters:
        into, out = (count, hidden, width), (count, width, hidden)
        return ExpertParameters(*(rng.normal(size=size) for size in (into, into, out)))

    return LayerParameters(
        gate_weight=rng.normal(size=(N, D)),
        e_score_correction_bias=0.1 * rng.normal(size=N),
        routed_expert_down_proj=rng.normal(size=(L, D)),
        experts=stack(N, L, 4),
        routed_expert_norm=rng.normal(size=L),
        routed_expert_up_proj=rng.normal(size=(D, L)),
        shared_experts=stack(shared, D, 2),
    )


def draw_x(seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=(M, D))


def glu_expert(z: Floats, parameters: ExpertParameters, j: int) -> Floats:
    """Eq. 12 for one token, its activation spelt out."""
    gate, up = parameters.gate_proj[j] @ z, parameters.up_proj[j] @ z
    hidden = 4 * np.tanh(gate / 4) / (1 + np.exp(-gate)) * 25 * np.tanh(up / 25)
    return np.asarray(parameters.down_proj[j] @ hidden)


def test_equation_11_token_by_token() -> None:
    parameters, x_MD = draw_parameters(20), draw_x(21)
    config = LayerConfig(K, routed_scale=2.5)
    y_MD = layer(x_MD, parameters, config=config)
    for x_D, y_D in zip(x_MD, y_MD, strict=True):
        s_N = 1 / (1 + np.exp(-(parameters.gate_weight @ x_D)))
        chosen = np.argsort(-(s_N + parameters.e_score_correction_bias))[:K]
        z_L = parameters.routed_expert_down_proj @ x_D
        u_L = np.zeros(L)
        for j in chosen:
            u_L += 2.5 * s_N[j] / s_N[chosen].sum() * glu_expert(z_L, parameters.experts, j)
        v_L = u_L / np.sqrt(np.mean(u_L**2) + 1e-5) * parameters.routed_expert_norm
        expected = parameters.routed_expert_up_proj @ v_L
        for j in range(2):
            expected = expected + glu_expert(x_D, parameters.shared_experts, j)
        np.testing.assert_allclose(y_D, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (0,), (1,), (2, 0, 3), (7, 1), (1, 7)])
def test_leading_axes_are_free(lead: tuple[int, ...]) -> None:
    parameters, config = draw_parameters(22), LayerConfig(K)
    tokens = int(np.prod(lead))
    x = draw_x(23)[:tokens].reshape(*lead, D)
    y = layer(x, parameters, config=config)
    assert y.shape == x.shape
    flat = layer(x.reshape(tokens, D), parameters, config=config)
    np.testing.assert_array_equal(y.reshape(tokens, D), flat)
    assert router_logits(x, parameters.gate_weight).shape == (*lead, N)
    d_x, d_parameters = layer_vjp(x, parameters, np.ones_like(x), config=config)
    assert d_x.shape == x.shape
    assert d_parameters.experts.gate_proj.shape == parameters.experts.gate_proj.shape


def test_the_stages_compose_to_the_layer() -> None:
    parameters, x_MD, config = draw_parameters(24), draw_x(25), LayerConfig(K)
    logits_MN = router_logits(x_MD, parameters.gate_weight)
    routing = route(logits_MN, parameters.e_score_correction_bias, top_k=K)
    u_ML = routed_sum(x_MD, parameters, routing, config=config)
    y_MD = routed_output(u_ML, parameters, config=config)
    y_MD = y_MD + shared_outputs(x_MD, parameters, config=config).sum(axis=0)
    np.testing.assert_allclose(layer(x_MD, parameters, config=config), y_MD, rtol=1e-13, atol=1e-13)
    assert latent(x_MD, parameters).shape == (M, L)


def test_a_given_routing_is_followed() -> None:
    parameters, x_MD, config = draw_parameters(26), draw_x(27), LayerConfig(K)
    own = layer(x_MD, parameters, config=config)
    blind = replace(parameters, gate_weight=np.zeros((N, D)))
    routing = route(
        router_logits(x_MD, parameters.gate_weight), parameters.e_score_correction_bias, top_k=K
    )
    np.testing.assert_array_equal(layer(x_MD, blind, config=config, routing=routing), own)
    other = Routing((routing.expert_ids + 1) % N, routing.weights)
    assert (layer(x_MD, parameters, config=config, routing=other) != own).any(axis=1).all()


@pytest.mark.parametrize(
    ("top_k", "options"), [(1, {"top1_renormalised": False}), (2, {"epsilon": 0.4})]
)
def test_the_router_follows_the_conventions_of_its_weights(
    top_k: int, options: dict[str, Any]
) -> None:
    parameters, x_MD, config = draw_parameters(41), draw_x(42), LayerConfig(top_k, norm_eps=1.0)
    logits_MN, bias_N = (
        router_logits(x_MD, parameters.gate_weight),
        parameters.e_score_correction_bias,
    )
    routing = route(logits_MN, bias_N, top_k=top_k, **options)
    y_MD = layer(x_MD, parameters, config=config, **options)
    np.testing.assert_array_equal(y_MD, layer(x_MD, parameters, config=config, routing=routing))
    assert (y_MD != layer(x_MD, parameters, config=config)).any(axis=1).all()


def test_the_scale_acts_before_the_norm() -> None:
    parameters, x_MD = draw_parameters(28), draw_x(29)
    # With eps = 2^40 and weight 2^20 the norm is the identity to 1e-9, and the scale shows whole.
    open_norm = replace(parameters, routed_expert_norm=np.full(L, 2.0**20))
    open_config = LayerConfig(K, norm_eps=2.0**40)
    shared = shared_outputs(x_MD, parameters, config=open_config).sum(axis=0)
    once = layer(x_MD, open_norm, config=open_config) - shared
    thrice = layer(x_MD, open_norm, config=replace(open_config, routed_scale=3.0)) - shared
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-6, atol=1e-6)
    # Behind the real norm it all but vanishes.
    a = layer(x_MD, parameters, config=LayerConfig(K))
    b = layer(x_MD, parameters, config=LayerConfig(K, routed_scale=3.0))
    assert np.abs(a - b).max() < 0.01 * np.abs(a).max()
    assert (a != b).any()


def test_the_norm_takes_the_combined_sum() -> None:
    parameters, x_MD, config = draw_parameters(30), draw_x(31), LayerConfig(K)
    routing = route(
        router_logits(x_MD, parameters.gate_weight), parameters.e_score_correction_bias, top_k=K
    )
    u_ML = routed_sum(x_MD, parameters, routing, config=config)
    normalised = rms_norm(u_ML, parameters.routed_expert_norm)
    np.testing.assert_allclose(
        routed_output(u_ML, parameters, config=config),
        normalised @ parameters.routed_expert_up_proj.T,
        rtol=1e-14,
    )


def test_without_shared_experts_the_routed_branch_remains() -> None:
    parameters, x_MD, config = draw_parameters(32, shared=0), draw_x(33), LayerConfig(K)
    routing = route(
        router_logits(x_MD, parameters.gate_weight), parameters.e_score_correction_bias, top_k=K
    )
    u_ML = routed_sum(x_MD, parameters, routing, config=config)
    np.testing.assert_array_equal(
        layer(x_MD, parameters, config=config), routed_output(u_ML, parameters, config=config)
    )
    _, d_parameters = layer_vjp(x_MD, parameters, x_MD, config=config)
    assert d_parameters.shared_experts.gate_proj.shape == (0, 2, D)


def leaves(parameters: Any, gradients: Any) -> Iterator[tuple[str, Floats, Floats]]:
    """(name, array, gradient) of every array in a tree of dataclasses."""
    for field in fields(parameters):
        value, gradient = getattr(parameters, field.name), getattr(gradients, field.name)
        if isinstance(value, np.ndarray):
            yield field.name, value, gradient
        else:
            yield from leaves(value, gradient)


@pytest.mark.parametrize(
    ("top_k", "options"),
    [
        (2, {}),
        (2, {"expert_ids": np.array([[5, 0], [1, 2], [3, 5], [0, 4], [2, 1], [3, 0], [4, 1]])}),
        (1, {"top1_renormalised": False}),
        (1, {}),
        (2, {"top1_renormalised": False}),
        (N, {"epsilon": 0.4}),
    ],
)
def test_gradients_against_differences(
    check_gradient: Callable[..., None], top_k: int, options: dict[str, Any]
) -> None:
    parameters, x_MD, cotangent_MD = draw_parameters(34), draw_x(35), draw_x(36)
    config = LayerConfig(top_k, beta_gate=2.0, beta_up=5.0, norm_eps=0.5, routed_scale=1.7)
    d_x, d_parameters = layer_vjp(x_MD, parameters, cotangent_MD, config=config, **options)
    logits_MN = router_logits(x_MD, parameters.gate_weight)
    own = route(logits_MN, parameters.e_score_correction_bias, top_k=top_k)
    ids_MK = options.get("expert_ids", own.expert_ids)
    renormalise = top_k > 1 or options.get("top1_renormalised", True)

    def value() -> float:
        s_MN = scores(router_logits(x_MD, parameters.gate_weight))
        weights_MK = combine_weights(
            s_MN, ids_MK, epsilon=options.get("epsilon", 1e-20), renormalise=renormalise
        )
        routing = Routing(ids_MK, weights_MK)
        y_MD = layer(x_MD, parameters, config=config, routing=routing)
        return float(np.sum(cotangent_MD * y_MD))

    check_gradient(value, x_MD, d_x)
    for name, array, gradient in leaves(parameters, d_parameters):
        if name == "e_score_correction_bias":
            np.testing.assert_array_equal(gradient, np.zeros(N))
        else:
            check_gradient(value, array, gradient)


def test_the_parts_that_others_compute_otherwise_reach_the_gradients() -> None:
    parameters, x_MD, cotangent_MD = draw_parameters(43), draw_x(44), draw_x(45)
    config = LayerConfig(K)
    d_x, plain = layer_vjp(x_MD, parameters, cotangent_MD, config=config)
    _, doubled = layer_vjp(
        x_MD,
        parameters,
        cotangent_MD,
        config=config,
        complement=lambda logits_MN: 2.0 * scores(-logits_MN),
    )
    np.testing.assert_allclose(doubled.gate_weight, 2.0 * plain.gate_weight, rtol=1e-13)
    halved_x, halved = layer_vjp(
        x_MD,
        parameters,
        cotangent_MD,
        config=config,
        add_slots=lambda terms_MKL: 0.5 * terms_MKL.sum(axis=1),
    )
    np.testing.assert_allclose(
        halved.routed_expert_down_proj, 0.5 * plain.routed_expert_down_proj, rtol=1e-13
    )
    assert not np.allclose(halved_x, d_x)


def test_every_parameter_but_the_bias_gets_a_gradient_where_it_takes_part() -> None:
    parameters, x_MD, config = draw_parameters(37), draw_x(38)[:2], LayerConfig(K)
    ids = route(
        router_logits(x_MD, parameters.gate_weight), parameters.e_score_correction_bias, top_k=K
    ).expert_ids
    _, gradients = layer_vjp(x_MD, parameters, np.ones_like(x_MD), config=config)
    used = np.isin(np.arange(N), ids)
    assert not used.all()
    for name in ("gate_proj", "up_proj", "down_proj"):
        nonzero_N = (getattr(gradients.experts, name) != 0).all(axis=(1, 2))
        np.testing.assert_array_equal(nonzero_N, used)
    np.testing.assert_array_equal((gradients.gate_weight != 0).all(axis=1), used)


def test_errors_name_what_was_wrong() -> None:
    good, x_MD, config = draw_parameters(39), draw_x(40), LayerConfig(K)
    for change, message in [
        (
            {"gate_weight": np.ones((N, D + 1))},
            r"gate_weight has shape \(6, 6\), expected \(any, 5\)",
        ),
        ({"e_score_correction_bias": np.ones(N - 1)}, "e_score_correction_bias has shape"),
        ({"routed_expert_down_proj": np.ones((D, L))}, "routed_expert_down_proj has shape"),
        ({"routed_expert_norm": np.ones(D)}, "routed_expert_norm has shape"),
        ({"routed_expert_up_proj": np.ones((L, D))}, "routed_expert_up_proj has shape"),
        ({"experts": good.shared_experts}, "experts.gate_proj has shape"),
        ({"shared_experts": good.experts}, "shared_experts.gate_proj has shape"),
        (
            {"gate_weight": np.ones((N + 1, D)), "e_score_correction_bias": np.ones(N + 1)},
            "6 experts",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            layer(x_MD, replace(good, **change), config=config)
    with pytest.raises(ValueError, match=r"top_k = 9 must lie in 1 \.\. 6"):
        layer(x_MD, good, config=LayerConfig(9))
    with pytest.raises(ValueError, match=r"cotangent has shape \(5,\), expected \(7, 5\)"):
        layer_vjp(x_MD, good, x_MD[0], config=config)
    other = Routing(np.zeros((M, 1), dtype=int), np.ones((M, 1)))
    with pytest.raises(ValueError, match=r"expert_ids has shape \(7, 1\), expected \(7, 2\)"):
        layer(x_MD, good, config=config, routing=other)
    with pytest.raises(ValueError, match="x has no axes"):
        layer(np.array(1.0), good, config=config)
    with pytest.raises(ValueError, match=r"expert_ids has shape \(7, 3\), expected \(7, 2\)"):
        layer_vjp(x_MD, good, x_MD, config=config, expert_ids=np.zeros((M, 3), dtype=int))
