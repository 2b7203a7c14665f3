"""Elementwise operations where their first estimate ends: floors, huge divisors, overflow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties.rounding import Arithmetic, Ball
from tests.rounding.simulation import FORMATS

FLOAT32, FLOAT64, BFLOAT16 = (FORMATS[name] for name in ("float32", "float64", "bfloat16"))
HALF = FORMATS["float16"]
NO_INFINITY = Arithmetic("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn")
INF = np.inf


def exact(*values: float, arithmetic: Arithmetic = FLOAT32) -> Ball:
    return Ball.exact(np.array(values), arithmetic)


def wide(*values: float) -> Ball:
    return Ball(np.array(values), np.full(len(values), INF), FLOAT32)


def between(value: float, radius: float, low: float, high: float, arithmetic: Arithmetic) -> Ball:
    ball = Ball([value], [radius], arithmetic)
    ball.bounds = (low, high)
    return ball


# Sums and floors ----------------------------------------------------------------------------------


def test_an_exact_zero_in_a_sum_of_exact_numbers_adds_nothing() -> None:
    for result in (exact(1.0, 3.0) + 0.0, exact(0.0, 0.0) + exact(1.0, 3.0)):
        np.testing.assert_array_equal(result.radius, [0.0, 0.0])
    mixed = exact(0.0, 1.0) + exact(3.0, 3.0)
    assert mixed.radius.dtype == np.float64
    assert mixed.radius[0] == 0.0 < mixed.radius[1]


def statistic() -> Ball:
    """A mean of squares, with a floor and an origin."""
    x = Ball([[3.0, 1.0, 2.0]], np.full((1, 3), 0.5), FLOAT32)
    return np.mean(np.square(x), axis=-1, keepdims=True)


def test_only_adding_what_is_not_negative_leaves_a_mean_of_squares_what_it_is() -> None:
    mean = statistic()
    assert mean.origin is not None
    either = np.tanh(Ball([[0.0]], [[1.0]], FLOAT32))
    for kept in (mean + 0.0, mean + 0.01, mean + np.abs(either)):
        assert kept.origin == mean.origin
        assert kept.floor is not None
    for lost in (mean - 0.01, mean + -0.01, mean + either, mean - either, mean - np.abs(either)):
        assert lost.origin is None
        assert lost.floor is None


def test_a_floor_grows_by_the_least_that_is_added_and_shrinks_by_a_rounding() -> None:
    mean = statistic()
    share = 2 * 2.0**-24 + 2 * 2.0**-53
    half = np.abs(np.tanh(Ball([[0.0]], [[1.0]], FLOAT32)))
    assert half.bounds == (0.0, 1.0)
    assert (mean + half).floor == pytest.approx(mean.floor * (1 - share), rel=1e-12, abs=0.0)
    assert (mean + 4.0).floor == pytest.approx((mean.floor + 4) * (1 - share), rel=1e-12, abs=0.0)


@pytest.mark.parametrize("size", [1.0, 2.0**-61])
def test_the_floor_of_a_square_by_hand(size: float) -> None:
    square = np.square(Ball([2.0 * size], [0.5 * size], BFLOAT16))
    share = 2 * 2.0**-8 + 2 * 2.0**-53
    expected = (1.5 * size) ** 2 * (1 - share) - 2.0**-126
    assert square.floor == pytest.approx([expected], rel=1e-12, abs=0.0)


def over_its_root(eps: float, arithmetic: Arithmetic) -> tuple[Any, Any]:
    """How large a number of a wide row may be over the root mean square, and the root's floor."""
    x = Ball(np.full((1, 4), 0.5), 50.0, arithmetic)
    root = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)
    quotient = x / root
    return (quotient.radius - np.abs(quotient.value))[0, 0], root.floor[0, 0]


def test_a_number_over_its_own_root_mean_square_by_hand() -> None:
    """sqrt(4), and 13 roundings: half of those below the root, and all of the others.

    Below: 1 and 2 of the sum, 2 of the square, 3 of the mean, 2 of eps, 8 of the root, squared.
    Beside: 2 of the quotient, and 1 for each time that x may have been stored.
    """
    most, _ = over_its_root(1.0, FLOAT32)
    assert (most / 2.0 - 1.0) * 2.0**24 == pytest.approx(13.0, rel=1e-5)


def test_squares_that_underflow_let_the_quotient_grow() -> None:
    """Four times what compute and accumulate may lose each, over the square of the root."""
    (little, far), (much, near) = (over_its_root(eps, HALF) for eps in (1.0, 2.0**-12))
    lost, more = (8 * 2.0**-24 / least**2 for least in (far, near))
    assert more > 1e-3 > lost
    assert (much / little) ** 2 == pytest.approx((1 + more) / (1 + lost), rel=1e-10)


def test_a_product_that_underflows_in_the_reference_is_not_exact() -> None:
    product = exact(1e-200, 0.0, arithmetic=FLOAT64) * 1e-200
    np.testing.assert_array_equal(product.value, [0.0, 0.0])
    np.testing.assert_array_equal(product.radius > 0.0, [True, False])


# Overflow -----------------------------------------------------------------------------------------

