"""Random expressions, written once and run on balls, on simulated machines and in 60 digits.

A program is a list of steps over a growing list of 3 x 3 (or 3 x 1) arrays: its inputs, then the
results of the steps. Each kind of arithmetic is a table from the names of ``STEPS`` to functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import mpmath
import numpy as np

from tests.rounding.simulation import Machine

SIDE = 3
DIGITS = 60
CONSTANTS = (0.1, 1.0, -1.0, 0.0, 4.0, 25.0, 1e-5, 1e-20, 3.0)

Table = dict[str, Callable[..., Any]]

# Names and numbers of operands; those listed twice are drawn twice as often.
STEPS: Sequence[tuple[str, int]] = (
    ("add", 2),
    ("add", 2),
    ("subtract", 2),
    ("subtract", 2),
    ("multiply", 2),
    ("multiply", 2),
    ("divide", 2),
    ("divide", 2),
    ("multiply_add", 3),
    ("square", 1),
    ("sqrt", 1),
    ("norm", 1),
    ("exp", 1),
    ("tanh", 1),
    ("sigmoid", 1),
    ("negative", 1),
    ("absolute", 1),
    ("maximum", 2),
    ("minimum", 2),
    ("choose", 3),
    ("sum", 1),
    ("mean", 1),
    ("largest", 1),
    ("matmul", 2),
    ("store", 1),
)


class Step(NamedTuple):
    name: str
    operands: tuple[int | float, ...]  # an int is a place in the list, a float a constant


def drawn_program(rng: np.random.Generator, inputs: int, length: int) -> list[Step]:
    """Steps that prefer what was computed last, so that errors pass through many of them."""
    program = []
    for place in range(inputs, inputs + length):
        name, count = STEPS[rng.integers(len(STEPS))]
        operands: list[int | float] = []
        for _ in range(count):
            if operands and rng.random() < 0.2:
                operands.append(float(rng.choice(CONSTANTS)))
            else:
                operands.append(int(place - 1 - min(rng.geometric(0.4) - 1, place - 1)))
        program.append(Step(name, tuple(operands)))
    return program


def run(program: Sequence[Step], inputs: Sequence[Any], table: Table) -> list[Any]:
    """All values: the inputs and then the result of every step."""
    values = list(inputs)
    constant = table["constant"]
    for step in program:
        operands = [values[o] if isinstance(o, int) else constant(o) for o in step.operands]
        values.append(table[step.name](*operands))
    return values


def _square(x: Any) -> Any:
    return np.broadcast_to(x, (SIDE, SIDE))


def _sigmoid(x: Any) -> Any:
    tail = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, tail) / (1.0 + tail)


ON_BALLS: Table = {
    "constant": lambda c: c,
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "multiply_add": lambda x, y, z: x * y + z,
    "square": np.square,
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "norm": lambda x: x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-5),
    "exp": lambda x: np.exp(np.minimum(x, 25.0)),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "negative": lambda x: -x,
    "absolute": np.abs,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "choose": lambda x, y, z: np.where(x >= y, z, x),
    "sum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "mean": lambda x: np.mean(x, axis=-1, keepdims=True),
    "largest": lambda x: np.max(x, axis=-1, keepdims=True),
    "matmul": lambda x, y: _square(x) @ _square(y),
    "store": np.positive,
}


def on_machine(machine: Machine) -> Table:
    """The same steps in low precision."""

    def norm(x: Any) -> Any:
        squares = machine.mean(machine.square(x))[..., None]
        return machine.over_root(x, machine.add(squares, machine.read(1e-5)))

    return {
        "constant": machine.read,
        "add": machine.add,
        "subtract": machine.subtract,
        "multiply": machine.multiply,
        "divide": machine.divide,
        "multiply_add": machine.multiply_add,
        "square": machine.square,
        "sqrt": lambda x: machine.sqrt(np.abs(x)),
        "norm": norm,
        "exp": lambda x: machine.exp(np.minimum(x, 25.0)),
        "tanh": machine.tanh,
        "sigmoid": machine.sigmoid,
        "negative": np.negative,
        "absolute": np.abs,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "choose": lambda x, y, z: np.where(x >= y, z, x),
        "sum": lambda x: machine.sum(x)[..., None],
        "mean": lambda x: machine.mean(x)[..., None],
        "largest": lambda x: np.max(x, axis=-1, keepdims=True),
        "matmul": lambda x, y: machine.matmul(_square(x), _square(y)),
        "store": machine.store,
    }


# In many digits -----------------------------------------------------------------------------


def digits(values: Any) -> Any:
    """An array of mpmath numbers."""
    return elementwise(lambda x: mpmath.mpf(float(x)))(values)


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply to objects, with NaN where the function or an argument has no value."""

    def safe(*arguments: Any) -> Any:
        try:
            undefined = any(mpmath.isnan(x) for x in arguments)
            return mpmath.mpf("nan") if undefined else function(*arguments)
        except (ZeroDivisionError, ValueError):
            return mpmath.mpf("nan")

    vectorised = np.frompyfunc(safe, function.__code__.co_argcount, 1)
    return lambda *arrays: np.asarray(vectorised(*arrays), dtype=object)


