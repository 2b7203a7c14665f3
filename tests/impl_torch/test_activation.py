from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import reference_numpy as reference
from impl_torch.activation import sigmoid, situ_glu, softcap, swiglu

INF = float("inf")
SUBNORMAL = 2.0**-149
EXTREMES = [0.0, -0.0, 1e-45, 1e-38, 1e-10, 0.5, 4.0, 36.0, 88.8, 104.0, 1e4, 3e38, INF]


def naive(g: np.ndarray, u: np.ndarray, b1: float = 4.0, b2: float = 25.0) -> np.ndarray:
    small = np.exp(-np.abs(g))
    s = np.where(g >= 0, 1.0, small) / (1.0 + small)
    return b1 * np.tanh(g / b1) * s * b2 * np.tanh(u / b2)


def sweep(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates and ups over all magnitudes, as values that the format holds."""
    rng = np.random.default_rng(3)
    size = 20_000
    g, u = (rng.choice([-1.0, 1.0], size) * 10 ** rng.uniform(-44, 38, size) for _ in range(2))
    g[: size // 2] = rng.uniform(-60, 20, size // 2)
    u[: size // 4] = rng.uniform(-200, 200, size // 4)
    return torch.tensor(g).to(dtype), torch.tensor(u).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "roundoff"), [(torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8)]
)
def test_value_is_relatively_accurate_at_every_magnitude(
    dtype: torch.dtype, roundoff: float
) -> None:
    g, u = sweep(dtype)
    out = situ_glu(g, u)
    assert out.dtype == dtype
    expected = naive(g.double().numpy(), u.double().numpy())
    error = np.abs(out.double().numpy() - expected)
    # Two tanh, one exp (a unit or so each) and eight more roundings in float32, one in storage.
    relative = 12 * 2.0**-24 + roundoff
    # Half a unit of a subnormal sigmoid counts times both caps, of the gate's product times one.
    absolute = (
        0.5 * (4 * 25 + 25 + 1) * SUBNORMAL + float(torch.finfo(dtype).smallest_normal) * roundoff
    )
    bound = relative * np.abs(expected) + absolute
    assert np.all(error <= bound)


def test_float64_agrees_with_the_reference_and_its_gradient() -> None:
    g, u = sweep(torch.float64)
    g.requires_grad_()
    u.requires_grad_()
    cotangent = torch.linspace(-1, 1, g.numel(), dtype=torch.float64)
    out = situ_glu(g, u, beta_gate=3.0, beta_up=7.0)
    d_g, d_u = torch.autograd.grad(out, (g, u), cotangent)
    arrays = [t.detach().numpy() for t in (g, u, cotangent)]
    betas = {"beta_gate": 3.0, "beta_up": 7.0}
    expected = reference.situ_glu(*arrays[:2], **betas)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-14, atol=1e-300)
    for got, want in zip((d_g, d_u), reference.situ_glu_vjp(*arrays, **betas), strict=True):
        # The reference's 1 - tanh^2 is good to a unit of 1, ours to a unit of itself.
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-13, atol=3e-14)


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(5, 7, dtype=torch.float64, generator=generator) * 6
    u = torch.randn(5, 7, dtype=torch.float64, generator=generator) * 30
    g[0, 0] = u[0, 1] = 0.0
    inputs = (g.requires_grad_(), u.requires_grad_())
    assert torch.autograd.gradcheck(situ_glu, inputs)
    assert torch.autograd.gradcheck(swiglu, inputs)
    assert torch.autograd.gradcheck(sigmoid, inputs[:1])
    assert torch.autograd.gradcheck(lambda z: softcap(z, 4.0), inputs[:1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_input_gives_nan_in_value_or_gradient(dtype: torch.dtype) -> None:
    values = EXTREMES + [-x for x in EXTREMES]
    g, u, c = torch.tensor(list(itertools.product(values, values, [1.0, 3e38]))).to(dtype).unbind(1)
    g, u = g.clone().requires_grad_(), u.clone().requires_grad_()
    for betas in ({}, {"beta_gate": 1e30, "beta_up": 1e30}, {"beta_gate": 1e-3}):
        out = situ_glu(g, u, **betas)
        gradients = torch.autograd.grad(out, (g, u), c)
        assert not torch.isnan(out).any()
        assert not any(torch.isnan(gradient).any() for gradient in gradients)


def test_infinite_input_gives_the_limits() -> None:
    g = torch.tensor([INF, INF, -INF, -INF, INF, -INF])
    u = torch.tensor([INF, -INF, INF, -INF, 0.0, 1.0])
    out = situ_glu(g, u)
    assert torch.equal(out, torch.tensor([100.0, -100.0, 0.0, 0.0, 0.0, 0.0]))
    assert torch.equal(torch.signbit(out[2:4]), torch.tensor([True, False]))


def test_nan_stays_in_its_own_element() -> None:
    g, u = torch.ones(40), torch.ones(40)
    g[3] = u[17] = torch.nan
    wrong = torch.isnan(situ_glu(g, u)).nonzero().flatten().tolist()
    assert wrong == [3, 17]


@pytest.mark.parametrize("betas", [(4.0, 25.0), (0.1, 0.7), (3.3, 1 / 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_never_beyond_the_product_of_the_caps(
    dtype: torch.dtype, betas: tuple[float, float]
) -> None:
    g, u = sweep(dtype)
    cap = (torch.tensor(betas[0]) * torch.tensor(betas[1])).to(dtype)
    out = situ_glu(g, u, beta_gate=betas[0], beta_up=betas[1]).abs()
    assert out.max() == cap
    assert (out <= cap).all()


def test_derivatives_stay_positive_where_tanh_has_rounded_to_one() -> None:
    u = torch.tensor([250.0, 500.0, 1000.0], requires_grad=True)
    assert (torch.tanh(u / 25) == 1).all()
    (d_u,) = torch.autograd.grad(situ_glu(torch.full((3,), 4.0), u).sum(), u)
    expected = 4 * np.tanh(1) / (1 + np.exp(-4)) / np.cosh([10.0, 20.0, 40.0]) ** 2
    np.testing.assert_allclose(d_u.numpy(), expected, rtol=1e-6)


def test_softcap_is_the_identity_on_subnormals_and_for_large_beta() -> None:
    z = torch.tensor([1e-45, -3e-45, 1e-39, 1e-20])
    assert torch.equal(softcap(z, 25.0), z)
    z = torch.linspace(-50, 50, 101)
    assert torch.equal(softcap(z, 1e38), z)
    torch.testing.assert_close(situ_glu(z, z, beta_gate=1e38, beta_up=1e38), swiglu(z, z))


def test_softcap_joins_its_two_branches_monotonically() -> None:
    join = np.float32(4.0 * 0.5 * 2.0**-11.5)
    z = torch.tensor(join) * (1 + torch.arange(-200, 201) * 2.0**-23)
    capped = softcap(z, 4.0)
    assert (capped.diff() >= -(2.0**-23) * join).all()
    assert ((capped - z).abs() <= 2.0**-23 * z).all()


def test_sigmoid_keeps_its_tail() -> None:
    z = torch.linspace(-103, -60, 1000)
    expected = 1 / (1 + np.exp(-z.double().numpy()))
    error = np.abs(sigmoid(z).double().numpy() - expected)
    assert np.all(error <= 3 * 2.0**-24 * expected + 2.0**-149)
    assert sigmoid(z[:1]) > 0


def test_strided_and_empty_inputs_equal_contiguous_ones() -> None:
    g, u = sweep(torch.float32)
    g, u = g.view(100, -1).t(), u.view(-1, 100)[:, ::1]
    g, u = g[:, ::3], u[:, ::3]
    expected = situ_glu(g.contiguous(), u.contiguous())
    torch.testing.assert_close(situ_glu(g, u), expected, rtol=1e-6, atol=1e-44)
    assert situ_glu(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)
    assert situ_glu(torch.tensor(1.0), torch.tensor(1.0)).shape == ()


@pytest.mark.parametrize("beta", [0.0, -1.0, INF, float("nan"), 1e300])
def test_meaningless_caps_are_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta_up must be positive and finite"):
        situ_glu(torch.ones(2), torch.ones(2), beta_up=beta)


def test_unequal_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gate has shape \(2,\) and up \(1,\)"):
        situ_glu(torch.ones(2), torch.ones(1))
    with pytest.raises(TypeError, match=r"gate is torch\.float32 and up torch\.float64"):
        swiglu(torch.ones(2), torch.ones(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="expected a floating-point tensor"):
        situ_glu(torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
