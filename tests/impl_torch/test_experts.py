from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

import reference_numpy as reference
from impl_torch.arrays import nan_memory
from impl_torch.experts import Experts, combine, dispatch, experts, gather, grouped_linear

SHAPES = [(1, 1, 1), (0, 5, 2), (1, 7, 3), (16, 4, 4), (33, 13, 2), (40, 257, 5), (9, 2, 1)]


class Case(NamedTuple):
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


def case(
    m: int, n: int, k: int, dtype: torch.dtype = torch.float64, width: int = 5, hidden: int = 3
) -> Case:
    generator = torch.Generator().manual_seed(1000 * m + n)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    ids = torch.rand(m, n, generator=generator).argsort(-1)[:, :k].contiguous()
    weights = torch.rand(m, k, generator=generator)
    weights = weights.double() if dtype == torch.float64 else weights
    return Case(
        normal(m, width),
        ids,
        weights,
        normal(n, hidden, width),
        normal(n, hidden, width),
        normal(n, width, hidden),
    )


def dense(c: Case, beta_gate: float = 4.0, beta_up: float = 25.0) -> torch.Tensor:
    """Every expert on every token in float64, then the weighted sum over slots."""
    x, weights, gate, up, down = (t.double() for t in (c.x, c.weights, c.gate, c.up, c.down))
    g = torch.einsum("ml,nhl->nmh", x, gate)
    u = torch.einsum("ml,nhl->nmh", x, up)
    hidden = beta_gate * torch.tanh(g / beta_gate) * torch.sigmoid(g)
    hidden = hidden * beta_up * torch.tanh(u / beta_up)
    outputs = torch.einsum("nmh,nlh->nml", hidden, down)
    total = torch.zeros_like(x)
    for slot in range(c.ids.shape[1]):
        rows = outputs[c.ids[:, slot], torch.arange(x.shape[0])]
        total = total + weights[:, slot, None] * rows
    return total


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_equals_dense_evaluation(m: int, n: int, k: int) -> None:
    c = case(m, n, k)
    out = experts(*c, beta_gate=2.0, beta_up=3.0)
    assert out.shape == c.x.shape
    torch.testing.assert_close(out, dense(c, 2.0, 3.0), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_gradients_equal_the_references(m: int, n: int, k: int) -> None:
    c = case(m, n, k)
    inputs = (c.x, c.weights, c.gate, c.up, c.down)
    for tensor in inputs:
        tensor.requires_grad_()
    cotangent = torch.randn_like(c.x)
    got = torch.autograd.grad(experts(*c), inputs, cotangent)
    arrays = [tensor.detach().numpy() for tensor in c]
    parameters = reference.ExpertParameters(*arrays[3:])
    d_x, d_weights, d = reference.experts_vjp(*arrays[:3], parameters, cotangent.numpy())
    for ours, theirs in zip(
        got, (d_x, d_weights, d.gate_proj, d.up_proj, d.down_proj), strict=True
    ):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-12)


def test_gradcheck() -> None:
    c = case(6, 5, 2)
    inputs = tuple(t.requires_grad_() for t in (c.x, c.weights, c.gate, c.up, c.down))
    assert torch.autograd.gradcheck(lambda x, w, *p: experts(x, c.ids, w, *p), inputs)


def test_each_gradient_alone() -> None:
    c = case(8, 5, 2)
    for position in (0, 2, 3, 4, 5):
        fresh = case(8, 5, 2)
        leaf = fresh[position].requires_grad_()
        (alone,) = torch.autograd.grad(experts(*fresh).square().sum(), leaf)
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in c]
        (among,) = torch.autograd.grad(experts(*leaves).square().sum(), leaves[position])
        assert torch.equal(alone, among)


