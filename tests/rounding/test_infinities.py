"""Infinities, NaN and overflow: certain where they are certain, unknown where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties.rounding import Arithmetic, Ball
from tests.rounding.simulation import FORMATS

FLOAT32 = FORMATS["float32"]
INF = np.inf
NAN = np.nan


def exact(*values: float) -> Ball:
    return Ball.exact(np.array(values), FLOAT32)


def wide(*values: float) -> Ball:
    """Numbers about which nothing is known, except that they are numbers or infinities."""
    return Ball(np.array(values), np.full(len(values), INF), FLOAT32)


CERTAIN: dict[str, tuple[Callable[[], Ball], list[float]]] = {
    "sum": (lambda: exact(INF, -INF) + Ball([3.0], [1.0], FLOAT32), [INF, -INF]),
    "difference": (lambda: exact(1.0) - exact(INF), [-INF]),
    "product": (lambda: exact(INF) * Ball([-3.0], [1.0], FLOAT32), [-INF]),
    "square": (lambda: np.square(exact(-INF)), [INF]),
    "quotient": (lambda: exact(-INF) / Ball([3.0], [1.0], FLOAT32), [-INF]),
    "divisor": (lambda: Ball([3.0], [1.0], FLOAT32) / exact(INF), [0.0]),
    "exp": (lambda: np.exp(exact(INF, -INF)), [INF, 0.0]),
    "tanh": (lambda: np.tanh(exact(INF, -INF)), [1.0, -1.0]),
    "sqrt": (lambda: np.sqrt(exact(INF)), [INF]),
    "np.sum": (lambda: np.sum(exact(1.0, INF, 2.0), keepdims=True), [INF]),
    "np.mean": (lambda: np.mean(exact(1.0, -INF, 2.0), keepdims=True), [-INF]),
    "np.max": (lambda: np.max(exact(1.0, INF, -INF), keepdims=True), [INF]),
    "maximum": (lambda: np.maximum(exact(-INF), Ball([3.0], [0.0], FLOAT32)), [3.0]),
    "stored": (lambda: np.positive(exact(INF, -INF)), [INF, -INF]),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_certain_infinities_have_radius_zero(name: str) -> None:
    operation, expected = CERTAIN[name]
    result = operation()
    np.testing.assert_array_equal(result.value, expected)
    np.testing.assert_array_equal(result.radius, 0.0)


UNKNOWN: dict[str, Callable[[], Ball]] = {
    "inf - inf": lambda: exact(INF) - exact(INF),
    "inf + -inf": lambda: exact(INF) + exact(-INF),
    "0 inf": lambda: exact(0.0) * exact(INF),
    "0 and too much": lambda: exact(0.0) * wide(3.0),
    "inf around 0": lambda: exact(INF) * Ball([0.5], [1.0], FLOAT32),
    "inf / inf": lambda: exact(INF) / exact(INF),
    "0 / 0": lambda: exact(0.0) / exact(0.0),
    "around 0 / around 0": lambda: Ball([0.5], [1.0], FLOAT32) / Ball([0.5], [1.0], FLOAT32),
    "root of less than 0": lambda: np.sqrt(Ball([0.5], [1.0], FLOAT32)),
    "difference of too much": lambda: wide(1.0) - wide(2.0),
    "sum of infinities": lambda: np.sum(exact(INF, -INF), keepdims=True),
    "sum of partial overflows": lambda: np.sum(exact(3e38, 3e38, -3e38, -3e38), keepdims=True),
    "sum of too much": lambda: np.sum(wide(1.0, 2.0), keepdims=True),
    "product of matrices": lambda: (exact(INF, 1.0)[None] @ exact(1.0, 1.0)[:, None])[0],
    "partial overflows": lambda: (exact(3e38, 3e38)[None] @ exact(2.0, -2.0)[:, None])[0],
    "overflows of unequal size": lambda: (exact(3e38, 3e38)[None] @ exact(1e30, -2.0)[:, None])[0],
    "NaN on a side in doubt": lambda: np.where(Ball([0.5], [1.0], FLOAT32) >= 0, 1.0, exact(NAN)),
    "maximum with NaN": lambda: np.maximum(exact(NAN), exact(1.0)),
    "np.max with NaN": lambda: np.max(exact(NAN, 1.0), keepdims=True),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_be_nan_is_unknown(name: str) -> None:
    result = UNKNOWN[name]()
    np.testing.assert_array_equal(result.value, NAN)
    np.testing.assert_array_equal(result.radius, INF)
    bounded = np.tanh(result)
    np.testing.assert_array_equal(bounded.radius, INF)


OVERFLOWING: dict[str, Callable[[], Ball]] = {
    "product": lambda: exact(1e30) * exact(1e30),
    "square": lambda: np.square(exact(1e30)),
    "sum": lambda: exact(3e38) + exact(3e38),
    "exp": lambda: np.exp(exact(100.0)),
    "nearly": lambda: Ball([3.4e38], [1e36], FLOAT32) + 1.0,
    "quotient": lambda: exact(1e30) / exact(1e-30),
    "by zero": lambda: exact(1.0) / exact(0.0),
    "around zero": lambda: exact(1.0) / Ball([0.5], [1.0], FLOAT32),
    "np.sum": lambda: np.sum(exact(3e38, 3e38), keepdims=True),
    "matmul": lambda: (exact(1e30)[None] @ exact(1e30)[:, None])[0],
    "too much over 2": lambda: wide(4.0) / 2.0,
    "one too much of many": lambda: np.sum(np.concatenate([wide(4.0), exact(1.0)]), keepdims=True),
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_what_may_overflow_is_a_number_or_infinite_so_its_tanh_is_bounded(name: str) -> None:
    result = OVERFLOWING[name]()
    assert not np.isnan(result.value).any()
    np.testing.assert_array_equal(result.radius, INF)
    bounded = np.tanh(result)
    assert (np.abs(bounded.value) + bounded.radius <= 3.001).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_hyperbolic_tangent_never_leaves_its_interval(format_name: str) -> None:
    values = np.array([0.0, 0.5, -30.0])
    bounded = np.tanh(Ball(values, np.full(3, INF), FORMATS[format_name]))
    np.testing.assert_allclose(bounded.radius, 1.0 + np.abs(np.tanh(values)), rtol=1e-15)


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_tanh_of_what_overflows_upwards_is_one(format_name: str) -> None:
    """A quotient beyond the largest number is that number or infinite, and has a sign."""
    arithmetic = FORMATS[format_name]
    largest = arithmetic.computed.largest
    values = np.array([largest, -largest, largest / 2, 0.0])
    quotient = Ball.exact(values, arithmetic) / 0.25
    np.testing.assert_array_equal(quotient.radius[:3], INF)
    bounded = np.tanh(quotient)
    np.testing.assert_array_equal(bounded.value, [1.0, -1.0, 1.0, 0.0])
    assert (bounded.radius <= 20 * arithmetic.computed.roundoff).all()
    unsure = np.tanh(Ball([0.5], [1.0], arithmetic) * np.array([largest]))
    assert unsure.radius[0] >= 1.5


def test_overflow_follows_the_coarsest_range_on_the_way() -> None:
    half = Arithmetic("float16", "float32", "float32")
    x = Ball.exact([300.0], half)
    assert np.isinf((x * x).radius)
    assert np.isfinite((x * 200.0).radius)
    assert np.isinf(np.sum(Ball.exact([6e4, 6e4], half)).radius)
    assert np.isinf((Ball.exact([300.0], half) @ x).radius)


def test_nan_stays_in_its_element() -> None:
    x = exact(NAN, 1.0)
    for result in (x + 1.0, x * 2.0, x / 3.0, 1.0 / x, np.exp(x), np.tanh(x), -x, np.positive(x)):
        np.testing.assert_array_equal(np.isnan(result.value), [True, False])
        assert result.radius[0] == 0.0
        assert 0.0 <= result.radius[1] < 1e-5
    product = Ball.exact([[NAN, 1.0], [1.0, 1.0]], FLOAT32) @ exact(1.0, 2.0)
    np.testing.assert_array_equal(np.isnan(product.value), [True, False])
    assert product.radius[0] == 0.0
    summed = np.sum(Ball.exact([[NAN, 1.0], [1.0, 1.0]], FLOAT32), axis=1)
    np.testing.assert_array_equal(np.isnan(summed.value), [True, False])
    assert summed.radius[0] == 0.0


def test_exponentials_and_quotients_of_unknown_numbers_are_bounded_again() -> None:
    unknown = wide(0.0, 5.0, -1000.0)
    tail = np.exp(-np.abs(unknown))
    assert tail.bounds[0] == 0.0
    assert (tail.radius <= 1.0001).all()
    logistic = np.where(unknown >= 0, 1.0, tail) / (1.0 + tail)
    assert (logistic.radius <= 1.0001).all()
    assert (logistic.radius >= np.maximum(logistic.value, 1.0 - logistic.value) * 0.999).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_huge_divisors_may_lose_their_reciprocal(format_name: str) -> None:
    arithmetic: Any = FORMATS[format_name]
    huge = arithmetic.computed.largest / 2
    quotient = Ball.exact([huge], arithmetic) / huge
    assert quotient.value == 1.0
    lost = huge * arithmetic.computed.underflow
    assert lost * (1 - 1e-12) <= quotient.radius
    assert quotient.radius <= lost * (1 + 1e-12) + 8 * arithmetic.computed.roundoff
