from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch

from impl_torch.layer import LatentMoE, latent_moe

D, L, H, N, K, S = 13, 7, 5, 11, 3, 2

NAMES = {
    "gate.weight": (N, D),
    "gate.e_score_correction_bias": (N,),
    "routed_expert_down_proj.weight": (L, D),
    "experts.gate_proj": (N, H, L),
    "experts.up_proj": (N, H, L),
    "experts.down_proj": (N, L, H),
    "routed_expert_norm.weight": (L,),
    "routed_expert_up_proj.weight": (D, L),
    "shared_experts.gate_proj.weight": (S * H, D),
    "shared_experts.up_proj.weight": (S * H, D),
    "shared_experts.down_proj.weight": (D, S * H),
}


def build(seed: int = 0, *, dtype: torch.dtype = torch.float64, **options: object) -> LatentMoE:
    torch.manual_seed(seed)
    sizes = {"model_dim": D, "latent_dim": L, "expert_dim": H, "num_experts": N, "top_k": K}
    module = LatentMoE(**{**sizes, "num_bins": 100, **options}, dtype=dtype)  # type: ignore[arg-type]
    with torch.no_grad():
        module.gate.e_score_correction_bias.normal_(std=0.1)
        module.routed_expert_norm.weight.normal_(mean=1.0, std=0.3)
    return module


def tokens(*shape: int, dtype: torch.dtype = torch.float64, amplitude: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return (torch.randn(*shape, D, generator=generator) * amplitude).to(dtype)


def situ(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)


def naive(
    x: torch.Tensor, p: Mapping[str, torch.Tensor], *, scale: float = 1.0, eps: float = 1e-5
) -> torch.Tensor:
    """Eq. 11, a token and an expert at a time, in float64."""
    p = {name: tensor.double() for name, tensor in p.items()}
    rows = []
    for row in x.double().reshape(-1, D):
        scores = torch.sigmoid(p["gate.weight"] @ row)
        chosen = (scores + p["gate.e_score_correction_bias"]).argsort(descending=True)[:K]
        z = p["routed_expert_down_proj.weight"] @ row
        u = torch.zeros(L, dtype=torch.float64)
        for j in chosen:
            weight = scale * scores[j] / scores[chosen].sum()
            hidden = situ(p["experts.gate_proj"][j] @ z, p["experts.up_proj"][j] @ z)
            u += weight * (p["experts.down_proj"][j] @ hidden)
        u = u / torch.sqrt(u.square().mean() + eps) * p["routed_expert_norm.weight"]
        y = p["routed_expert_up_proj.weight"] @ u
        for s in range(S):
            part = slice(s * H, (s + 1) * H)
            hidden = situ(
                p["shared_experts.gate_proj.weight"][part] @ row,
                p["shared_experts.up_proj.weight"][part] @ row,
            )
            y = y + p["shared_experts.down_proj.weight"][:, part] @ hidden
        rows.append(y)
    return torch.stack(rows).reshape(x.shape) if rows else x.double()


@pytest.mark.parametrize("shape", [(), (1,), (9,), (0,), (2, 3), (2, 0, 3), (2, 2, 3)])
def test_equals_the_equation_for_any_leading_shape(shape: tuple[int, ...]) -> None:
    module = build()
    x = tokens(*shape)
    y = module(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y, naive(x, module.state_dict()), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("amplitude", [1e-4, 1e-3, 1e-2])
def test_tiny_inputs_and_a_routed_scale_before_the_norm(amplitude: float) -> None:
    module = build(routed_scale=16.0, norm_eps=1e-3)
    x = tokens(6, amplitude=amplitude)
    expected = naive(x, module.state_dict(), scale=16.0, eps=1e-3)
    torch.testing.assert_close(module(x), expected, rtol=1e-10, atol=1e-18)
    assert not torch.allclose(expected, naive(x, module.state_dict(), eps=1e-3), rtol=1e-3, atol=0)


def test_parameter_names_and_shapes_are_the_checkpoints() -> None:
    module = build(num_bins=None)
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == NAMES
    parameters = dict(module.named_parameters())
    assert set(parameters) == set(NAMES) - {"gate.e_score_correction_bias"}
    balanced = build().state_dict()
    assert set(balanced) - set(NAMES) == {"balancer.histogram", "balancer.extremes"}


def test_loading_a_checkpoint_without_the_balancer() -> None:
    plain, balanced = build(1, num_bins=None), build(2)
    missing = balanced.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert set(missing) == {"balancer.histogram", "balancer.extremes"}
    assert torch.equal(balanced(tokens(5)), plain(tokens(5)))


def test_loading_one_matrix_per_expert() -> None:
    source, target = build(1, num_bins=None), build(2, num_bins=None)
    state = source.state_dict()
    for name, alias in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
        stack = state.pop(f"experts.{name}")
        state |= {f"experts.{j}.{alias}.weight": stack[j] for j in range(N)}
    target.load_state_dict(state)
    assert torch.equal(target(tokens(5)), source(tokens(5)))


def test_as_a_function_of_its_parameters() -> None:
    module = build(num_bins=None, routed_scale=2.0, norm_eps=1e-2)
    x = tokens(4, 2)
    options = {"top_k": K, "routed_scale": 2.0, "norm_eps": 1e-2}
    state = {name: t.detach().requires_grad_() for name, t in module.state_dict().items()}
    y = latent_moe(x, state, **options)  # type: ignore[arg-type]
    assert torch.equal(y, module(x))
    gradients = torch.autograd.grad(y.square().sum(), list(state.values()), allow_unused=True)
    module(x).square().sum().backward()
    for name, gradient in zip(state, gradients, strict=True):
        if name == "gate.e_score_correction_bias":
            assert gradient is None
        else:
            assert gradient is not None
            assert torch.equal(gradient, module.get_parameter(name).grad)
    del state["shared_experts.gate_proj.weight"]
    del state["shared_experts.up_proj.weight"], state["shared_experts.down_proj.weight"]
    routed_only = latent_moe(x, state, **options)  # type: ignore[arg-type]
    assert module.shared_experts is not None
    x_MD = x.reshape(-1, D)
    shared = module.shared_experts(x_MD).reshape(x.shape)
    torch.testing.assert_close(routed_only, y - shared, rtol=1e-10, atol=1e-12)


def test_gradcheck() -> None:
    module = build(num_bins=None)
    x = tokens(3).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))


