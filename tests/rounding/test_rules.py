"""The error of single operations, of reading and of constants, from the table of allowances."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from properties.rounding import ALLOWANCES, Arithmetic, Ball
from properties.rounding.ball import lifted
from tests.rounding.simulation import FORMATS

NAMES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn")
FLOAT32 = FORMATS["float32"]


def all_in(name: str) -> Arithmetic:
    return Arithmetic(name, name, name)


@pytest.mark.parametrize(("name", "operation"), list(itertools.product(NAMES, ALLOWANCES)))
def test_what_is_within_reach_stays_finite_with_its_error(name: str, operation: str) -> None:
    rule = all_in(name).rules[operation]
    farthest = Fraction(rule.reach) * (1 + Fraction(rule.share)) + Fraction(rule.underflow)
    largest = Fraction(rule.largest)
    assert largest * (1 - Fraction(2) ** -48) <= farthest <= largest
    assert rule.margin == (2.0 * rule.share, rule.underflow, rule.largest)


def test_a_rule_is_an_allowance_in_the_formats_unit_and_the_references_own_error() -> None:
    for name, unit in (("float64", 2.0**-53), ("float32", 2.0**-24), ("bfloat16", 2.0**-8)):
        rules = all_in(name).rules
        assert rules["add"].share == 2 * unit + 2 * 2.0**-53
        assert rules["exp"].share == 4 * unit + 10 * 2.0**-53
        assert rules["exp"].per_argument == 1.5 * unit + 2 * 2.0**-53
        assert rules["tanh"].per_argument == 0.0


def test_each_operation_rounds_to_its_own_format() -> None:
    arithmetic = Arithmetic("float32", "float64", "bfloat16")
    assert arithmetic.accumulated.name == "float64"
    assert arithmetic.rules["add"].share == 2 * 2.0**-24 + 2 * 2.0**-53
    assert arithmetic.rules["store"].share == 2.0**-8 + 2 * 2.0**-53


@pytest.mark.parametrize("formats", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_mean_rounds_to_the_coarser_format(formats: tuple[str, str]) -> None:
    assert Arithmetic(*formats).rules["mean"].share == 3 * 2.0**-8 + 3 * 2.0**-53


def test_a_number_is_read_rounded_and_perhaps_as_zero() -> None:
    values = np.array([2.0**-140, 1.0 + 2.0**-30, 2.0**-126, 0.0])
    np.testing.assert_array_equal(FLOAT32.reading_error(values), [2.0**-140, 2.0**-30, 0.0, 0.0])
    assert FLOAT32.reading_error(np.array([2.0**-126, 1.0])) is None


def test_constants_are_read_anew_in_every_arithmetic() -> None:
    """Of an arithmetic that has met none: they are kept from then on."""
    held = float(np.float32(0.1))
    error = abs(held - 0.1)
    first, again = (lifted(0.1, arithmetic) for arithmetic in (Arithmetic(),) * 2)
    for constant in (first, again):
        assert (constant.value, constant.radius) == (0.1, error)
        assert constant.bounds == (0.1 - error, 0.1 + error)
    assert lifted(0.5, Arithmetic()).bounds == (0.5, 0.5)
    assert lifted(2.0**-140, Arithmetic()).radius == 2.0**-140
    assert np.isinf(lifted(1e40, Arithmetic()).radius)  # without a warning


def test_reading_in_a_coarser_format_by_hand() -> None:
    """One rounding and one underflow of what the number may be; beyond the largest, anything."""
    coarse = all_in("bfloat16")
    largest = coarse.computed.largest
    values = np.array([2.0, 0.5, 2.0**-126, 0.0, largest, 2.0])
    radii = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.25])
    read = Ball(values, radii, FLOAT32).under(coarse)
    np.testing.assert_array_equal(read.value, values)
    size = values + radii
    expected = radii + np.where(size > 0.0, size * 2.0**-8 + 2.0**-126, 0.0)
    np.testing.assert_allclose(read.radius, expected, rtol=1e-12)
    huge = Ball([1.7e308], [1.7e308], all_in("float64")).under(FLOAT32)
    np.testing.assert_array_equal(huge.radius, np.inf)  # without a warning


def test_reading_in_an_equal_or_finer_format_costs_nothing() -> None:
    x = Ball([2.0, 3.0], [0.5, 0.0], FLOAT32)
    for arithmetic in (Arithmetic("float32", "float64", "bfloat16"), all_in("float64")):
        read = x.under(arithmetic)
        assert read.arithmetic is arithmetic
        np.testing.assert_array_equal(read.value, x.value)
        np.testing.assert_array_equal(read.radius, x.radius)


@pytest.mark.parametrize("values", [np.ones(2, np.float32), np.ones(2, np.int8), [True, False]])
def test_whatever_comes_in_is_held_in_float64(values: Any) -> None:
    assert Ball.exact(values, FLOAT32).value.dtype == np.float64
    assert Ball(values, 0, FLOAT32).value.dtype == np.float64


def test_elements_are_arrays_too() -> None:
    element = Ball([1.0, 2.0], [0.5, 0.25], FLOAT32)[1]
    assert type(element.value) is np.ndarray
    assert type(element.spread) is np.ndarray


def test_a_new_origin_of_axes_and_shapes_of_reductions() -> None:
    x = Ball(np.arange(24.0).reshape(2, 3, 4), 0.5, FLOAT32)
    assert x.transpose(1, 2, 0).shape == (3, 4, 2)
    np.testing.assert_array_equal(x.transpose(1, 2, 0).value, x.value.transpose(1, 2, 0))
    for reduced in (x.sum(axis=1), x.mean(axis=1), x.max(axis=1), x.min(axis=1)):
        assert reduced.shape == (2, 4)
