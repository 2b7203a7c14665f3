"""What is exact in every format stays exact, and what storage has is written without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties.protocol import Precision
from properties.rounding import Arithmetic, Ball, ratio
from tests.rounding.simulation import FORMATS

FLOAT32 = FORMATS["float32"]
VALUES = np.array([-3.0, -1.0, 0.0, 0.3, 7.0, 6e4])
RADII = np.array([0.5, 0.0, 0.0, 1e-9, 1e-3, 32.0])


def ball(arithmetic: Arithmetic = FLOAT32) -> Ball:
    return Ball(VALUES, RADII, arithmetic)


KEEPING: dict[str, Callable[[Ball], Ball]] = {
    "plus 0": lambda x: x + 0.0,
    "0 plus": lambda x: np.zeros(6) + x,
    "minus 0": lambda x: x - 0,
    "times 1": lambda x: 1.0 * x,
    "times ones": lambda x: x * np.ones(6),
    "over 1": lambda x: x / 1,
    "sum of one": lambda x: np.sum(x[:, None], axis=1),
    "sum with zeros": lambda x: np.stack([np.zeros(6), x, np.zeros(6)]).sum(axis=0),
    "max of one": lambda x: np.max(x[None], axis=0),
    "where": lambda x: np.where(np.ones(6, dtype=bool), x, np.nan),
    "maximum with less": lambda x: np.maximum(x, -10.0),
    "minimum with more": lambda x: np.minimum(x, 65504.0),
    "twice transposed": lambda x: x.reshape(2, 3).T.swapaxes(0, 1).reshape(-1),
}
FLIPPING: dict[str, Callable[[Ball], Ball]] = {
    "negative": lambda x: -x,
    "0 minus": lambda x: 0.0 - x,
    "times -1": lambda x: x * -1.0,
    "over -1": lambda x: x / np.full(6, -1.0),
}


@pytest.mark.parametrize("name", [*KEEPING, *FLIPPING])
@pytest.mark.parametrize("format_name", FORMATS)
def test_operations_that_never_round_leave_the_radius_alone(name: str, format_name: str) -> None:
    x = ball(FORMATS[format_name])
    result = {**KEEPING, **FLIPPING}[name](x)
    np.testing.assert_array_equal(result.value, x.value if name in KEEPING else -x.value)
    np.testing.assert_allclose(result.radius, x.radius, rtol=1e-14, atol=0.0)


def test_absolute_values_keep_the_radius() -> None:
    np.testing.assert_array_equal(np.abs(ball()).radius, RADII)
    np.testing.assert_array_equal(np.abs(ball()).value, np.abs(VALUES))


def test_products_with_an_exact_zero_are_exactly_zero() -> None:
    x = Ball(np.array([3.0, 1e30, -2.0]), np.array([0.5, 1e35, 0.0]), FLOAT32)
    for zero in (x * 0.0, np.zeros(3) * x, 0.0 / (x + 1e36), np.zeros((2, 3)) @ x):
        assert not zero.value.any()
        assert not zero.radius.any()


def test_zeros_do_not_count_in_dot_products() -> None:
    dense = Ball.exact(np.array([[0.1, 0.2, 0.3]]), FLOAT32)
    padded = Ball.exact(np.array([[0.1, 0.0, 0.2, 0.0, 0.0, 0.3]]), FLOAT32)
    column = Ball.exact(np.arange(1.0, 4.0), FLOAT32)
    wide = Ball.exact(np.array([1.0, 9.0, 2.0, 8.0, 7.0, 3.0]), FLOAT32)
    assert (padded @ wide).radius == pytest.approx((dense @ column).radius, rel=1e-12)
    assert padded.sum().radius == pytest.approx(dense.sum().radius, rel=1e-12)


def test_stored_values_gain_one_rounding_unless_storage_has_them() -> None:
    arithmetic = Arithmetic("float32", "float32", "bfloat16")
    stored = np.positive(Ball.exact([1.5, -0.0, np.inf, 1.0 + 2.0**-10], arithmetic))
    np.testing.assert_array_equal(stored.radius[:3], 0.0)
    assert stored.radius[3] == pytest.approx(2.0**-8 * (1.0 + 2.0**-10), rel=1e-6)
    computed = np.positive(Ball(np.array([1.5, 0.0]), np.array([0.25, 0.0]), arithmetic))
    assert computed.radius[0] == pytest.approx(0.25 + 2.0**-8 * 1.75, rel=1e-6)
    assert computed.radius[1] == 0.0


def test_bounds_follow_a_value_that_is_rounded_up_in_memory() -> None:
    arithmetic = Arithmetic("float32", "float32", "bfloat16")
    stored = np.positive(0.903 * np.tanh(Ball.exact([50.0], arithmetic)))
    assert stored.bounds[0] <= -0.90625
    assert 0.90625 <= stored.bounds[1] < 0.92


def test_what_may_exceed_storage_is_unknown() -> None:
    arithmetic = Arithmetic("float32", "float32", "float16")
    stored = np.positive(Ball(np.array([6e4, 65500.0, 65504.0]), [100.0, 10.0, 0.0], arithmetic))
    np.testing.assert_array_equal(np.isinf(stored.radius), [False, True, False])
    without_infinity = Arithmetic("float32", "float32", "float8_e4m3fn")
    cast = np.positive(Ball.exact([448.0, 449.0], without_infinity))
    np.testing.assert_array_equal(cast.radius, [0.0, np.inf])
    np.testing.assert_array_equal(np.isnan(cast.value), [False, True])


def test_constants_count_as_an_implementation_holds_them() -> None:
    one = Ball.exact(np.ones(1), FLOAT32)
    held = np.maximum(one, np.array([1.0 + 2.0**-30]))
    assert held.radius == 2.0**-30
    assert np.maximum(one, 1.0 + 2.0**-30).radius == 2.0**-30
    assert (one * 0.5 + np.float32(0.1)).radius < 4e-7
    assert np.maximum(one, 4).radius == 0.0
    assert np.maximum(-one, 1e-40).radius == 1e-40  # a subnormal number may be read as zero
    assert np.isinf(np.maximum(one, 1e40).radius)


def test_exact_values_are_exact_where_the_compute_format_has_them() -> None:
    values = np.array([1e-40, 0.0, 2e-38, 0.5, np.inf, np.nan])
    held = np.array(values, dtype=np.float32).astype(np.float64)
    expected = [held[0], 0.0, 0.0, 0.0, 0.0, 0.0]  # a subnormal number may be read as zero
    np.testing.assert_array_equal(Ball.exact(held, FLOAT32).radius, expected)
    half = Arithmetic("float16", "float32", "float32")
    read = Ball.exact([2.0**-24, 1.0, 1.0 + 2.0**-12, 1e6], half)
    np.testing.assert_array_equal(read.radius, [0.0, 0.0, 2.0**-12, np.inf])


def test_reading_in_a_coarser_format_costs_one_rounding() -> None:
    coarse = Arithmetic("bfloat16", "float32", "bfloat16")
    x = Ball(np.array([2.0, np.inf, np.nan, 0.0]), [0.5, 0.0, 0.0, 0.0], FLOAT32)
    read = x.under(coarse)
    assert read.arithmetic is coarse
    np.testing.assert_allclose(read.radius, [0.5 + 2.0**-8 * 2.5, 0.0, 0.0, 0.0], rtol=1e-9)
    back = read.under(FLOAT32)
    np.testing.assert_array_equal(back.radius, read.radius)
    assert np.isinf(Ball.exact([3.4e38], FLOAT32).under(coarse).radius)


def test_arithmetic_takes_the_formats_of_a_precision() -> None:
    precision = Precision(compute="float32", accumulate="float64", storage="float16")
    arithmetic = Arithmetic.of(precision)
    assert arithmetic == Arithmetic("float32", "float64", "float16")
    assert arithmetic.computed.roundoff == 2.0**-24
    assert arithmetic.stored.largest == 65504.0
    with pytest.raises(ValueError, match="'longdouble' is finer than float64"):
        Arithmetic("longdouble")
    with pytest.raises(ValueError, match="'int8' is not a floating-point format"):
        Arithmetic(storage="int8")


@pytest.mark.parametrize(
    ("found", "value", "radius", "expected"),
    [
        (1.5, 1.0, 1.0, 0.5),
        (1.0, 1.0, 0.0, 0.0),
        (1.0, 2.0, 0.0, np.inf),
        (np.inf, np.inf, 0.0, 0.0),
        (-np.inf, np.inf, 0.0, np.inf),
        (1.0, np.inf, 0.0, np.inf),
        (np.inf, 1.0, 0.5, np.inf),
        (np.nan, np.nan, 0.0, 0.0),
        (np.nan, 1.0, 0.5, np.inf),
        (1.0, np.nan, 0.0, np.inf),
        (np.nan, np.nan, np.inf, np.nan),
        (1.0, 1.0, np.inf, np.nan),
        (np.inf, np.inf, np.inf, np.nan),
    ],
)
def test_ratio(found: float, value: float, radius: float, expected: float) -> None:
    result = ratio(np.array([found]), Ball([value], [radius], FLOAT32))
    np.testing.assert_array_equal(result, [expected])


def test_ratio_takes_arrays_of_the_same_shape_only() -> None:
    x = Ball.exact(np.ones((2, 3)), FLOAT32)
    assert ratio(np.ones((2, 3), dtype=np.float32), x).dtype == np.float64
    with pytest.raises(ValueError, match=r"shape \(3,\), but the ball \(2, 3\)"):
        ratio(np.ones(3), x)
    wrong: Any = x
    with pytest.raises(TypeError, match="plain array"):
        ratio(wrong, x)