def test_experts_without_tokens_get_exactly_zero_gradient() -> None:
    c = case(20, 9, 3)
    ids = c.ids % 4 + (c.ids % 4 >= 2) * 3  # experts 0, 1, 5 and 6 only
    parameters = [t.requires_grad_() for t in (c.gate, c.up, c.down)]
    with nan_memory():
        out = experts(c.x, ids, c.weights, *parameters)
        gradients = torch.autograd.grad(out.sum(), parameters)
    for gradient in gradients:
        idle = gradient[[2, 3, 4, 7, 8]]
        assert torch.equal(idle, torch.zeros_like(idle))
        assert (gradient[[0, 1, 5, 6]] != 0).any((1, 2)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 13, 257])
def test_everything_on_one_expert_equals_that_expert(n: int) -> None:
    c = case(6, n, 1)
    for j in {0, n // 2, n - 1}:
        ids = torch.full((6, 1), j)
        alone = experts(
            c.x, ids * 0, c.weights, c.gate[j : j + 1], c.up[j : j + 1], c.down[j : j + 1]
        )
        torch.testing.assert_close(experts(c.x, ids, *c[2:]), alone, rtol=1e-13, atol=1e-14)


def test_an_id_that_occurs_twice_counts_twice() -> None:
    c = case(4, 3, 2)
    ids = torch.zeros(4, 2, dtype=torch.int64)
    torch.testing.assert_close(experts(c.x, ids, *c[2:]), dense(c._replace(ids=ids)))


def test_strides_and_integer_widths_change_nothing() -> None:
    c = case(12, 6, 3, torch.float32)
    wide_ids = torch.full((12, 8), 99)
    wide_ids[:, 1:7:2] = c.ids
    strided = Case(
        c.x.t().contiguous().t(),
        wide_ids[:, 1:7:2].to(torch.int32),
        c.weights.repeat(1, 2)[:, :3],
        c.gate.transpose(1, 2).contiguous().transpose(1, 2),
        c.up.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.cat((c.down, c.down), dim=2)[:, :, :3],
    )
    torch.testing.assert_close(experts(*strided), experts(*c), rtol=1e-5, atol=1e-6)


def test_expanded_cotangents() -> None:
    c = case(12, 6, 3)
    leaves = [t.requires_grad_() for t in (c.x, c.gate)]
    from_sum = torch.autograd.grad(experts(*c).sum(), leaves)
    from_ones = torch.autograd.grad(experts(*c), leaves, torch.ones(12, 5, dtype=torch.float64))
    for one, other in zip(from_sum, from_ones, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeated_calls_over_poisoned_memory_are_bit_equal(dtype: torch.dtype) -> None:
    c = case(64, 16, 4, dtype, width=32, hidden=48)
    leaves = [t.requires_grad_(t.is_floating_point()) for t in c]
    floats = [leaves[0], *leaves[2:]]

    def run() -> list[torch.Tensor]:
        out = experts(*leaves)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), floats)]

    first = run()
    with nan_memory():
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


def test_bfloat16_rounds_each_stage_once() -> None:
    c = case(50, 9, 4, torch.bfloat16, width=64, hidden=96)
    out = experts(*c)
    assert out.dtype == torch.bfloat16
    roundoff = 2.0**-8
    x, gate, up, down = (t.double().numpy() for t in (c.x, c.gate, c.up, c.down))
    bound = np.zeros((50, 64))
    for slot in range(4):
        for i in range(50):
            j = int(c.ids[i, slot])
            g, u = gate[j] @ x[i], up[j] @ x[i]
            # |d softcap| <= 1 and |d silu| <= 1.1: rounding g and u moves the product by so much.
            hidden = np.minimum(np.abs(g), 4.0) * np.minimum(np.abs(u), 25.0)
            moved = 1.1 * np.abs(g) * np.abs(u) + np.minimum(np.abs(g), 4) * np.abs(u) + hidden
            y = np.abs(down[j]) @ (moved * roundoff) + roundoff * np.abs(down[j] @ hidden)
            bound[i] += float(c.weights[i, slot]) * (y + roundoff * np.abs(down[j]) @ hidden)
    expected = dense(c).numpy()
    error = np.abs(out.double().numpy() - expected)
    assert np.all(error <= bound + roundoff * np.abs(expected))
    assert error.max() > 0


