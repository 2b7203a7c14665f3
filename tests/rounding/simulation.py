"""Arithmetic of a low precision machine, simulated with every freedom that implementations take.

Numbers are float64 arrays that hold values of the format. Each operation is computed in float64 and
rounded once; for the formats used here that equals one correct rounding of basic operations. A
``Machine`` draws its habits (rounding mode, flushing, reciprocals, order of sums, fused products)
once, at random, as an implementation does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from properties.rounding.arithmetic import Arithmetic, Format


def nearest(z: Any, number: Format) -> Any:
    return number.rounded(np.asarray(z, dtype=np.float64))


def towards_zero(z: Any, number: Format) -> Any:
    """Cut off digits instead of rounding; exact only up to float64, which is close enough here."""
    rounded = nearest(z, number)
    if number.name == "float64":
        return rounded
    lower = np.nextafter(rounded.astype(number.dtype), np.zeros((), number.dtype))
    return np.where(np.abs(rounded) > np.abs(z), lower.astype(np.float64), rounded)


def away_from_zero(z: Any, number: Format) -> Any:
    """The neighbour on the other side of z, where there is one: errs like a truncation."""
    rounded = nearest(z, number)
    if number.name == "float64":
        return rounded
    outwards = np.copysign(np.array(np.inf, number.dtype), rounded.astype(number.dtype))
    higher = np.nextafter(rounded.astype(number.dtype), outwards).astype(np.float64)
    higher = np.where(np.isfinite(higher), higher, rounded)
    return np.where(np.abs(rounded) < np.abs(z), higher, rounded)


class Machine:
    """One implementation's way of computing in the formats of an arithmetic."""

    def __init__(self, arithmetic: Arithmetic, rng: np.random.Generator) -> None:
        self.arithmetic = arithmetic
        self.rng = rng
        self.number = arithmetic.computed
        self.truncates = bool(rng.random() < 0.2) and self.number.name != "float64"
        # Some do their worst: full errors of library functions, roundings to either neighbour.
        self.devious = not self.truncates and bool(rng.random() < 0.25)
        self.sign = float(rng.choice([-1.0, 0.0, 1.0]))  # 0: another one for each number
        self.flushes = self.number.flushes and bool(rng.random() < 0.5)
        self.reciprocals = not (self.truncates or self.devious) and bool(rng.random() < 0.5)
        self.exp_by_powers_of_two = bool(rng.random() < 0.5)
        self.fused = bool(rng.random() < 0.5)
        self.order: str = rng.choice(["sequential", "pairwise", "chunks"])
        self.wide = bool(rng.random() < 0.1)  # keeps float64 between the stores

    def fit(self, z: Any) -> Any:
        """Round the result of an elementwise operation, as the machine does."""
        if self.truncates and not self.wide:
            z = towards_zero(z, self.number)
        if self.devious and not self.wide:
            outwards = self._signs(np.shape(z)) > 0.0
            z = np.where(outwards, away_from_zero(z, self.number), towards_zero(z, self.number))
        return self.fit_nearest(z, self.number)

    def _signs(self, shape: tuple[int, ...]) -> Any:
        return self.sign if self.sign else self.rng.choice([-1.0, 1.0], shape)

    def fit_nearest(self, z: Any, number: Format) -> Any:
        """Round to nearest: what every machine does in sums and inside library functions."""
        if self.wide:
            return np.asarray(z, dtype=np.float64)
        rounded = nearest(z, number)
        if self.flushes and number.flushes:
            rounded = np.where(np.abs(rounded) < number.smallest_normal, 0.0 * rounded, rounded)
        return rounded

    def read(self, values: Any) -> Any:
        """How the machine holds given numbers: constants rounded, subnormals perhaps lost."""
        held = np.asarray(values, dtype=np.float64)
        if not self.wide:
            held = nearest(held, self.number)
        if self.flushes:
            held = np.where(np.abs(held) < self.number.smallest_normal, 0.0 * held, held)
        return held

    def store(self, x: Any) -> Any:
        return nearest(x, self.arithmetic.stored)

    def near(self, z: Any, ulps: float) -> Any:
        """A result of a mathematical library: wrong by up to ``ulps`` at random, then rounded.

        An ulp is 2 u, relative to numbers just above a power of two.
        """
        signs = self._signs(np.shape(z)) if self.devious else self.rng.uniform(-1, 1, np.shape(z))
        wobble = signs * max(ulps - 0.5, 0.0)
        return self.fit_nearest(z * (1.0 + 2.0 * wobble * self.number.roundoff), self.number)

    # Elementwise -------------------------------------------------------------------------------

    def add(self, x: Any, y: Any) -> Any:
        return self.fit(x + y)

    def subtract(self, x: Any, y: Any) -> Any:
        return self.fit(x - y)

    def multiply(self, x: Any, y: Any) -> Any:
        return self.fit(x * y)

    def divide(self, x: Any, y: Any) -> Any:
        return self.fit(x * self.fit(1.0 / y)) if self.reciprocals else self.fit(x / y)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        return self.fit(x * y + z) if self.fused else self.fit(self.fit(x * y) + z)

    def square(self, x: Any) -> Any:
        return self.fit(x * x)

    def sqrt(self, x: Any) -> Any:
        return self.near(np.sqrt(x), 0.5)

    def over_root(self, x: Any, y: Any) -> Any:
        """x / sqrt(y)."""
        if self.reciprocals:
            return self.fit(x * self.near(1.0 / np.sqrt(y), 2.0))
        return self.divide(x, self.sqrt(y))

    def exp(self, x: Any) -> Any:
        if self.exp_by_powers_of_two:
            power = self.fit_nearest(x * self.read(np.log2(np.e)), self.number)
            return self.near(np.exp2(power), 1.0)
        return self.near(np.exp(x), 1.5)

    def tanh(self, x: Any) -> Any:
        bounded = np.clip(self.near(np.tanh(x), 3.0), -1.0, 1.0)
        return np.where(np.isinf(x), np.sign(x), bounded)

    def sigmoid(self, x: Any) -> Any:
        """By its own sign, which may differ from the reference's sign where x is nearly 0."""
        tail = self.exp(-np.abs(x))
        return self.divide(np.where(x >= 0, 1.0, tail), self.add(1.0, tail))

    # Sums --------------------------------------------------------------------------------------

    def accumulate(self, terms: Any) -> Any:
        """The sum over the last axis, in an order of the machine's own."""
        terms = self.fit_nearest(terms, self.arithmetic.accumulated)
        terms = terms[..., self.rng.permutation(terms.shape[-1])]
        if self.order == "chunks" and terms.shape[-1] > 4:
            parts = np.array_split(terms, 4, axis=-1)
            return self._in_turn(np.stack([self._in_turn(part) for part in parts], axis=-1))
        return self._pairwise(terms) if self.order == "pairwise" else self._in_turn(terms)

    def _in_turn(self, terms: Any) -> Any:
        partial = np.zeros(terms.shape[:-1])
        for place in range(terms.shape[-1]):
            partial = self.fit_nearest(partial + terms[..., place], self.arithmetic.accumulated)
        return partial

    def _pairwise(self, terms: Any) -> Any:
        while terms.shape[-1] > 1:
            odd = terms[..., -1:] if terms.shape[-1] % 2 else terms[..., :0]
            even = terms.shape[-1] // 2 * 2
            pairs = terms[..., 0:even:2] + terms[..., 1:even:2]
            terms = np.concatenate(
                [self.fit_nearest(pairs, self.arithmetic.accumulated), odd], axis=-1
            )
        return terms[..., 0] if terms.shape[-1] else np.zeros(terms.shape[:-1])

    def sum(self, x: Any) -> Any:
        return self.fit_nearest(self.accumulate(x), self.number)

    def mean(self, x: Any) -> Any:
        count = float(x.shape[-1])
        if self.reciprocals:
            return self.fit(self.accumulate(x) * self.read(1.0 / count))
        return self.fit(self.accumulate(x) / count)

    def matmul(self, x: Any, y: Any) -> Any:
        """x (…, M, K) by y (…, K, N)."""
        products = x[..., :, None, :] * np.swapaxes(y, -1, -2)[..., None, :, :]
        if not self.fused:
            products = self.fit_nearest(products, self.number)
        return self.fit_nearest(self.accumulate(products), self.number)


def machines(arithmetic: Arithmetic, rng: np.random.Generator, count: int) -> list[Machine]:
    return [Machine(arithmetic, rng) for _ in range(count)]


def drawn(
    arithmetic: Arithmetic,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    exponents: tuple[float, float] = (-3.0, 3.0),
) -> Any:
    """Random numbers of the compute format, of both signs, over many powers of ten."""
    sizes = 10.0 ** rng.uniform(*exponents, shape)
    sizes = np.minimum(sizes, arithmetic.computed.largest)
    return nearest(sizes * rng.choice([-1.0, 1.0], shape), arithmetic.computed)


FORMATS: dict[str, Arithmetic] = {
    "float32": Arithmetic(),
    "float16": Arithmetic("float16", "float16", "float16"),
    "bfloat16": Arithmetic("bfloat16", "bfloat16", "bfloat16"),
    "mixed": Arithmetic("bfloat16", "float32", "bfloat16"),
    "rounded in memory": Arithmetic("float32", "float32", "bfloat16"),
    "float64": Arithmetic("float64", "float64", "float64"),
}

Operation = Callable[..., Any]
