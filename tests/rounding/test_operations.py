"""Each operation: no machine leaves the ball, and the ball is not much larger than it has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest

import reference_numpy
from properties.rounding import Ball, ratio
from properties.rounding.arithmetic import Arithmetic
from tests.rounding.programs import DIGITS, IN_DIGITS, digits, distance_over_radius
from tests.rounding.simulation import FORMATS, Machine, drawn, machines, nearest

SHAPE = (40, 8)
MACHINES = 40

# A radius this many times the worst error that was ever seen would not bite.
LOOSEST = 100.0


class Case(NamedTuple):
    """One operation three ways, and the powers of ten its arguments are drawn from."""

    on_balls: Callable[..., Any]
    on_machine: Callable[..., Any]
    arguments: int = 1
    exponents: tuple[float, float] = (-1.5, 1.5)
    positive: bool = False


CASES: dict[str, Case] = {
    "add": Case(np.add, Machine.add, 2),
    "subtract": Case(np.subtract, Machine.subtract, 2),
    "multiply": Case(np.multiply, Machine.multiply, 2),
    "divide": Case(np.divide, Machine.divide, 2),
    "multiply_add": Case(lambda x, y, z: x * y + z, Machine.multiply_add, 3),
    "square": Case(np.square, Machine.square),
    "sqrt": Case(np.sqrt, Machine.sqrt, positive=True),
    "over_root": Case(
        lambda x, y: x / np.sqrt(np.abs(y)), lambda m, x, y: m.over_root(x, np.abs(y)), 2
    ),
    "exp": Case(np.exp, Machine.exp, exponents=(-3.0, 0.9)),
    "tanh": Case(np.tanh, Machine.tanh, exponents=(-4.0, 1.0)),
    "sigmoid": Case(
        lambda x: np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x))),
        Machine.sigmoid,
        exponents=(-3.0, 0.9),
    ),
    "positive": Case(lambda x: np.positive(1.25 * x), lambda m, x: m.store(m.multiply(1.25, x))),
    "sum": Case(lambda x: np.sum(x, axis=-1), Machine.sum, exponents=(-0.5, 0.5)),
    "mean": Case(lambda x: np.mean(x, axis=-1), Machine.mean, exponents=(-0.5, 0.5)),
    "matmul": Case(
        lambda x, y: x @ y.T, lambda m, x, y: m.matmul(x, y.T), 2, exponents=(-0.5, 0.5)
    ),
}


# The same operations on mpmath numbers, where they are not steps of the random programs.
IN_MANY_DIGITS: dict[str, Callable[..., Any]] = {
    **IN_DIGITS,
    "over_root": lambda x, y: IN_DIGITS["divide"](x, IN_DIGITS["sqrt"](y)),
    "sum": lambda x: np.sum(x, axis=-1),
    "mean": lambda x: np.sum(x, axis=-1) / mpmath.mpf(SHAPE[1]),
    "matmul": lambda x, y: x @ y.T,
}


def arguments(case: Case, arithmetic: Arithmetic, rng: np.random.Generator) -> list[Any]:
    """Given numbers, half of them of one sign: errors of sums add up there."""
    values = [drawn(arithmetic, rng, SHAPE, case.exponents) for _ in range(case.arguments)]
    if case.positive:
        return [np.abs(v) for v in values]
    return [np.where(np.arange(SHAPE[0])[:, None] % 2 == 0, np.abs(v), v) for v in values]


def ratios(case: Case, arithmetic: Arithmetic, rng: np.random.Generator) -> Any:
    """The errors of many machines in units of the radius."""
    seen = []
    for machine in machines(arithmetic, rng, MACHINES):
        given = arguments(case, arithmetic, rng)
        ball = case.on_balls(*(Ball.exact(x, arithmetic) for x in given))
        found = case.on_machine(machine, *(machine.read(x) for x in given))
        seen.append(ratio(found, ball).ravel())
    return np.concatenate(seen)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "float64"])
def test_a_single_operation_stays_in_its_ball_and_nearly_fills_it(
    name: str, format_name: str, record_property: Callable[[str, object], None]
) -> None:
    seen = ratios(CASES[name], FORMATS[format_name], np.random.default_rng(len(name)))
    worst, median = float(seen.max()), float(np.median(seen))
    record_property("worst_ratio", worst)
    record_property("median_ratio", median)
    print(f"{name} {format_name}: worst {worst:.3f}, median {median:.4f}")
    assert 1.0 / LOOSEST <= worst <= 1.0


@pytest.mark.parametrize("name", [name for name in CASES if name != "positive"])
def test_the_reference_itself_stays_in_its_ball_and_does_not_vanish_in_it(name: str) -> None:
    """In float64 the distance from 60 digits is the reference's own error."""
    case, arithmetic = CASES[name], FORMATS["float64"]
    given = [x[:12] for x in arguments(case, arithmetic, np.random.default_rng(7))]
    ball = case.on_balls(*(Ball.exact(x, arithmetic) for x in given))
    with mpmath.workdps(DIGITS):
        true = IN_MANY_DIGITS[name](*(digits(x) for x in given))
        worst = distance_over_radius(true, ball.value, ball.radius)
    assert 1.0 / LOOSEST <= worst <= 1.0


