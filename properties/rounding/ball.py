"""Ball(value, radius): a float64 array together with how far an implementation may be from it.

The claim of a ball is: every implementation that evaluates the same formula in the declared formats
obtains, at each place, a number within ``radius`` of ``value``. Special values:

* radius inf: any number or infinity; with a NaN value, NaN as well ("unknown");
* value +-inf, radius 0: exactly that infinity;
* value NaN, radius 0: exactly NaN, which came in as NaN.

NumPy hands its functions over to the handlers registered in :mod:`properties.rounding.dispatch`, so
functions written for arrays run on balls unchanged. What has no handler raises TypeError.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from properties.rounding.arithmetic import Arithmetic, Float64s
from properties.rounding.bounds import FREE, Bounds
from properties.rounding.decision import Decision
from properties.rounding.dispatch import FUNCTIONS, UFUNCS, refuse

_CONSTANTS_KEPT = 512
_SCALARS = (int, float, np.integer, np.floating)

__all__ = ["Ball", "lifted", "made", "ratio"]


class Origin(NamedTuple):
    """Of a mean of squares, or its root: the ball that was squared, and how many were averaged."""

    squared: Any
    number: float


class Ball(NDArrayOperatorsMixin):
    """A float64 ``value`` with a ``radius`` (>= 0, inf for no claim) of the same shape.

    ``radius`` may broadcast to ``value``. Raises ValueError for a negative or NaN radius.
    ``bounds`` holds for every element whatever its radius; the operations find it themselves.
    ``floor``, where it is not None, is a lower end (>= 0) of each element, beside the radius: that
    of a square is nearer than the radius, which reaches equally far to both sides. ``least_size``,
    where it is not None, is how far from 0 each element is at least, on its value's side: of a
    quotient that overflows, the radius no longer tells that. ``origin`` marks squares, their mean,
    and its root, so that a quotient by it is known not to exceed the root of their number.
    """

    __slots__ = ("_spread", "arithmetic", "bounds", "floor", "least_size", "origin", "value")

    value: Float64s
    arithmetic: Arithmetic
    bounds: Bounds
    floor: Float64s | None
    least_size: Float64s | None
    origin: Origin | None
    _spread: Float64s | None

    def __init__(self, value: Any, radius: Any, arithmetic: Arithmetic) -> None:
        self.value = _float64(value)
        spread = np.broadcast_to(_float64(radius), self.value.shape)
        if not (spread >= 0.0).all():
            raise ValueError("a radius must be at least 0 and not NaN; use inf where nothing holds")
        self._spread = spread if spread.any() else None
        self.arithmetic = arithmetic
        self.bounds = FREE
        self.floor = None
        self.least_size = None
        self.origin = None

    @classmethod
    def exact(cls, values: Any, arithmetic: Arithmetic) -> Ball:
        """Values that every implementation is given, as it reads them: radius 0 where it can.

        A number that the compute format lacks has to be rounded first, and a subnormal one may be
        read as zero: there the radius is that distance.
        """
        value = _float64(values)
        with np.errstate(all="ignore"):
            return made(value, arithmetic.reading_error(value), arithmetic)

    def under(self, arithmetic: Arithmetic) -> Ball:
        """The same numbers, to be worked on with another arithmetic.

        Where its compute format is coarser, reading the numbers costs one rounding to it.
        """
        number = arithmetic.computed
        if number.roundoff <= self.arithmetic.computed.roundoff:
            return made(self.value, self._spread, arithmetic, self.bounds)
        with np.errstate(all="ignore"):
            size = np.abs(self.value) + self.radius
            read = np.where(size > 0.0, number.roundoff * size + number.underflow, 0.0)
            read = np.where(size > number.largest, np.inf, read)
            special = ~np.isfinite(self.value) & (self.radius == 0.0)
            spread = np.where(special, 0.0, self.radius + read)
        return made(self.value, spread, arithmetic)

    @property
    def radius(self) -> Float64s:
        """The radius as an array of the value's shape."""
        return np.zeros(self.value.shape) if self._spread is None else self._spread

    @property
    def spread(self) -> Float64s | None:
        """The radius, or None where all of it is 0."""
        return self._spread

    # NumPy's protocols -------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        handler = UFUNCS.get(ufunc)
        if handler is None or method != "__call__":
            refuse(f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))
        if kwargs:
            refuse(f"np.{ufunc.__name__} with {', '.join(kwargs)}")
        arithmetic = self.arithmetic
        with np.errstate(all="ignore"):
            return handler(*[lifted(operand, arithmetic) for operand in inputs])

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        del types
        handler = FUNCTIONS.get(function)
        if handler is None:
            refuse(f"np.{function.__name__}")
        with np.errstate(all="ignore"):
            return handler(self.arithmetic, *args, **kwargs)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        del dtype, copy
        refuse("conversion of a Ball to an array", "would drop its radius: read .value on purpose")

    def __float__(self) -> NoReturn:
        refuse("float() of a Ball", "would drop its radius: read .value on purpose")

    def __bool__(self) -> NoReturn:
        refuse("the truth of a Ball", "is not defined: compare it, or read .value on purpose")

    # What arrays have --------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    @property
    def T(self) -> Ball:
        return self.transpose()

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Ball:
        spread = None if self._spread is None else self._spread[index]
        return made(self.value[index], spread, self.arithmetic, self.bounds)

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Ball:
        result: Ball = np.sum(self, axis=axis, keepdims=keepdims)
        return result

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Ball:
        result: Ball = np.mean(self, axis=axis, keepdims=keepdims)
        return result

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Ball:
        result: Ball = np.max(self, axis=axis, keepdims=keepdims)
        return result

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Ball:
        result: Ball = np.min(self, axis=axis, keepdims=keepdims)
        return result

    def reshape(self, *shape: Any) -> Ball:
        return self._viewed("reshape", *shape)

    def swapaxes(self, first: int, second: int) -> Ball:
        return self._viewed("swapaxes", first, second)

    def transpose(self, *axes: Any) -> Ball:
        return self._viewed("transpose", *axes)

    def _viewed(self, method: str, *args: Any) -> Ball:
        view = operator.methodcaller(method, *args)
        spread = None if self._spread is None else view(self._spread)
        return made(view(self.value), spread, self.arithmetic, self.bounds)

    def __repr__(self) -> str:
        return f"Ball(value={self.value!r}, radius={self.radius!r}, {self.arithmetic})"