# Whether the hyperbolic tangent of the result is known to be near 1, or to be -1 perhaps, or 0.
SIZES: dict[str, tuple[Callable[[], Ball], bool]] = {
    "unknown": (lambda: wide(4.0) * 2.0, False),
    "unknown and negative": (lambda: wide(-4.0) * 2.0, False),
    "infinite perhaps": (lambda: (exact(1.0) / Ball([0.0], [1.0], FLOAT32)) * 2.0, False),
    "-inf perhaps": (lambda: (exact(-1.0) / Ball([0.0], [1.0], FLOAT32)) * 2.0, False),
    "over what may be 0": (lambda: exact(1.0) / Ball([0.5], [0.5], FLOAT32), False),
    "negative over that": (lambda: exact(-1.0) / Ball([0.5], [0.5], FLOAT32), False),
    "over a huge divisor": (lambda: exact(2.0**126) / 2.0**126, False),  # flushed reciprocal
    "negative over a huge one": (lambda: exact(-(2.0**126)) / 2.0**126, False),
    "square around 0": (lambda: np.square(Ball([1e25], [2e25], FLOAT32)), False),
    "square": (lambda: np.square(Ball([1e25], [1e24], FLOAT32)), True),
    "root of an unknown square": (lambda: np.sqrt(np.square(wide(2.0))), False),
}


@pytest.mark.parametrize("name", SIZES)
def test_what_overflows_has_a_size_only_if_it_cannot_be_small(name: str) -> None:
    operation, large = SIZES[name]
    result = operation()
    assert not np.isnan(result.value).any()
    bounded = np.tanh(result)
    assert bounded.radius[0] <= 1e-5 if large else bounded.radius[0] >= 0.7


@pytest.mark.parametrize("signs", list(itertools.product([1.0, -1.0], repeat=2)))
def test_products_that_may_overflow_know_all_corners(signs: tuple[float, float]) -> None:
    """200 +- 60 squared is from 140^2 to 260^2, which is more than float16 has."""
    x, y = (Ball([200.0 * sign], [60.0], HALF) for sign in signs)
    product = x * y
    assert np.isinf(product.radius[0])
    share = 2 * 2.0**-11 + 2 * 2.0**-53
    assert product.least_size[0] == pytest.approx(140.0**2 * (1 - share), rel=1e-9)


def test_a_quotient_by_a_huge_divisor_by_hand() -> None:
    """2^125 / (1.5 2^125) loses up to half of 1 if the reciprocal is flushed, less than it has."""
    quotient = exact(2.0**125) / (1.5 * 2.0**125)
    share = 2 * 2.0**-24 + 5 * 2.0**-53 + 2.0**-49
    assert quotient.least_size[0] == pytest.approx((2 / 3 - 0.5) * (1 - share), rel=1e-12, abs=0.0)
    tiny = exact(1.0) / 2.0**126
    assert tiny.value[0] == 2.0**-126
    assert 2 * 2.0**-126 <= tiny.radius[0] <= 2.1 * 2.0**-126


def test_a_quotient_that_underflows_in_the_reference_is_not_exact() -> None:
    quotient = exact(1e-100, 1.0, 0.0, arithmetic=FLOAT64) / 1e308
    assert (quotient.radius[:2] > 0.0).all()
    assert quotient.radius[2] == 0.0
    lost = exact(1e-300, arithmetic=FLOAT64) / 1e308
    assert lost.value[0] == 0.0 < lost.radius[0]


def test_infinities_that_may_meet_are_unknown_on_either_side() -> None:
    for x, y in ((wide(1.0), exact(-INF)), (wide(1.0), exact(INF))):
        for result in (x + y, y + x, x - y, y - x):
            np.testing.assert_array_equal(result.value, [np.nan])
            np.testing.assert_array_equal(result.radius, [INF])
    certain = Ball([-3.0], [1.0], FLOAT32) * exact(INF)
    np.testing.assert_array_equal(certain.value, [-INF])
    np.testing.assert_array_equal(certain.radius, [0.0])


def test_an_element_that_overflows_leaves_the_others_alone() -> None:
    product = exact(1e30, 2.0, 0.1) * exact(1e30, 1.0, 0.1)
    np.testing.assert_array_equal(product.radius[:2], [INF, 0.0])
    assert product.radius[2] == exact(0.1).radius * 0.0 + (exact(0.1) * exact(0.1)).radius[0]


def test_bounds_bring_an_exponential_back_whose_radius_would_overflow() -> None:
    """Of 88 +- 2, but 87.9 to 88.2: the exponent's error counts as of 90."""
    result = np.exp(between(88.0, 2.0, 87.9, 88.2, FLOAT32))
    most = np.exp(88.2)
    unit = (result.radius[0] - (most - np.exp(88.0))) / most * 2.0**24
    assert unit == pytest.approx(4 + 1.5 * 90, rel=1e-4)


def test_an_exponential_just_below_the_largest_number_may_overflow() -> None:
    """4e-6 is less than the error of 137 u, and more than the 4 u of other functions."""
    top = float(np.log(FLOAT32.computed.largest)) - 4e-6
    assert np.isinf(np.exp(between(88.0, 2.0, -INF, top, FLOAT32)).radius[0])
    lower = float(np.log(FLOAT32.computed.largest)) - 4e-5
    assert np.isfinite(np.exp(between(88.0, 2.0, -INF, lower, FLOAT32)).radius[0])


def test_bounds_bring_a_product_back_with_its_rounding() -> None:
    x = between(1e308, 1e308, 0.9e308, 1.2e308, FLOAT64)
    product = x * exact(1.4, arithmetic=FLOAT64)
    high = 1.2e308 * 1.4
    assert product.radius[0] >= (high - product.value[0]) + high * 2.0**-51
    assert product.radius[0] <= (high - product.value[0]) * (1 + 1e-12)


def test_an_overflow_is_nan_in_a_format_without_infinity_and_only_there() -> None:
    product = exact(300.0, 2.0, arithmetic=NO_INFINITY) * exact(2.0, 2.0, arithmetic=NO_INFINITY)
    np.testing.assert_array_equal(product.value, [np.nan, 4.0])
    np.testing.assert_array_equal(np.isinf(product.radius), [True, False])
    quotient = exact(64.0, arithmetic=NO_INFINITY) / 64.0  # a huge divisor, but no overflow
    np.testing.assert_array_equal(quotient.value, [1.0])
