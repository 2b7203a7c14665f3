from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import reference_numpy as reference
from impl_torch.routing import Router, route, route_grouped, route_scores

INF = float("inf")


def batch(m: int, n: int, seed: int = 0, spread: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(m, n, generator=generator) * 2
    return logits, torch.randn(n, generator=generator) * spread


def naive_weights(logits: np.ndarray, ids: np.ndarray, epsilon: float = 1e-20) -> np.ndarray:
    small = np.exp(-np.abs(logits))
    scores = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    weights = np.empty(ids.shape)
    for i, row in enumerate(ids):
        chosen = [scores[i, j] for j in row]
        weights[i] = chosen / (np.sum(chosen) + epsilon)
    return weights


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (5, 2, 1), (17, 3, 2), (33, 8, 8), (9, 255, 16), (257, 257, 3), (16, 896, 16)],
)
def test_selection_weights_and_cutoff(m: int, n: int, k: int) -> None:
    logits, bias = batch(m, n)
    routing = route(logits, bias, top_k=k)
    ids = routing.expert_ids.numpy()
    biased = (torch.sigmoid(logits) + bias).numpy()
    assert ids.shape == (m, k)
    assert all(len(set(row)) == k for row in ids.tolist())
    ordered = -np.sort(-biased, axis=1)
    chosen = np.sort(np.take_along_axis(biased, ids, axis=1), axis=1)
    # torch.sigmoid is a unit or two off ours.
    np.testing.assert_allclose(chosen[:, ::-1], ordered[:, :k], rtol=0, atol=3e-7)
    assert routing.weights.dtype == torch.float32
    expected = naive_weights(logits.double().numpy(), ids)
    np.testing.assert_allclose(routing.weights.numpy(), expected, rtol=(k + 6) * 2.0**-24)
    if k == n:
        assert routing.cutoff is None
    else:
        assert routing.cutoff is not None
        np.testing.assert_allclose(routing.cutoff.numpy(), ordered[:, k], rtol=0, atol=3e-7)


def test_agrees_with_the_reference_in_float64() -> None:
    logits, bias = (t.double() for t in batch(40, 13))
    cotangent = torch.linspace(-1, 1, 120, dtype=torch.float64).view(40, 3)
    logits.requires_grad_()
    routing = route(logits, bias, top_k=3)
    arrays = logits.detach().numpy(), bias.numpy()
    expected = reference.route(*arrays, top_k=3)
    np.testing.assert_array_equal(routing.expert_ids.numpy(), expected.expert_ids)
    np.testing.assert_allclose(routing.weights.detach().numpy(), expected.weights, rtol=1e-15)
    np.testing.assert_allclose(routing.cutoff.numpy(), expected.cutoff, rtol=1e-15)
    (d_logits,) = torch.autograd.grad(routing.weights, logits, cotangent)
    want, _ = reference.route_vjp(*arrays, cotangent.numpy(), top_k=3)
    np.testing.assert_allclose(d_logits.numpy(), want, rtol=1e-12, atol=1e-16)


def test_the_bias_selects_and_never_weighs() -> None:
    logits, bias = batch(30, 9)
    plain, shifted = route(logits, bias, top_k=4), route(logits, bias + 0.25, top_k=4)
    assert torch.equal(plain.expert_ids.sort(-1).values, shifted.expert_ids.sort(-1).values)
    torch.testing.assert_close(plain.weights.sort(-1).values, shifted.weights.sort(-1).values)
    pushed = bias.clone()
    pushed[5] = 3.0
    assert (route(logits, pushed, top_k=4).expert_ids == 5).any(-1).all()
    assert (route(logits, pushed, top_k=4).weights <= 1).all()


def test_small_gaps_under_a_large_offset_still_decide() -> None:
    bias = torch.full((64,), 34.5)
    bias[37] += 1e-4
    routing = route(torch.zeros(3, 64), bias, top_k=1)
    assert routing.expert_ids.flatten().tolist() == [37, 37, 37]


def test_every_expert_can_be_chosen() -> None:
    logits = torch.full((896, 896), -5.0)
    logits.fill_diagonal_(5.0)
    ids = route(logits, torch.zeros(896), top_k=1).expert_ids.flatten()
    assert torch.equal(ids, torch.arange(896))


@pytest.mark.parametrize("logit", [-1e8, -110.0, -95.0, -60.0, 30.0, 1e4, INF, -INF])
def test_extreme_logits_give_finite_weights_with_the_right_sum(logit: float) -> None:
    logits = torch.full((2, 7), logit)
    weights = route(logits, torch.zeros(7), top_k=3).weights.double()
    total = 3 / (1 + np.exp(-logit)) if logit > -700 else 0.0
    expected = torch.full((2,), total / (total + 1e-20), dtype=torch.float64)
    torch.testing.assert_close(weights.sum(-1), expected, rtol=1e-6, atol=1e-24)


