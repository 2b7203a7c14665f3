"""SiTU-GLU against 50-digit arithmetic, at its limits, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from reference_numpy.activation import sigmoid, situ_glu, situ_glu_vjp, softcap, swiglu

UNIT = 2.0**-53
MAGNITUDES = [0.0, 1e-300, 1e-45, 1e-8, 1e-3, 0.3, 1.0, 4.0, 17.0, 25.0, 110.0, 600.0, 3e38]
SIGNED = [sign * size for size in MAGNITUDES for sign in (1.0, -1.0)]


def exact_sigmoid(z: float) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-mpmath.mpf(z)))


def exact_softcap(z: float, beta: float) -> mpmath.mpf:
    return beta * mpmath.tanh(mpmath.mpf(z) / beta)


def exact_situ(gate: float, up: float, beta_gate: float, beta_up: float) -> mpmath.mpf:
    return exact_softcap(gate, beta_gate) * exact_sigmoid(gate) * exact_softcap(up, beta_up)


def pairs() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    gate, up = np.meshgrid(SIGNED, SIGNED)
    return gate.ravel(), up.ravel()


def assert_relative(actual: NDArray[np.float64], exact: list[mpmath.mpf], units: float) -> None:
    """Relative error at most ``units`` roundoffs, plus one for results that are subnormal."""
    for got, want in zip(actual, exact, strict=True):
        allowed = units * UNIT * abs(want) + mpmath.mpf(2) ** -1074
        assert abs(mpmath.mpf(float(got)) - want) <= allowed, (got, want)


@pytest.fixture(autouse=True)
def fifty_digits() -> object:
    with mpmath.workdps(50):
        yield


def test_sigmoid_keeps_its_relative_accuracy_in_both_tails() -> None:
    z = np.array([-744.0, -110.0, -40.0, -18.5, -1.0, -1e-9, 0.0, 1e-9, 0.7, 18.0, 37.0, 700.0])
    # exp errs by 1 ulp = 2 units at most, the sum and the quotient by 1 each.
    assert_relative(sigmoid(z), [exact_sigmoid(value) for value in z], units=4)


def test_sigmoid_is_exact_where_it_saturates() -> None:
    z = np.array([-np.inf, -1e8, 0.0, 1e4, np.inf])
    np.testing.assert_array_equal(sigmoid(z), [0.0, 0.0, 0.5, 1.0, 1.0])


def test_situ_glu_is_relatively_accurate_everywhere() -> None:
    gate, up = pairs()
    exact = [exact_situ(g, u, 4.0, 25.0) for g, u in zip(gate, up, strict=True)]
    # Two tanh of a rounded quotient (1 + 2 each), three more factors, sigmoid 4, products 4.
    with np.errstate(under="ignore"):
        assert_relative(situ_glu(gate, up), exact, units=16)


def test_situ_glu_at_a_hand_computed_point() -> None:
    # 4 tanh(1/2) sigmoid(2) 25 tanh(2): tanh(1/2) = (e - 1)/(e + 1), tanh(2) = 1 - 2/(e^4 + 1)
    value = situ_glu(np.array(2.0), np.array(50.0))
    assert value == pytest.approx(39.238_953_585_135_66, rel=1e-14)


def test_infinities_give_the_limits() -> None:
    gate = np.array([np.inf, np.inf, -np.inf, -np.inf, np.inf, 0.0, 2.0])
    up = np.array([np.inf, -np.inf, np.inf, -np.inf, 0.0, np.inf, -np.inf])
    at_two = 4 * np.tanh(0.5) / (1 + np.exp(-2.0)) * -25
    out = situ_glu(gate, up)
    np.testing.assert_allclose(out, [100, -100, 0, 0, 0, 0, at_two], rtol=1e-15)
    np.testing.assert_array_equal(np.signbit(out[2:4]), [True, False])
    for d in situ_glu_vjp(gate, up, np.ones(7)):
        assert np.isfinite(d).all()


def test_nan_stays_in_its_own_element() -> None:
    out = situ_glu(np.array([1.0, np.nan, 1.0]), np.array([1.0, 1.0, np.nan]))
    np.testing.assert_array_equal(np.isnan(out), [False, True, True])


def test_the_bound_of_equation_19_holds_and_is_attained() -> None:
    out = situ_glu(*pairs(), beta_gate=3.0, beta_up=7.0)
    assert np.abs(out).max() == 21.0


def test_large_betas_give_swiglu() -> None:
    gate, up = np.array([-3.0, 0.5, 8.0]), np.array([2.0, -4.0, 9.0])
    # The relative distance is z^2 / (3 beta^2), below 1e-14 for z < 10 and beta = 1e8.
    np.testing.assert_allclose(
        situ_glu(gate, up, beta_gate=1e8, beta_up=1e8), swiglu(gate, up), rtol=1e-14
    )


def test_softcap_is_the_identity_near_zero_and_flat_far_out() -> None:
    z = np.array([1e-200, -1e-9, 1e30, -1e30])
    np.testing.assert_array_equal(softcap(z, 4.0), [1e-200, -1e-9, 4.0, -4.0])


def test_gradients_against_fifty_digits() -> None:
    gate = np.array([-60.0, -9.0, -2.4, -1e-5, 0.0, 0.3, 3.0, 20.0, 48.0])
    up = np.array([75.0, -30.0, 1e-6, 2.0, -4.0, 60.0, -0.5, 10.0, 1.0])
    cotangent = np.array([1.0, -2.0, 0.5, 3.0, 1.0, 1e-3, -1.0, 7.0, 1e5])
    d_gate, d_up = situ_glu_vjp(gate, up, cotangent)
    for g, u, c, got_gate, got_up in zip(gate, up, cotangent, d_gate, d_up, strict=True):
        cap_gate, cap_up = exact_softcap(g, 4.0), exact_softcap(u, 25.0)
        sigma, slope = exact_sigmoid(g), exact_sigmoid(g) * exact_sigmoid(-g)
        d_cap_gate, d_cap_up = 1 - (cap_gate / 4) ** 2, 1 - (cap_up / 25) ** 2
        want_gate = c * cap_up * (d_cap_gate * sigma + cap_gate * slope)
        want_up = c * cap_gate * sigma * d_cap_up
        # 1 - t^2 carries the absolute error of t^2, so it counts as 1 here.
        size_gate = abs(c * cap_up) * (sigma + 4 * slope)
        assert abs(got_gate - want_gate) <= 24 * UNIT * size_gate
        assert abs(got_up - want_up) <= 24 * UNIT * abs(c * cap_gate * sigma)


def test_gradients_against_differences(check_gradient: Callable[..., None]) -> None:
    rng = np.random.default_rng(1)
    gate, up, cotangent = rng.normal(size=(3, 2, 5)) * np.array([2.0, 4.0, 1.0])[:, None, None]
    betas = {"beta_gate": 1.5, "beta_up": 3.0}
    d_gate, d_up = situ_glu_vjp(gate, up, cotangent, **betas)

    def value() -> float:
        return float(np.sum(cotangent * situ_glu(gate, up, **betas)))

    check_gradient(value, gate, d_gate)
    check_gradient(value, up, d_up)


def test_the_softcap_stays_alive_where_a_clamp_is_dead() -> None:
    # 1 - tanh^2 is representable until tanh rounds to 1, at about 18.7 betas in float64.
    up = np.array([26.0, 100.0, 18.0 * 25.0])
    assert (situ_glu_vjp(np.ones(3), up, np.ones(3))[1] > 0).all()


@pytest.mark.parametrize("beta", [0.0, -4.0, np.nan, np.inf])
@pytest.mark.parametrize("name", ["beta_gate", "beta_up"])
def test_a_senseless_beta_is_rejected_by_name(name: str, beta: float) -> None:
    with pytest.raises(ValueError, match=f"{name} = {beta} must be positive and finite"):
        situ_glu(np.ones(2), np.ones(2), **{name: beta})
    with pytest.raises(ValueError, match=f"^beta = {beta} must be positive"):
        softcap(np.ones(2), beta)
    with pytest.raises(ValueError, match=name):
        situ_glu_vjp(np.ones(2), np.ones(2), np.ones(2), **{name: beta})


def test_unequal_shapes_are_rejected_and_never_broadcast() -> None:
    with pytest.raises(ValueError, match=r"up has shape \(1,\), but gate has \(2,\)"):
        situ_glu(np.ones(2), np.ones(1))
    with pytest.raises(ValueError, match="cotangent has shape"):
        situ_glu_vjp(np.ones(2), np.ones(2), np.ones(()))
    with pytest.raises(ValueError, match="up has shape"):
        swiglu(np.ones(2), np.ones((2, 1)))
