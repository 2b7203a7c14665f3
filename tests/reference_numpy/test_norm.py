"""RMSNorm on hand-computed rows, at its limits, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from reference_numpy.norm import rms_norm, rms_norm_vjp


def test_a_hand_computed_row() -> None:
    # mean(3^2, 4^2) = 12.5; with eps = 3.5 the root is 4, and only then does the weight act.
    out = rms_norm(np.array([[3.0, -4.0]]), np.array([2.0, 10.0]), eps=3.5)
    np.testing.assert_array_equal(out, [[1.5, -10.0]])


def test_eps_is_added_to_the_mean_inside_the_root() -> None:
    x = np.full((1, 4), 1e-3)
    # mean square 1e-6 against eps 1e-5: the output is sqrt(1/11), far from 1.
    np.testing.assert_allclose(rms_norm(x, np.ones(4)), np.sqrt(1 / 11), rtol=1e-14)


def test_a_huge_eps_makes_the_norm_the_identity() -> None:
    x = np.array([[100.0, -3.0, 0.25]])
    out = rms_norm(x, np.full(3, 2.0**20), eps=2.0**40)
    np.testing.assert_allclose(out, x, rtol=2e-9)  # mean square / (2 eps) = 1.5e-9


def test_eps_may_be_zero() -> None:
    out = rms_norm(np.array([[2.0, -2.0]]), np.array([1.0, 3.0]), eps=0.0)
    np.testing.assert_array_equal(out, [[1.0, -3.0]])


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 0, 3), (2, 4, 3)])
def test_leading_axes_are_free(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape)
    weight = np.array([1.0, -2.0, 0.5])
    out = rms_norm(x, weight)
    assert out.shape == shape
    flat = rms_norm(x.reshape(-1, 3), weight)
    np.testing.assert_array_equal(out.reshape(-1, 3), flat)
    d_x, d_weight = rms_norm_vjp(x, weight, np.ones(shape))
    assert d_x.shape == shape
    assert d_weight.shape == (3,)


@pytest.mark.parametrize("eps", [1e-5, 0.7])
def test_gradients_against_differences(check_gradient: Callable[..., None], eps: float) -> None:
    rng = np.random.default_rng(3)
    x, cotangent = rng.normal(size=(2, 2, 3, 4))
    weight = rng.normal(size=4)
    d_x, d_weight = rms_norm_vjp(x, weight, cotangent, eps=eps)

    def value() -> float:
        return float(np.sum(cotangent * rms_norm(x, weight, eps=eps)))

    check_gradient(value, x, d_x)
    check_gradient(value, weight, d_weight)


def test_the_gradient_at_zero_is_linear() -> None:
    d_x, d_weight = rms_norm_vjp(np.zeros((1, 2)), np.array([3.0, 5.0]), np.ones((1, 2)), eps=4.0)
    np.testing.assert_array_equal(d_x, [[1.5, 2.5]])
    np.testing.assert_array_equal(d_weight, [0.0, 0.0])


def test_errors_name_the_argument() -> None:
    x = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), expected \(3\)"):
        rms_norm(x, np.ones(2))
    with pytest.raises(ValueError, match=r"eps = -1\.0 must not be negative"):
        rms_norm(x, np.ones(3), eps=-1.0)
    with pytest.raises(ValueError, match="last axis to average over"):
        rms_norm(np.ones((2, 0)), np.ones(0))
    with pytest.raises(ValueError, match=r"cotangent has shape \(2, 1\)"):
        rms_norm_vjp(x, np.ones(3), np.ones((2, 1)))
