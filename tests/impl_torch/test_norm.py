from __future__ import annotations

import numpy as np
import pytest
import torch

from impl_torch.norm import RMSNorm, rms_norm


def naive(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight.double()


def rows(dtype: torch.dtype, amplitude: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, 4, 19, generator=generator) * amplitude
    return x.to(dtype), torch.randn(19, generator=generator).to(dtype)


@pytest.mark.parametrize("amplitude", [1e-30, 1e-4, 1e-2, 1.0, 100.0, 1e4, 1e30, 1e37])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # The mean of 19 squares, a root, a quotient and a product in float32; one more rounding.
    [(torch.float64, 2e-15), (torch.float32, 15 * 2.0**-24), (torch.bfloat16, 1.01 * 2.0**-8)],
)
def test_value_at_every_amplitude(dtype: torch.dtype, tolerance: float, amplitude: float) -> None:
    x, weight = rows(dtype, amplitude)
    out = rms_norm(x, weight, eps=1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), naive(x, weight, 1e-5), rtol=tolerance, atol=1e-37)


def test_rows_above_one_get_the_same_digits_as_the_literal_formula() -> None:
    x, weight = rows(torch.float64, 50.0)
    literal = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    assert torch.equal(rms_norm(x, weight, eps=1e-5), literal)


def test_large_eps_and_weight_make_it_the_identity() -> None:
    x, _ = rows(torch.float32, 100.0)
    assert torch.equal(rms_norm(x, torch.full((19,), 2.0**20), eps=2.0**40), x)


def test_gradcheck() -> None:
    for amplitude in (1.0, 30.0):
        x, weight = rows(torch.float64, amplitude)
        inputs = (x[:2].requires_grad_(), weight.requires_grad_())
        assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, eps=0.1), inputs)


def test_a_poisoned_row_stays_alone() -> None:
    x = torch.ones(3, 5)
    x[1, 2] = torch.nan
    x[2, 0] = torch.inf
    out = rms_norm(x, torch.ones(5))
    assert torch.isnan(out[1]).all()
    assert torch.isfinite(out[0]).all()
    assert torch.equal(out[2, 1:], torch.zeros(4))


def test_strides_and_empty_batches() -> None:
    x, weight = rows(torch.float32, 1.0)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    torch.testing.assert_close(rms_norm(strided, weight), rms_norm(x, weight), rtol=1e-6, atol=0)
    assert rms_norm(torch.zeros(0, 19), weight).shape == (0, 19)


def test_module_and_errors() -> None:
    norm = RMSNorm(19, eps=0.5)
    x, weight = rows(torch.float32, 1.0)
    with torch.no_grad():
        norm.weight.copy_(weight)
    assert torch.equal(norm(x), rms_norm(x, weight, eps=0.5))
    assert "19, eps=0.5" in repr(norm)
    with pytest.raises(ValueError, match=r"weight has shape \(18,\); x asks for \(19,\)"):
        rms_norm(x, weight[1:])
    with pytest.raises(TypeError, match="floating-point"):
        rms_norm(torch.tensor(np.arange(3)), weight[:3])