def test_ties_nan_rows_and_missing_candidates_keep_ids_valid() -> None:
    logits, bias = batch(6, 10)
    logits[1] = torch.nan
    logits[2, 4] = torch.nan
    logits[3] = 0.5
    bias[[0, 3, 7]] = -INF
    clean = route(logits[[0, 4, 5]], bias, top_k=8)
    routing = route(logits, bias, top_k=8)
    for row in routing.expert_ids.tolist():
        assert len(set(row)) == 8
        assert set(row) <= set(range(10))
    assert torch.equal(routing.expert_ids[[0, 4, 5]], clean.expert_ids)
    assert torch.equal(routing.weights[[0, 4, 5]], clean.weights)
    for row in route(logits[[0, 3, 4, 5]], bias, top_k=7).expert_ids.tolist():
        assert not set(row) & {0, 3, 7}
    assert len(set(route(logits, torch.full((10,), -INF), top_k=9).expert_ids[0].tolist())) == 9


@pytest.mark.parametrize(
    ("groups", "top_groups", "k"), [(1, 1, 5), (4, 2, 3), (6, 3, 6), (3, 1, 4)]
)
def test_grouped_routing_agrees_with_the_reference(groups: int, top_groups: int, k: int) -> None:
    logits, bias = (t.double() for t in batch(50, 12))
    options = {"top_k": k, "num_groups": groups, "top_groups": top_groups}
    routing = route_grouped(logits, bias - 2.0, **options)
    expected = reference.route_grouped(logits.numpy(), bias.numpy() - 2.0, **options)
    np.testing.assert_array_equal(routing.expert_ids.numpy(), expected.expert_ids)
    np.testing.assert_allclose(routing.weights.numpy(), expected.weights, rtol=1e-15)
    if expected.cutoff is None:
        assert routing.cutoff is None
    else:
        assert routing.cutoff is not None
        np.testing.assert_allclose(routing.cutoff.numpy(), expected.cutoff, rtol=1e-15)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"top_k": 2, "num_groups": 5, "top_groups": 1}, "num_groups must divide 12 experts"),
        ({"top_k": 2, "num_groups": 12, "top_groups": 1}, "num_groups must divide 12 experts"),
        ({"top_k": 2, "num_groups": 4, "top_groups": 5}, "top_groups must be in 1 … 4"),
        ({"top_k": 4, "num_groups": 4, "top_groups": 1}, "top_k must be in 1 … 3"),
    ],
)
def test_impossible_groups_are_refused(options: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        route_grouped(torch.zeros(1, 12), torch.zeros(12), **options)
    with pytest.raises(ValueError, match=r"bias has shape \(3,\)"):
        route_grouped(torch.zeros(1, 12), torch.zeros(3), top_k=1, num_groups=2, top_groups=1)


def test_no_tokens() -> None:
    routing = route(torch.zeros(0, 5), torch.zeros(5), top_k=2)
    assert routing.expert_ids.shape == routing.weights.shape == (0, 2)
    assert routing.cutoff is not None
    assert routing.cutoff.shape == (0,)


def test_one_expert_per_token_with_and_without_renormalisation() -> None:
    logits, bias = batch(8, 5)
    raw = route(logits, bias, top_k=1, top1_renormalised=False)
    expected = torch.sigmoid(logits).gather(-1, raw.expert_ids)
    torch.testing.assert_close(raw.weights, expected)
    half = route(logits, bias, top_k=1, epsilon=1.0)
    torch.testing.assert_close(half.weights, expected / (expected + 1))


def test_gradient_reaches_chosen_scores_only() -> None:
    logits, bias = (t.double() for t in batch(6, 7))
    logits.requires_grad_()
    bias.requires_grad_()
    routing = route(logits, bias, top_k=3)
    d_logits, d_bias = torch.autograd.grad(
        routing.weights.square().sum(), (logits, bias), allow_unused=True
    )
    assert d_bias is None
    chosen = torch.zeros(6, 7, dtype=torch.bool).scatter(1, routing.expert_ids, value=True)
    assert (d_logits[~chosen] == 0).all()
    assert (d_logits[chosen] != 0).all()
    fixed = bias.detach()
    assert torch.autograd.gradcheck(lambda z: route(z, fixed, top_k=3).weights, (logits,))


def test_strided_logits() -> None:
    logits, bias = batch(20, 11)
    wide = torch.full((20, 22), torch.nan)
    wide[:, ::2] = logits
    for strided in (wide[:, ::2], logits.t().contiguous().t()):
        routing, expected = route(strided, bias, top_k=4), route(logits, bias, top_k=4)
        assert torch.equal(routing.expert_ids, expected.expert_ids)
        torch.testing.assert_close(routing.weights, expected.weights, rtol=1e-6, atol=0)


@pytest.mark.parametrize("top_k", [0, 6, -1])
def test_impossible_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=r"top_k must be in 1 … 5 \(the experts\)"):
        route(torch.zeros(2, 5), torch.zeros(5), top_k=top_k)
    with pytest.raises(ValueError, match="top_k must be in"):
        Router(3, 5, top_k)