def test_slots_are_added_in_float32() -> None:
    ids = torch.arange(16).view(1, 16)
    plan = dispatch(ids, 16)
    rows = torch.ones(16, 1, dtype=torch.bfloat16)
    rows[0] = 256.0  # the next bfloat16 is 258, so adding ones to it in bfloat16 does nothing
    out = combine(rows, torch.ones(1, 16), plan)
    assert out.item() == 272.0
    x = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    (d_x,) = torch.autograd.grad(gather(x, plan), x, rows)
    assert d_x.item() == 272.0


def test_weights_are_not_rounded_to_bfloat16() -> None:
    ids = torch.arange(2).view(1, 2)
    rows = torch.tensor([[128.0], [-128.0]]).bfloat16()
    weights = torch.tensor([[0.5 + 2.0**-12, 0.5]])
    assert combine(rows, weights, dispatch(ids, 2)).item() == 2.0**-5


def test_dispatch_is_a_stable_sort() -> None:
    ids = torch.tensor([[2, 0], [0, 2], [5, 0]])
    plan = dispatch(ids, 6)
    assert plan.counts == [3, 0, 2, 0, 0, 1]
    assert plan.token.tolist() == [0, 1, 2, 0, 1, 2]
    assert plan.rank.tolist() == [[3, 0], [1, 4], [5, 2]]


def test_grouped_linear_writes_every_row() -> None:
    x, weight = torch.ones(4, 3), torch.arange(24.0).view(4, 2, 3)
    with nan_memory():
        out = grouped_linear(x, weight, [0, 3, 0, 1])
    assert out.tolist() == [[21.0, 30.0]] * 3 + [[57.0, 66.0]]


@pytest.mark.parametrize("wrong", [-1, 6, 2**40])
def test_ids_out_of_range_are_named(wrong: int) -> None:
    c = case(4, 6, 2)
    ids = c.ids.clone()
    ids[2, 1] = wrong
    with pytest.raises(IndexError, match=rf"expert ids must be in 0 … 5, got .*{wrong}"):
        experts(c.x, ids, *c[2:])


def test_wrong_shapes_and_formats_are_named() -> None:
    c = case(4, 6, 2)
    with pytest.raises(ValueError, match=r"x has shape \(3, 5\); expected \(4, 5\)"):
        experts(c.x[:3], *c[1:])
    with pytest.raises(ValueError, match=r"weights has shape \(4, 1\); expected \(4, 2\)"):
        experts(*c._replace(weights=c.weights[:, :1]))
    with pytest.raises(ValueError, match=r"down_proj has shape \(6, 3, 5\); expected \(6, 5, 3\)"):
        experts(*c._replace(down=c.down.transpose(1, 2)))
    with pytest.raises(TypeError, match=r"expert ids must be integers, got torch\.float64"):
        experts(*c._replace(ids=c.ids.double()))


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_module_loads_one_matrix_per_expert_or_stacks(names: tuple[str, str, str]) -> None:
    c = case(10, 4, 2, torch.float32)
    module = Experts(5, 3, 4)
    assert set(module.state_dict()) == {"gate_proj", "up_proj", "down_proj"}
    state = {
        f"{j}.{name}.weight": stack[j]
        for name, stack in zip(names, (c.gate, c.up, c.down), strict=True)
        for j in range(4)
    }
    module.load_state_dict(dict(state))
    assert torch.equal(module(c.x, c.ids, c.weights), experts(*c))
    twin = Experts(5, 3, 4)
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin.down_proj, c.down)
    del state[f"2.{names[0]}.weight"]
    with pytest.raises(RuntimeError, match="gate_proj"):
        module.load_state_dict(state)
    assert "4, latent_dim=5, expert_dim=3" in repr(module)