class Spread(NamedTuple):
    """An operation and arguments with radii that are large against every rounding."""

    operation: Callable[..., Any]
    values: tuple[float, ...]
    radii: tuple[float, ...]


SPREADS: dict[str, Spread] = {
    "add": Spread(np.add, (3.0, -2.0), (0.5, 0.25)),
    "subtract": Spread(np.subtract, (3.0, -2.0), (0.5, 0.25)),
    "multiply": Spread(np.multiply, (3.0, -2.0), (0.5, 3.0)),
    "divide": Spread(np.divide, (3.0, -2.0), (0.5, 1.5)),
    "divide around zero": Spread(np.divide, (0.5, 2.0), (1.5, 1.0)),
    "square": Spread(np.square, (-3.0,), (4.0,)),
    "sqrt": Spread(np.sqrt, (3.0,), (3.0,)),
    "exp": Spread(np.exp, (-3.0,), (2.0,)),
    "tanh": Spread(np.tanh, (1.0,), (3.0,)),
    "tanh far": Spread(np.tanh, (-5.0,), (1.0,)),
    "absolute": Spread(np.abs, (-3.0,), (2.0,)),
    "maximum": Spread(np.maximum, (3.0, 2.0), (0.5, 2.5)),
    "minimum apart": Spread(np.minimum, (3.0, 1.0), (0.5, 0.25)),
    "logistic": Spread(lambda x: 1.0 / (1.0 + np.exp(x)), (2.0,), (0.1,)),
}


@pytest.mark.parametrize("name", SPREADS)
def test_radii_of_operands_are_carried_on_soundly_and_no_wider_than_needed(name: str) -> None:
    spread = SPREADS[name]
    balls = [
        Ball(v, r, FORMATS["float64"]) for v, r in zip(spread.values, spread.radii, strict=True)
    ]
    result = spread.operation(*balls)
    sides = [
        np.linspace(v - r, v + r, 101) for v, r in zip(spread.values, spread.radii, strict=True)
    ]
    results = spread.operation(*np.meshgrid(*sides))
    farthest = np.abs(results - result.value).max()
    assert 0.8 * result.radius <= farthest <= result.radius


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_roots_of_mean_squares_know_both_of_their_ends(share: float) -> None:
    """A radius reaches equally far both ways, and from 0.6 on beyond 0; the root does not."""
    x = np.array([3.0, -1.0, 2.0, 0.5])
    ball = Ball(x, share * np.abs(x), FORMATS["float64"])
    root = np.sqrt(np.mean(np.square(ball), axis=-1, keepdims=True) + 0.01)
    least, most = (np.sqrt(np.mean(np.square(x * (1 + s))) + 0.01) for s in (-share, share))
    farthest = max(root.value[0] - least, most - root.value[0])
    assert farthest <= root.radius[0] <= farthest * (1.0 + 2 * share**2)
    assert 0.99 * least <= root.floor[0] <= least
    independent = Ball(x, share * np.abs(x), FORMATS["float64"])
    quotient = independent / root
    assert (quotient.radius >= (1 + share) * np.abs(x) / least - np.abs(quotient.value)).all()
    assert (quotient.radius <= (1 + 2 * share) * np.abs(x) / least).all()


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_number_over_its_own_root_mean_square_exceeds_the_root_of_their_count(
    format_name: str,
) -> None:
    """However little is known of the row; numbers from anywhere in the ball stay inside."""
    arithmetic, rng = FORMATS[format_name], np.random.default_rng(8)
    x = nearest(rng.normal(size=(200, 5)), arithmetic.computed)
    ball = Ball(x, np.full(x.shape, 2.0), arithmetic)
    roots = np.sqrt(np.mean(np.square(ball), axis=-1, keepdims=True) + 0.01)
    quotient = ball / roots
    unit = max(arithmetic.computed.roundoff, arithmetic.stored.roundoff)
    most = np.sqrt(5.0) * (1.0 + 32 * unit)
    assert (quotient.radius <= most + np.abs(quotient.value)).all()
    assert (quotient.radius + np.abs(quotient.value) >= np.sqrt(5.0) * (1 - 1e-12)).all()
    for machine in machines(arithmetic, rng, MACHINES):
        moved = np.where(rng.random(x.shape) < 0.7, 0.0, x + rng.uniform(-2.0, 2.0, x.shape))
        inside = machine.read(np.clip(moved, x - 1.99, x + 1.99))
        squares = machine.mean(machine.square(inside))[..., None]
        found = machine.over_root(inside, machine.add(squares, machine.read(0.01)))
        assert (ratio(found, quotient) <= 1.0).all()