def test_a_bias_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bias has shape \(1,\); expected \(5,\)"):
        route_scores(torch.zeros(2, 5), torch.zeros(1), top_k=2)


def test_router_computes_in_float32_from_bfloat16_parameters() -> None:
    router = Router(64, 12, 3).to(torch.bfloat16)
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    scores = router.scores(x)
    assert scores.dtype == torch.float32
    expected = torch.sigmoid(x.double() @ router.weight.double().t())
    assert (scores - expected).abs().max() < 2e-6
    assert torch.equal(router(x).expert_ids, router.select(scores).expert_ids)
    assert "num_experts=12, top_k=3" in repr(router)


@pytest.mark.parametrize("cast", ["bfloat16", "half", "to", "nested", "type"])
def test_the_bias_survives_casts_digit_by_digit(cast: str) -> None:
    router = Router(4, 6, 2)
    values = 34.5 + torch.arange(6) * 1e-4
    router.e_score_correction_bias.copy_(values)
    address = router.e_score_correction_bias.data_ptr()
    if cast == "to":
        router.to("cpu", torch.bfloat16)
    elif cast == "type":
        router.type(torch.bfloat16)
    elif cast == "nested":
        nn.Sequential(nn.Sequential(router)).to(torch.float16)
    else:
        getattr(router, cast)()
    assert router.weight.dtype in (torch.bfloat16, torch.float16)
    assert router.e_score_correction_bias.dtype == torch.float32
    assert torch.equal(router.e_score_correction_bias, values)
    assert router.e_score_correction_bias.data_ptr() == address


def test_the_bias_follows_to_float64_and_back() -> None:
    router = Router(4, 6, 2).double()
    assert router.e_score_correction_bias.dtype == torch.float64
    assert router.scores(torch.zeros(1, 4, dtype=torch.float64)).dtype == torch.float64
    assert router.to(torch.bfloat16).e_score_correction_bias.dtype == torch.float64
    assert router(torch.zeros(1, 4).bfloat16()).weights.dtype == torch.float32
    assert router.to(torch.float32).e_score_correction_bias.dtype == torch.float32
    assert Router(4, 6, 2, dtype=torch.float64).e_score_correction_bias.dtype == torch.float64
    assert Router(4, 6, 2, dtype=torch.bfloat16).e_score_correction_bias.dtype == torch.float32


@pytest.mark.parametrize("assign", [False, True])
def test_checkpoints_of_any_format_leave_a_float32_bias(assign: bool) -> None:
    router, other = Router(4, 6, 2), Router(4, 6, 2)
    other.e_score_correction_bias.copy_(torch.linspace(-1, 1, 6))
    state = {key: value.bfloat16() for key, value in other.state_dict().items()}
    assert set(state) == {"weight", "e_score_correction_bias"}
    router.load_state_dict(state, assign=assign)
    bias = router.e_score_correction_bias
    assert bias.dtype == torch.float32
    assert torch.equal(bias, state["e_score_correction_bias"].float())
    del state["e_score_correction_bias"]
    with pytest.raises(RuntimeError, match="e_score_correction_bias"):
        router.load_state_dict(state)


def test_copies_and_pickles_keep_the_bias() -> None:
    router = Router(4, 6, 2).to(torch.bfloat16)
    router.e_score_correction_bias.copy_(torch.linspace(-1, 1, 6))
    buffer = io.BytesIO()
    torch.save(router, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(router), torch.load(buffer, weights_only=False)):
        assert torch.equal(twin.e_score_correction_bias, router.e_score_correction_bias)
        assert twin.to(torch.float16).e_score_correction_bias.dtype == torch.float32


def test_the_bias_moves_between_devices() -> None:
    router = Router(4, 6, 2).to("meta")
    assert router.e_score_correction_bias.device.type == "meta"
    materialised = router.to_empty(device="cpu").to(torch.bfloat16)
    materialised.reset_parameters()
    assert torch.equal(materialised.e_score_correction_bias, torch.zeros(6))
