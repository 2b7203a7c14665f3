"""Sums and matrix products: every term of the error by hand, and infinities row by row."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from properties.rounding import Arithmetic, Ball, reductions
from tests.rounding.simulation import FORMATS

FLOAT32, FLOAT64, BFLOAT16 = (FORMATS[name] for name in ("float32", "float64", "bfloat16"))
HALF, MIXED = FORMATS["float16"], FORMATS["mixed"]
NO_INFINITY = Arithmetic("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn")
INF, NAN = np.inf, np.nan

U, OWN = 2.0**-8, 2.0**-53
TINY = 2.0**-126  # what bfloat16 and float32 may flush to 0


def row(*values: float, arithmetic: Arithmetic = FLOAT32) -> Ball:
    return Ball.exact(np.array(values), arithmetic)


def ball(values: Any, radii: Any, arithmetic: Arithmetic = FLOAT32) -> Ball:
    return Ball(np.array(values), np.array(radii), arithmetic)


@pytest.mark.parametrize("size", [1.0, TINY])
def test_the_radius_of_a_sum_by_hand(size: float) -> None:
    """Three additions of four terms; each rounds, relative to all that is added, and may flush."""
    terms = ball([size] * 4, [size / 2] * 4, BFLOAT16)
    share = 3 * (U + OWN)
    expected = 2 * size + 6 * size * share + 3 * TINY * (1 + share)
    assert np.sum(terms).radius == pytest.approx(expected, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("size", [1.0, TINY])
def test_a_sum_in_a_finer_format_is_rounded_once_more(size: float) -> None:
    terms = ball([size] * 2, [size / 2] * 2, MIXED)
    share = 2.0**-24 + OWN
    inner = size + 3 * size * share + TINY * (1 + share)
    expected = inner + U * (2 * size + inner) + TINY
    assert np.sum(terms).radius == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_a_sum_in_a_coarser_format_rounds_every_term_first() -> None:
    terms = row(1.0, 1.0, 1.0, arithmetic=Arithmetic("float32", "bfloat16", "float32"))
    assert np.sum(terms).radius == pytest.approx(3 * (3 * U + 2 * OWN), rel=1e-12, abs=0.0)


def test_the_radius_of_a_sum_covers_its_own_roundings() -> None:
    values, radii = [0.1, 0.2, 0.3, 0.7], [0.01, 0.02, 0.03, 0.3]
    sums = [sum(map(Fraction, terms)) for terms in (values, radii)]
    share = 3 * Fraction(2.0**-53) * 2
    expected = sums[1] + sum(sums) * share
    found = Fraction(float(np.sum(ball(values, radii, FLOAT64)).radius))
    assert expected <= found <= expected * (1 + Fraction(2) ** -48)


def test_the_floor_of_a_sum_by_hand() -> None:
    """A sum loses 1 / (1 + u) in each addition, and is not less than its largest term."""
    most = np.sum(np.abs(row(1000.0, 1.0, 1.0, arithmetic=BFLOAT16))).floor
    assert most == pytest.approx(1000 / (1 + U), rel=1e-12, abs=0.0)
    assert Fraction(float(most)) <= 1000 / (1 + Fraction(U))
    equal = np.sum(np.abs(ball([2.0, 2.0], [0.5, 0.5], BFLOAT16))).floor
    assert equal == pytest.approx(3 / (1 + U), rel=1e-12, abs=0.0)
    tiny = np.sum(np.abs(row(8 * TINY, 8 * TINY, arithmetic=BFLOAT16))).floor
    assert tiny == pytest.approx(16 * TINY / (1 + U) - TINY, rel=1e-12, abs=0.0)
    for size in (1.0, 8 * TINY):
        cast = np.sum(np.abs(row(size, size, arithmetic=MIXED))).floor
        inner = 2 * size / (1 + 2.0**-24) - TINY
        assert cast == pytest.approx(inner * (1 - U) - TINY, rel=1e-12, abs=0.0)
    np.testing.assert_array_equal(np.sum(np.abs(ball([0.0], [INF]))).floor, 0.0)


def test_sums_keep_axes_and_stand_empty_ones() -> None:
    values = np.array([[0.0, 0.1, 0.2], [0.3, 0.0, 0.0]])
    kept = np.sum(Ball.exact(values, FLOAT32), axis=1, keepdims=True)
    assert kept.radius.shape == (2, 1)
    assert np.sum(Ball.exact(np.ones((3, 0)), FLOAT32), axis=0).shape == (0,)


def test_sums_near_the_largest_number() -> None:
    assert np.sum(row(65504.0, arithmetic=HALF)).radius == 0.0
    over = np.sum(row(65000.0, 500.0, arithmetic=HALF))
    assert over.value == 65500.0
    assert np.isinf(over.radius)  # an error of 32 would carry it over
    product = row(1.0, 1.0, arithmetic=HALF) @ row(65000.0, 500.0, arithmetic=HALF)
    assert np.isinf(product.radius)


@pytest.mark.parametrize("accumulate", ["float16", "float8_e4m3fn"])
def test_sums_overflow_in_the_narrower_of_two_formats(accumulate: str) -> None:
    narrow = Arithmetic("float32", accumulate, "float32")
    for result in (
        np.sum(row(4e4, 4e4, arithmetic=narrow)),
        row(4e4, 4e4, arithmetic=narrow) @ np.ones(2),
    ):
        assert np.isinf(result.radius)
        assert np.isnan(result.value) == (accumulate == "float8_e4m3fn")


@pytest.mark.parametrize(
    ("compute", "accumulate"),
    [("float8_e4m3fn", "float8_e4m3"), ("float8_e4m3", "float8_e4m3fnuz")],
)
def test_an_overflow_is_nan_if_one_of_two_formats_has_no_infinity(
    compute: str, accumulate: str
) -> None:
    """The first gets infinity from a narrower sum; in the second both end at 240."""
    mixed = Arithmetic(compute, accumulate, "float32")
    for result in (
        np.sum(row(192.0, 192.0, arithmetic=mixed)),
        row(192.0, 192.0, arithmetic=mixed) @ np.ones(2),
    ):
        np.testing.assert_array_equal(result.value, NAN)
        np.testing.assert_array_equal(result.radius, INF)


def test_an_overflow_is_nan_in_a_format_without_infinity() -> None:
    both = Ball.exact([[300.0, 300.0], [1.0, 1.0]], NO_INFINITY)
    for result in (np.sum(both, axis=1), both @ np.ones(2)):
        np.testing.assert_array_equal(np.isnan(result.value), [True, False])
        np.testing.assert_array_equal(np.isinf(result.radius), [True, False])


# Rows of a sum, what it is, and whether that is certain, unknown, or a number or infinity.
ROWS: dict[str, tuple[list[float], list[float], float, float]] = {
    "infinite": ([INF, -3.0, 0.0, 0.0], [0.0] * 4, INF, 0.0),
    "minus infinite": ([-INF, 3.0, 0.0, 0.0], [0.0] * 4, -INF, 0.0),
    "too much": ([3e38, 3e38, 0.0, 0.0], [0.0] * 4, 6e38, INF),
    "both infinities": ([INF, -INF, 0.0, 0.0], [0.0] * 4, NAN, INF),
    "too much and -inf": ([3e38, 3e38, -INF, 0.0], [0.0] * 4, NAN, INF),
    "too little and inf": ([-3e38, -3e38, INF, 0.0], [0.0] * 4, NAN, INF),
    "too much both ways": ([3e38, 3e38, -3e38, -3e38], [0.0] * 4, NAN, INF),
    "radii both ways": ([0.0] * 4, [3e38, 3e38, 0.0, 0.0], NAN, INF),
    "large both ways": ([2e38, -2e38, 0.0, 0.0], [0.0] * 4, 0.0, INF),
    "NaN": ([NAN, 1.0, 0.0, 0.0], [0.0] * 4, NAN, 0.0),
}


def test_every_row_of_a_sum_is_judged_by_itself() -> None:
    values, radii = (np.array([of[place] for of in ROWS.values()]) for place in (0, 1))
    summed = np.sum(ball([*values, [1.0, 2.0, 0.0, 0.0]], [*radii, [0.5] * 4]), axis=1)
    np.testing.assert_array_equal(summed.value, [*(of[2] for of in ROWS.values()), 3.0])
    np.testing.assert_array_equal(summed.radius[:-1], [of[3] for of in ROWS.values()])
    assert 2.0 <= summed.radius[-1] <= 2.0001


def test_sums_of_unknown_numbers_of_one_sign_are_no_nan() -> None:
    wide = np.abs(ball([1.0, 2.0], [INF, INF]))
    for summed in (np.sum(wide), np.sum(-wide)):
        assert not np.isnan(summed.value)
        assert np.isinf(summed.radius)


def both_ways(total: float, arithmetic: Arithmetic = HALF) -> Ball:
    """Two terms up and two down, ``total`` each."""
    return row(*[total / 2] * 2, *[-total / 2] * 2, arithmetic=arithmetic)


@pytest.mark.parametrize(("total", "nan"), [(40000.0, False), (64960.0, True)])
def test_partial_sums_overflow_where_their_errors_carry_them_over(total: float, nan: bool) -> None:
    """65504 is the largest number; five roundings of 4 u are 1 %."""
    summed = np.sum(both_ways(total))
    assert np.isinf(summed.radius)
    assert np.isnan(summed.value) == nan


@pytest.mark.parametrize(("total", "nan"), [(40000.0, False), (65408.0, True)])
def test_partial_products_overflow_where_their_errors_carry_them_over(
    total: float, nan: bool
) -> None:
    product = both_ways(total) @ np.ones(4)
    assert np.isinf(product.radius)
    assert np.isnan(product.value) == nan


Numbers = list[float]
ONES, EXACT = [1.0] * 4, [0.0] * 4

# Two rows, each with its radii, and how many of their products are not exactly 0.
COUNTED: dict[str, tuple[Numbers, Numbers, Numbers, Numbers, int]] = {
    "full": (ONES, EXACT, ONES, EXACT, 4),
    "zeros": (ONES, EXACT, [1.0, 0.0, 1.0, 0.0], EXACT, 2),
    "one radius": ([1.0, 1.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.0], ONES, EXACT, 3),
    "radii around zero": (ONES, EXACT, [0.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.0, 1.0], 3),
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("flipped", [False, True])
def test_the_radius_of_a_product_by_hand(name: str, flipped: bool) -> None:
    """n products round, then n - 1 sums of these; each may flush."""
    *operands, count = COUNTED[name]
    x, y = (ball(*operands[place : place + 2], BFLOAT16) for place in (0, 2))
    spread = x.radius @ np.abs(y.value) + np.abs(x.value) @ y.radius + x.radius @ y.radius
    share = U + U * (count - 1) * (1 + U) + count * OWN
    gauge = np.abs(x.value) @ np.abs(y.value) + spread
    expected = spread + gauge * share + count * 2 * TINY * (1 + share)
    found = y @ x if flipped else x @ y
    assert found.radius == pytest.approx(expected, rel=1e-12, abs=0.0)
    assert found.arithmetic is BFLOAT16


# Two rows, and what their product is.
PRODUCTS: dict[str, tuple[Numbers, Numbers, float, float]] = {
    "up": ([1.0, -1.0], [3e38, -3e38], 6e38, INF),
    "down": ([-1.0, 1.0], [3e38, -3e38], -6e38, INF),
    "large": ([2.0, 2.0], [3e38, 3e38], 1.2e39, INF),
    "large and negative": ([-2.0, -2.0], [3e38, 3e38], -1.2e39, INF),
    "large, on the other side": ([3e38, 3e38], [-2.0, -2.0], -1.2e39, INF),
    "both": ([1.0, -1.0, 1.0, -1.0], [3e38, -3e38, -3e38, 3e38], NAN, INF),
    "NaN on the left": ([NAN, 1.0], [1.0, 1.0], NAN, 0.0),
    "NaN on the right": ([1.0, 1.0], [NAN, 1.0], NAN, 0.0),
    "NaN on both sides": ([NAN, 1.0], [NAN, 1.0], NAN, 0.0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_a_product_beyond_the_largest_number_is(name: str) -> None:
    x, y, value, radius = PRODUCTS[name]
    product = row(*x) @ row(*y)
    np.testing.assert_allclose(product.value, value, rtol=1e-6)
    np.testing.assert_array_equal(product.radius, radius)


def test_radii_of_a_product_may_overflow_both_ways() -> None:
    product = ball([0.0, 0.0], [3e38, 3e38]) @ np.ones(2)
    assert np.isnan(product.value)
    assert np.isinf(product.radius)


def test_every_row_of_a_product_is_judged_by_itself() -> None:
    product = Ball.exact([[INF, 1.0], [1.0, 1.0]], FLOAT32) @ np.ones(2)
    assert np.isinf(product.radius[0])
    assert product.radius[1] <= 1e-6


def test_only_balls_have_sums_with_a_radius() -> None:
    for function, name in ((reductions.total, "np.sum"), (reductions.maximum, "np.max")):
        with pytest.raises(TypeError, match=f"{name} of ndarray has no error bound here"):
            function(FLOAT32, np.ones(2))