def test_a_row_that_is_divided_by_the_root_of_another_is_not_bounded_by_it() -> None:
    x, y = (Ball(np.array([[v, 1.0]]), np.full((1, 2), 0.5), FORMATS["float32"]) for v in (5.0, 0))
    root = np.sqrt(np.mean(np.square(y), axis=-1, keepdims=True))
    assert (x / root).value[0, 0] + (x / root).radius[0, 0] > 5.0
    column = np.sqrt(np.mean(np.square(x), axis=-1))  # not kept: it would meet other rows
    assert column.origin is None


@pytest.mark.parametrize("count", [300, 896, 4096])
def test_sums_that_stagnate_stay_in_a_finite_ball_and_above_their_floor(count: int) -> None:
    """256 is the last number to which bfloat16 can add 1: n u is more than 1, and bounds hold."""
    arithmetic = FORMATS["bfloat16"]
    partial = 0.0
    for _ in range(count):
        partial = float(arithmetic.computed.rounded(np.array(partial + 1.0)))
    assert partial == 256.0
    summed = np.sum(np.square(Ball.exact(np.ones((1, count)), arithmetic)), axis=1)
    assert 0.0 < summed.floor[0] <= partial
    assert 1.0 / LOOSEST <= ratio(np.array([partial]), summed)[0] <= 1.0
    norm = reference_numpy.rms_norm(
        Ball.exact(np.ones((1, count)), arithmetic), np.ones(count), eps=0.0
    )
    assert np.isfinite(norm.radius).all()
    assert ratio(np.full((1, count), np.sqrt(count / partial)), norm).max() <= 1.0


def test_sums_and_products_attain_the_radii_of_their_terms() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 6)), rng.normal(size=(6, 5))
    x_radius, y_radius = np.full(x.shape, 0.25), np.full(y.shape, 0.5)
    arithmetic = FORMATS["float64"]
    product = Ball(x, x_radius, arithmetic) @ Ball(y, y_radius, arithmetic)
    # All products move in one direction when every factor grows in absolute value.
    for i in range(4):
        for j in range(5):
            grown = np.abs(x[i]) + 0.25
            farther = np.abs(y[:, j]) + 0.5
            away = np.sum(grown * farther - np.abs(x[i] * y[:, j]))
            assert away == pytest.approx(product.radius[i, j], rel=1e-12)
    summed = np.sum(Ball(x, x_radius, arithmetic), axis=1)
    assert summed.radius == pytest.approx(np.full(4, 6 * 0.25), rel=1e-12)
    mean = np.mean(Ball(x, x_radius, arithmetic), axis=(0, 1))
    assert mean.radius == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize("format_name", ["float32", "bfloat16", "float64"])
def test_the_worst_order_of_a_sum_fills_the_ball(format_name: str) -> None:
    """Each of n - 1 terms is lost against 1: it is half a unit, and ties go to even."""
    arithmetic = FORMATS[format_name]
    terms = np.full(9, arithmetic.computed.roundoff)
    terms[0] = 1.0
    partial = 1.0
    for term in terms[1:]:
        partial = float(arithmetic.computed.rounded(np.array(partial + term)))
    assert partial == 1.0
    for ball in (np.sum(Ball.exact(terms, arithmetic)), Ball.exact(terms, arithmetic) @ np.ones(9)):
        true = Ball(1.0 + 8 * arithmetic.computed.roundoff, ball.radius, arithmetic)
        assert 0.4 <= ratio(np.array(partial), true) <= 1.0


def test_in_float64_the_reference_rounds_as_well_as_the_implementation() -> None:
    x = Ball.exact([1.5], FORMATS["float64"])
    for result in (x + 3.0, x * 3.0, x / 3.0, np.square(x), np.sqrt(x), np.exp(x), np.tanh(x)):
        assert (result.radius / result.value >= 3 * 2.0**-53).all()