def made(
    value: Any, spread: Any, arithmetic: Arithmetic, bounds: Bounds = FREE, floor: Any = None
) -> Ball:
    """A ball from parts that are known to fit; ``spread`` None stands for a radius of 0."""
    ball = Ball.__new__(Ball)
    ball.value = value if type(value) is np.ndarray else np.asarray(value)
    ball._spread = spread if spread is None or type(spread) is np.ndarray else np.asarray(spread)
    ball.arithmetic = arithmetic
    ball.bounds = bounds
    ball.floor = floor
    ball.least_size = None
    ball.origin = None
    return ball


def lifted(operand: Any, arithmetic: Arithmetic) -> Ball:
    """The operand as a ball: plain numbers and arrays are exact, up to how they can be held.

    A comparison of balls counts as 0 or 1, and as either where it could go both ways.
    Raises TypeError for balls of another arithmetic and for anything that is not real numbers.
    """
    if isinstance(operand, Ball):
        if operand.arithmetic is not arithmetic and operand.arithmetic != arithmetic:
            raise TypeError(
                f"balls of different arithmetics meet: {operand.arithmetic} and {arithmetic}; "
                "convert one with Ball.under"
            )
        return operand
    if isinstance(operand, _SCALARS):
        return _constant(float(operand), arithmetic)
    if isinstance(operand, Decision):
        doubt = operand.doubt
        spread = None if doubt is None else doubt.astype(np.float64)
        return made(np.asarray(operand).astype(np.float64), spread, arithmetic, (0.0, 1.0))
    value = _float64(operand)
    return made(value, arithmetic.reading_error(value), arithmetic)


def _constant(number: float, arithmetic: Arithmetic) -> Ball:
    key = number.hex()  # tells 0.0 from -0.0
    known: Ball | None = arithmetic.constants.get(key)
    if known is not None:
        return known
    value = np.array(number)
    with np.errstate(all="ignore"):
        spread = arithmetic.reading_error(value)
    error = 0.0 if spread is None else float(spread)
    bounds = FREE if math.isnan(number) else (number - error, number + error)
    ball = made(value, spread, arithmetic, bounds)
    if len(arithmetic.constants) < _CONSTANTS_KEPT:
        arithmetic.constants[key] = ball
    return ball


def _float64(values: Any) -> Float64s:
    """Real numbers as float64, plain ndarray. Raises TypeError for any other kind of object."""
    array = np.asarray(values)
    if array.dtype.kind in "OSUMmc":
        raise TypeError(f"{type(values).__name__} of dtype {array.dtype} is no array of reals")
    return np.asarray(array, dtype=np.float64)


def ratio(actual: Any, ball: Ball) -> Float64s:
    """abs(actual - value) / radius, elementwise: at most 1 inside the ball.

    0 where both are equal, equal infinities and NaN for NaN included; inf for any difference from
    an exact value, and for NaN against a number or the reverse. NaN where the radius is infinite:
    nothing is known there. ``actual`` is a plain array of the ball's shape, of any real format.
    Raises ValueError for another shape, and TypeError for a Ball.
    """
    if isinstance(actual, Ball):
        raise TypeError("the first argument of ratio is a plain array, not a Ball")
    found: Float64s = np.asarray(actual).astype(np.float64)
    if found.shape != ball.shape:
        raise ValueError(f"the array has shape {found.shape}, but the ball {ball.shape}")
    value, radius = ball.value, ball.radius
    with np.errstate(all="ignore"):
        distance = np.abs(found - value)
        ratios = np.where(radius == 0.0, np.inf, distance / radius)
    ratios = np.where(np.isnan(found) | np.isnan(value), np.inf, ratios)
    same = (found == value) | (np.isnan(found) & np.isnan(value))
    ratios = np.where(same, 0.0, ratios)
    return np.where(np.isinf(radius), np.nan, ratios)