def _clipped(x: Any) -> Any:
    """Arguments of exponentials, small enough to be evaluated: beyond, all formats agree."""
    return max(min(x, mpmath.mpf(10) ** 5), -(mpmath.mpf(10) ** 5))


def _exact_norm(x: Any) -> Any:
    mean = np.sum(x * x, axis=-1, keepdims=True) / mpmath.mpf(x.shape[-1])
    return elementwise(lambda v, m: v / mpmath.sqrt(m + mpmath.mpf(1e-5)))(x, mean)


def _exact_largest(x: Any) -> Any:
    larger = elementwise(lambda a, b: max(a, b))
    return reduce(larger, (x[..., place : place + 1] for place in range(x.shape[-1])))


IN_DIGITS: Table = {
    "constant": mpmath.mpf,
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": elementwise(lambda x, y: x / y),
    "multiply_add": lambda x, y, z: x * y + z,
    "square": lambda x: x * x,
    "sqrt": elementwise(lambda x: mpmath.sqrt(abs(x))),
    "norm": _exact_norm,
    "exp": elementwise(lambda x: mpmath.exp(_clipped(min(x, mpmath.mpf(25))))),
    "tanh": elementwise(lambda x: mpmath.tanh(_clipped(x))),
    "sigmoid": elementwise(lambda x: 1 / (1 + mpmath.exp(-_clipped(x)))),
    "negative": lambda x: -x,
    "absolute": elementwise(lambda x: abs(x)),
    "maximum": elementwise(lambda x, y: max(x, y)),
    "minimum": elementwise(lambda x, y: min(x, y)),
    "choose": elementwise(lambda x, y, z: z if x >= y else x),
    "sum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "mean": lambda x: np.sum(x, axis=-1, keepdims=True) / mpmath.mpf(x.shape[-1]),
    "largest": _exact_largest,
    "matmul": lambda x, y: _square(x) @ _square(y),
    "store": lambda x: x,
}


def distance_over_radius(exact: Any, value: Any, radius: Any) -> float:
    """The worst abs(exact - value) / radius in many digits, over the places that are decided."""
    worst = 0.0
    triples = zip(np.broadcast_to(exact, value.shape).flat, value.flat, radius.flat, strict=True)
    for true, centre, reach in triples:
        if not np.isfinite(reach) or not np.isfinite(centre) or mpmath.isnan(true):
            continue
        distance = abs(true - mpmath.mpf(float(centre)))
        if distance > 0:
            worst = max(worst, float(distance / mpmath.mpf(float(reach))) if reach else np.inf)
    return worst
