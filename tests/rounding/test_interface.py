"""What a ball is to NumPy: the functions it takes over, and clear refusals of all others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties.rounding import Arithmetic, Ball, Decision
from tests.rounding.simulation import FORMATS

FLOAT32 = FORMATS["float32"]


def ball(*shape: int) -> Ball:
    values = np.arange(1.0, 1.0 + np.prod(shape, dtype=int)).reshape(shape)
    return Ball(values, values / 100, FLOAT32)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "np.log": (
        np.log,
        "np.log has no error bound here; a Ball knows absolute, .* where, and reading",
    ),
    "power": (lambda x: x**2, "np.power"),
    "sort": (np.sort, "np.sort"),
    "argsort": (np.argsort, "np.argsort"),
    "einsum": (lambda x: np.einsum("ij->i", x), "np.einsum"),
    "reduce": (np.add.reduce, "np.add.reduce"),
    "out": (lambda x: np.add(x, x, out=np.empty((2, 3))), "np.add with out"),
    "in place": (lambda x: np.add(np.zeros((2, 3)), x, out=np.zeros((2, 3))), "np.add with out"),
    "asarray": (np.asarray, "conversion of a Ball to an array would drop its radius: read .value"),
    "float": (lambda x: float(x[0, 0]), r"float\(\) of a Ball would drop its radius: read .value"),
    "truth": (bool, "the truth of a Ball is not defined: compare it, or read .value"),
    "ball as condition": (lambda x: np.where(x, 1.0, 2.0), "np.where without a boolean"),
    "one argument of where": (lambda x: np.where(x), "np.where without"),
    "out of a view": (lambda x: np.take(x, [0], out=np.zeros(1)), "np.take with out"),
    "ball as index": (lambda x: np.take_along_axis(np.ones((2, 3)), x, 1), "a Ball for an index"),
    "initial": (lambda x: np.sum(x, initial=1.0), "np.sum with initial"),
    "where in max": (lambda x: np.max(x, where=[True], initial=0), "np.max with where, initial"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_error_bound_is_refused_by_name(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(TypeError, match=message):
        function(ball(2, 3))


@pytest.mark.parametrize("other", ["text", None, 1j, np.array(["a"]), np.array([None])])
def test_what_is_not_real_numbers_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="no array of reals"):
        ball(2) * other
    with pytest.raises(TypeError, match="no array of reals"):
        Ball.exact(other, FLOAT32)


def test_balls_of_different_arithmetics_do_not_mix() -> None:
    other = Ball.exact(np.ones(2), Arithmetic("bfloat16"))
    with pytest.raises(TypeError, match=r"different arithmetics .* Ball.under"):
        ball(2) + other
    same = Ball.exact(np.ones(2), Arithmetic())
    assert (ball(2) + same).shape == (2,)


@pytest.mark.parametrize("radius", [-1.0, np.nan])
def test_a_radius_is_a_number_of_at_least_zero(radius: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Ball([1.0], [radius], FLOAT32)


def test_a_ball_looks_like_an_array() -> None:
    x = ball(2, 3)
    assert (x.shape, x.ndim, x.size, len(x), x.dtype) == ((2, 3), 2, 6, 2, np.float64)
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2, 3), 2, 6)
    assert [row.shape for row in x] == [(3,), (3,)]
    assert "radius" in repr(x)
    with pytest.raises(TypeError):
        x[0] = 1.0  # type: ignore[index]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "slice": lambda x: x[:, 1:],
    "none": lambda x: x[:, None],
    "integers": lambda x: x[np.array([[1, 0], [0, 0]]), np.arange(2)],
    "mask": lambda x: x[np.array([True, False])],
    "T": lambda x: x.T,
    "transpose": lambda x: np.transpose(x, (1, 0)),
    "method transpose": lambda x: x.transpose(1, 0),
    "swapaxes": lambda x: np.swapaxes(x, -1, -2),
    "method swapaxes": lambda x: x.swapaxes(0, 1),
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "method reshape": lambda x: x.reshape(-1),
    "method reshape to a shape": lambda x: x.reshape((3, 2)),
    "broadcast_to": lambda x: np.broadcast_to(x, (4, 2, 3)),
    "expand_dims": lambda x: np.expand_dims(x, 0),
    "squeeze": lambda x: np.squeeze(x[:, :1], axis=1),
    "moveaxis": lambda x: np.moveaxis(x, 0, 1),
    "ravel": np.ravel,
    "flip": np.flip,
    "repeat": lambda x: np.repeat(x, 2, axis=0),
    "copy": np.copy,
    "take": lambda x: np.take(x, [2, 0], axis=1),
    "take_along_axis": lambda x: np.take_along_axis(x, np.array([[2, 2], [0, 1]]), axis=1),
    "stack": lambda x: np.stack([x, x], axis=1),
    "concatenate": lambda x: np.concatenate((x, x)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_elements_move_with_their_radii(name: str) -> None:
    x = ball(2, 3)
    moved = VIEWS[name](x)
    np.testing.assert_array_equal(moved.value, VIEWS[name](x.value))
    np.testing.assert_array_equal(moved.radius, VIEWS[name](x.radius))
    assert VIEWS[name](Ball.exact(x.value, FLOAT32)).spread is None


def test_joining_takes_plain_arrays_as_exact() -> None:
    joined = np.concatenate([ball(2), np.array([7.0]), Ball.exact([1.0], FLOAT32)])
    np.testing.assert_array_equal(joined.value, [1.0, 2.0, 7.0, 1.0])
    np.testing.assert_array_equal(joined.radius, [0.01, 0.02, 0.0, 0.0])


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (1,)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_have_numpys_values_and_shapes(axis: Any, keepdims: bool) -> None:
    x = ball(2, 3)
    for function in (np.sum, np.mean, np.max, np.min):
        expected = function(x.value, axis=axis, keepdims=keepdims)
        result = function(x, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(result.value, expected, rtol=1e-15)
        assert result.shape == result.radius.shape == np.shape(expected)
        method = getattr(x, function.__name__)
        np.testing.assert_array_equal(method(axis=axis, keepdims=keepdims).radius, result.radius)


@pytest.mark.parametrize(
    "shapes", [((3,), (3,)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((0, 3),) * 2]
)
def test_matrix_products_have_numpys_shapes(shapes: Any) -> None:
    left, right = shapes
    x, y = ball(*left), ball(*right)
    if left == right == (0, 3):
        y = y.T
    for product in (x @ y, x.value @ y, x @ y.value):
        expected = np.matmul(x.value, y.value)
        np.testing.assert_allclose(product.value, expected)
        assert product.radius.shape == np.shape(expected)


def test_empty_balls_pass_through() -> None:
    x = ball(0, 3)
    for result in (x * x, x / x, np.exp(x), np.tanh(x), np.sqrt(x), np.positive(x), x + 1.0):
        assert result.shape == (0, 3)
    np.testing.assert_array_equal(np.sum(x, axis=0).value, np.zeros(3))
    np.testing.assert_array_equal((x.T @ x).radius, np.zeros((3, 3)))


def test_plain_arrays_on_either_side() -> None:
    x = ball(3)
    for other in (np.arange(3.0), np.arange(3), np.float64(2.0), np.float32(2.0), 2, True):
        for result in (x + other, other + x, x * other, other * x, x - other, other - x):
            assert isinstance(result, Ball)
            assert result.shape == (3,)


# Comparisons ------------------------------------------------------------------------------------


def test_comparisons_are_boolean_arrays_of_the_values() -> None:
    x = ball(3)
    for outcome in (x >= 2.0, x > 1.0, x == 2.0, x != 3.0, x < 2.0, x <= 1.5, np.ones(3) < x):
        assert isinstance(outcome, np.ndarray)
        assert outcome.dtype == np.bool_
    np.testing.assert_array_equal(x >= 2.0, [False, True, True])
    assert (x > 0).all()
    assert not (x > 5).any()
    assert int((x > 1.5).sum()) == 2
    np.testing.assert_array_equal(np.arange(3)[x > 1.5], [1, 2])
    np.testing.assert_array_equal(np.isfinite(x), True)


def test_a_branch_in_doubt_reaches_over_both_sides() -> None:
    x = Ball(np.array([0.1, 0.3, -0.1]), np.array([0.2, 0.2, 0.0]), FLOAT32)
    chosen = np.where(x >= 0, 5.0, 3.0)
    np.testing.assert_array_equal(chosen.value, [5.0, 5.0, 3.0])
    np.testing.assert_array_equal(chosen.radius > 0, [True, False, False])
    assert chosen.radius[0] == pytest.approx(2.0)
    between = np.where(x >= 0, x, -x)
    assert between.radius[0] == pytest.approx(0.4)


def test_doubt_follows_logic_and_indexing_and_counts_as_zero_or_one() -> None:
    x = Ball(np.array([0.1, 0.3]), np.array([0.2, 0.2]), FLOAT32)
    positive = x >= 0
    assert isinstance(positive, Decision)
    for decision in (positive, ~positive, positive & True, positive | (x > 2), positive[:, None]):
        np.testing.assert_array_equal(np.ravel(decision.doubt), [True, False])
    np.testing.assert_array_equal(positive.reshape(2, 1).doubt, [[True], [False]])
    assert (x >= -5).doubt is None or not (x >= -5).doubt.any()
    counted = x * positive
    np.testing.assert_array_equal(counted.value, x.value)
    assert counted.radius[0] >= 0.3
    with pytest.raises(TypeError, match="lost track"):
        np.where(np.squeeze(positive.T), x, 0.0)


def test_exact_comparisons_are_never_in_doubt() -> None:
    x = Ball.exact([1.0, 2.0], FLOAT32)
    assert (x >= 1.0).doubt is None
    assert type(np.where(x >= 1.5, 1.0, 0.0)) is np.ndarray


# Cost -------------------------------------------------------------------------------------------


def test_small_operations_cost_tens_of_microseconds() -> None:
    """Suites evaluate millions of small operations; a loop over elements would show here."""
    x, y = ball(8, 16), ball(8, 16)
    operations = (lambda: x + y, lambda: x * y, lambda: x / y, lambda: np.exp(-x), lambda: x.sum(1))
    for operation in operations:
        operation()
    start = time.process_time()
    for _ in range(100):
        for operation in operations:
            operation()
    assert (time.process_time() - start) / 500 < 2e-4