def test_only_chosen_experts_and_no_bias_get_gradient() -> None:
    module = build()
    x = tokens(2)
    chosen = set(module.gate(x).expert_ids.flatten().tolist())
    assert len(chosen) < N
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert (parameter.grad != 0).any(), name
    for stack in (module.experts.gate_proj, module.experts.up_proj, module.experts.down_proj):
        assert stack.grad is not None
        assert {j for j in range(N) if stack.grad[j].any()} == chosen
    assert module.gate.e_score_correction_bias.grad is None


def test_routing_reads_the_full_width() -> None:
    torch.manual_seed(0)
    module = LatentMoE(model_dim=7, latent_dim=7, expert_dim=5, num_experts=11, top_k=3)
    x = torch.randn(20, 7)
    before = module.gate(x).expert_ids
    with torch.no_grad():
        module.routed_expert_down_proj.weight.zero_()
    assert torch.equal(module.gate(x).expert_ids, before)
    shared = module.shared_experts
    assert shared is not None
    torch.testing.assert_close(module(x), shared(x))


def test_shared_experts_of_their_own_width_or_none() -> None:
    module = build(num_shared_experts=3, shared_expert_dim=4)
    assert module.shared_experts is not None
    assert module.shared_experts.gate_proj.weight.shape == (12, D)
    assert build(num_shared_experts=0).shared_experts is None


# Balancing -------------------------------------------------------------------------------------


