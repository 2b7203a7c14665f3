"""The reference's formulas on balls: finite and sharp over the whole range of amplitudes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference_numpy as reference
from properties.rounding import Arithmetic, Ball, ratio
from tests.rounding.simulation import FORMATS, Machine, drawn, machines, nearest

AMPLITUDES = 10.0 ** np.arange(-30.0, 31.0, 2.0)
WIDE_RANGE = ("float32", "bfloat16", "mixed", "rounded in memory", "float64")
MACHINES = 30


def spread_out(arithmetic: Arithmetic) -> Any:
    """Both signs of every amplitude, in the format."""
    return nearest(np.concatenate([-AMPLITUDES[::-1], AMPLITUDES]), arithmetic.computed)


def unit(arithmetic: Arithmetic) -> float:
    """The unit roundoff of the coarser format, that of elementwise arithmetic or of memory."""
    return max(arithmetic.computed.roundoff, arithmetic.stored.roundoff)


def units(result: Ball) -> Any:
    """The radius in units, relative to the value, without the underflow."""
    number = result.arithmetic.computed
    above = np.maximum(result.radius - 1e4 * number.underflow, 0.0)
    size = np.maximum(np.abs(result.value), 1e4 * number.underflow)
    return above / size / unit(result.arithmetic)


@pytest.mark.parametrize("format_name", WIDE_RANGE)
def test_activations_are_known_to_a_few_units_at_every_amplitude(format_name: str) -> None:
    arithmetic = FORMATS[format_name]
    x = Ball.exact(spread_out(arithmetic), arithmetic)
    # In float64 the reference's own errors count as much as the implementation's.
    own = 4.0 if format_name == "float64" else 1.1
    assert (units(reference.softcap(x, 4.0)) <= own * 14.0).all()
    assert (units(reference.softcap(x, 25.0)) <= own * 14.0).all()
    argument = np.minimum(np.abs(x.value), 800.0) * (x.value < 0)
    assert (units(reference.sigmoid(x)) <= own * (12.0 + 2.0 * argument)).all()
    ones = Ball.exact(np.ones(x.shape), arithmetic)
    assert (units(reference.situ_glu(x, ones)) <= own * (45.0 + 3.0 * argument)).all()
    assert (units(reference.situ_glu(ones, x)) <= own * 45.0).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_activations_at_infinity_are_certain(format_name: str) -> None:
    arithmetic = FORMATS[format_name]
    ends = Ball.exact([np.inf, -np.inf], arithmetic)
    for function, expected in (
        (lambda x: reference.softcap(x, 4.0), [4.0, -4.0]),
        (reference.sigmoid, [1.0, 0.0]),
    ):
        result = function(ends)
        np.testing.assert_array_equal(result.value, expected)
        np.testing.assert_array_equal(result.radius, 0.0)
    gate, up = (
        Ball.exact(np.array(v), arithmetic) for v in np.meshgrid([np.inf, -np.inf], [-np.inf, 3.0])
    )
    result = reference.situ_glu(gate, up)
    assert not np.isnan(result.value).any()
    assert (result.radius <= 64 * unit(arithmetic) * np.abs(result.value)).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_activations_of_unknown_numbers_are_bounded(format_name: str) -> None:
    arithmetic = FORMATS[format_name]
    x = Ball(np.array([0.0, 3.0, -40.0]), np.full(3, np.inf), arithmetic)
    for result, bound in (
        (reference.sigmoid(x), 1.0),
        (reference.softcap(x, 4.0), 4.0),
        (reference.situ_glu(x, x), 100.0),
    ):
        assert not np.isnan(result.value).any()
        assert (result.radius <= 2.2 * bound).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_nan_stays_in_its_element(format_name: str) -> None:
    x = Ball.exact([np.nan, 1.0, -2.0], FORMATS[format_name])
    for result in (reference.situ_glu(x, x[::-1]), reference.sigmoid(x), *gradients(x)):
        where = np.isnan(result.value)
        np.testing.assert_array_equal(result.radius[where], 0.0)
        assert where.sum() in (1, 2)
        assert np.isfinite(result.radius).all()


def gradients(x: Ball) -> tuple[Any, Any]:
    ones = Ball.exact(np.ones(x.shape), x.arithmetic)
    return reference.situ_glu_vjp(x, ones, ones)


@pytest.mark.parametrize("format_name", WIDE_RANGE)
def test_norms_are_known_wherever_squares_do_not_overflow(format_name: str) -> None:
    arithmetic = FORMATS[format_name]
    rng = np.random.default_rng(1)
    weight = Ball.exact(np.ones(16), arithmetic)
    limit = 18.0 if format_name != "float64" else 30.0
    for amplitude in AMPLITUDES:
        x = nearest(amplitude * rng.uniform(0.5, 1.0, (2, 16)), arithmetic.computed)
        result = reference.rms_norm(Ball.exact(x, arithmetic), weight)
        if np.log10(amplitude) <= limit:
            assert np.isfinite(result.radius).all()
            assert (units(result) <= 100.0).all()
        else:  # a literal mean of squares is infinite: nothing is promised
            assert np.isinf(result.radius).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_combine_weights_are_known_for_every_finite_logit(format_name: str) -> None:
    arithmetic = FORMATS[format_name]
    logits = np.array([[0.5, -1.0, 3.0], [-110.0, -110.0, -8.0], [30.0, 1e4, -2.0]])
    scores = reference.sigmoid(Ball.exact(logits, arithmetic))
    ids = np.array([[0, 1], [2, 0], [1, 0]])
    weights = reference.combine_weights(scores, ids)
    assert (weights.radius[[0, 2]] < 40 * arithmetic.computed.roundoff + 1e-14).all()
    if format_name != "float16":  # exp(-8) is nearly lost there
        assert weights.radius[1, 0] < 60 * arithmetic.computed.roundoff + 1e-14
    np.testing.assert_allclose(weights.value.sum(axis=1), 1.0, rtol=1e-15)


# Simulated implementations ------------------------------------------------------------------------


def situ_on(machine: Machine, gate: Any, up: Any) -> Any:
    def capped(x: Any, beta: float) -> Any:
        return machine.multiply(beta, machine.tanh(machine.divide(x, beta)))

    product = machine.multiply(capped(gate, 4.0), machine.sigmoid(gate))
    return machine.store(machine.multiply(product, capped(up, 25.0)))


def norm_on(machine: Machine, x: Any, weight: Any) -> Any:
    mean_square = machine.mean(machine.square(x))[..., None]
    normalised = machine.over_root(x, machine.add(mean_square, machine.read(1e-5)))
    return machine.store(machine.multiply(normalised, weight))


def weights_on(machine: Machine, x: Any, y: Any) -> Any:
    del y
    scores = machine.sigmoid(x)
    return machine.divide(scores, machine.add(machine.sum(scores)[..., None], 1e-20))


def weights_on_balls(x: Any, y: Any) -> Any:
    del y
    ids = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    return reference.combine_weights(reference.sigmoid(x), ids)


SIMULATED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "situ_glu": (reference.situ_glu, situ_on),
    "rms_norm": (lambda x, w: reference.rms_norm(x, w[0]), lambda m, x, w: norm_on(m, x, w[0])),
    "weights": (weights_on_balls, weights_on),
}


@pytest.mark.parametrize("name", SIMULATED)
@pytest.mark.parametrize("format_name", FORMATS)
def test_simulated_implementations_stay_inside_and_come_near_the_edge(
    name: str, format_name: str, record_property: Callable[[str, object], None]
) -> None:
    arithmetic = FORMATS[format_name]
    rng = np.random.default_rng(5)
    on_balls, on_machine = SIMULATED[name]
    worst = 0.0
    for machine in machines(arithmetic, rng, MACHINES):
        x = drawn(arithmetic, rng, (30, 8), (-3.0, 1.5))
        y = drawn(arithmetic, rng, (30, 8), (-3.0, 1.5))
        ball = on_balls(Ball.exact(x, arithmetic), Ball.exact(y, arithmetic))
        with np.errstate(all="ignore"):
            found = on_machine(machine, machine.read(x), machine.read(y))
        worst = max(worst, float(np.nanmax(ratio(found, ball))))
    record_property("worst_ratio", worst)
    print(f"{name} {format_name}: worst {worst:.3f}")
    assert worst <= 1.0
    assert worst >= (0.003 if format_name == "float64" else 0.05)