def test_evaluation_leaves_every_state_as_it_was() -> None:
    module = build()
    module(tokens(20))
    before = copy.deepcopy(module.state_dict())
    module.eval()
    module(tokens(5))
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0, equal_nan=True)


def test_training_counts_and_the_update_waits() -> None:
    module = build()
    x = tokens(4, 10)
    evaluated = copy.deepcopy(module).eval()(x)
    bias = module.gate.e_score_correction_bias
    before = bias.clone()
    first, second = module(x), module(x)
    assert torch.equal(first, evaluated)
    assert torch.equal(second, evaluated)
    assert torch.equal(bias, before)
    assert module.balancer is not None
    assert (module.balancer.histogram.sum(1) == 80).all()
    module.update_bias()
    assert module.gate.e_score_correction_bias is bias
    assert not torch.equal(bias, before)
    assert abs(float(bias.mean())) < 1e-15
    assert not module.balancer.histogram.any()


def test_masked_tokens_are_computed_but_not_counted() -> None:
    module = build()
    x = tokens(4, 10)
    mask = torch.arange(40).view(4, 10) % 3 > 0
    y = module(x, mask)
    assert torch.equal(y, module.eval()(x))
    assert module.balancer is not None
    assert (module.balancer.histogram.sum(1) == mask.sum()).all()
    only = build()
    only(x[mask])
    assert only.balancer is not None
    assert torch.equal(only.balancer.histogram, module.balancer.histogram)


def test_steps_of_balancing_even_out_the_loads() -> None:
    module = build(dtype=torch.float32, num_bins=1000)
    x = tokens(900, dtype=torch.float32) + 0.5
    loads = []
    for _ in range(8):
        loads.append(torch.bincount(module.gate(x).expert_ids.flatten(), minlength=N).max().item())
        module(x)
        module.update_bias()
    target = 900 * K / N
    assert loads[0] > 1.5 * target
    assert loads[-1] < 1.05 * target


def test_without_a_balancer_or_with_every_expert_chosen() -> None:
    with pytest.raises(RuntimeError, match="does not balance; build it with num_bins"):
        build(num_bins=None).update_bias()
    module = build(top_k=N)
    before = module.gate.e_score_correction_bias.clone()
    module(tokens(6))
    module.update_bias()
    assert torch.equal(module.gate.e_score_correction_bias, before)


# Formats ---------------------------------------------------------------------------------------


def test_in_bfloat16_with_float32_routing() -> None:
    module = build(dtype=torch.float32)
    bias = module.gate.e_score_correction_bias.clone()
    module.to(torch.bfloat16)
    x = tokens(50, dtype=torch.bfloat16)
    y = module(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(module.gate.e_score_correction_bias, bias)
    assert module.balancer is not None
    assert module.balancer.histogram.dtype == torch.int64
    expected = naive(x, module.state_dict())
    # About ten roundings of 2^-8 lie on the way, in quadrature.
    error = (y.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 2.0**-10 < error < 3 * 2.0**-8
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in module.parameters())
    module.update_bias()
    assert module.gate.e_score_correction_bias.dtype == torch.float32


def test_float32_is_near_float64() -> None:
    module = build(dtype=torch.float32)
    x = tokens(50, dtype=torch.float32)
    expected = naive(x, module.state_dict())
    assert (module(x) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_strided_hidden_states() -> None:
    module = build()
    x = tokens(4, 6)
    strided = x.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    torch.testing.assert_close(module(strided), module(x), rtol=1e-12, atol=1e-13)


def test_wrong_shapes_are_named() -> None:
    module = build()
    with pytest.raises(ValueError, match=r"x has shape \(4, 12\); its last axis must be 13"):
        module(torch.zeros(4, 12, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"mask has shape \(8,\); expected \(4, 2\) to match x"):
        module(tokens(4, 2), torch.ones(8, dtype=torch.bool))
    with pytest.raises(ValueError, match="top_k must be in 1 … 11"):
        build(top_k=12)
