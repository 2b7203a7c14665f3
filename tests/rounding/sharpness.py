"""Figures on radii: errors of many machines, and of the reference against 60 digits, in radii.

Machines have their habits by chance, except for those that are directed at one result.

A ratio is the error divided by the radius, where the radius is finite and not 0. The worst one
says whether radii hold (it is at most 1), and both say whether they bite: a radius that is far from
every error that was ever seen lets mistakes pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import mpmath
import numpy as np

from properties.rounding import Ball, ratio
from properties.rounding.arithmetic import Arithmetic
from tests.rounding.carriers import in_digits, simulated
from tests.rounding.composites import COMPOSITES, Drawn, Rng, holding
from tests.rounding.directed import Slopes, directed_results
from tests.rounding.programs import DIGITS
from tests.rounding.simulation import FORMATS, Machine

# A radius this many times the worst error that was ever seen would not bite.
LOOSEST = 100.0

__all__ = [
    "LOOSEST",
    "Figures",
    "apart",
    "composite_figures",
    "digit_ratios",
    "directed_ratios",
    "machine_ratios",
]


# Results that the two directed machines are directed at: the most promising of this many.
PLACES, TARGETS = 4, 2

# Rounding to memory is to nearest and cannot be directed. Where it is most of the error, inputs are
# searched instead: so many times as many of them as machines are directed on.
SEARCHED = 4


class Figures(NamedTuple):
    """Of one result: ratios of all machines, and the radii relative to the values, in units.

    ``directed`` is the worst ratio of the machines that err on purpose, where there are some.
    """

    ratios: Any
    units: Any
    directed: float | None = None

    @property
    def chance(self) -> float:
        """The worst ratio of machines whose errors fall as they may."""
        return float(self.ratios.max(initial=0.0))

    @property
    def worst(self) -> float:
        return max(self.chance, self.directed or 0.0)

    @property
    def median(self) -> float:
        return float(np.median(self.ratios))


@cache
def composite_figures(
    name: str, format_name: str, cases: int, machines: int, directed_cases: int
) -> dict[str, Figures]:
    """The figures of each result of a composite; nothing where no radius is finite.

    Chance has ``cases`` draws of the inputs, and machines that err on purpose ``directed_cases``.
    """
    arithmetic = FORMATS[format_name]
    seen: dict[str, list[tuple[Any, Any]]] = {}
    for seed in range(cases):
        rng = np.random.default_rng([seed, len(name)])
        drawn = COMPOSITES[name](rng, holding(arithmetic))
        for key, ball, found in machine_ratios(drawn, arithmetic, rng, machines):
            judged = _judged(ball)
            if judged.any():
                seen.setdefault(key, []).append((found[judged], _units(ball, judged)))
    directed = directed_ratios(name, arithmetic, directed_cases)
    return {
        key: Figures(
            *(np.concatenate(column) for column in zip(*pairs, strict=True)), directed.get(key)
        )
        for key, pairs in seen.items()
    }


class _Target(NamedTuple):
    """A result to direct machines at, and how much of its radius that promises, up to a factor."""

    promise: float
    drawn: Drawn
    balls: dict[str, Ball]
    slopes: list[Any]


def directed_ratios(name: str, arithmetic: Arithmetic, cases: int) -> dict[str, float]:
    """The worst ratio of each result of a composite, on machines directed at some element of it."""
    rng = np.random.default_rng([cases, len(name)])
    targets: dict[str, list[_Target]] = {}
    for seed in range(cases):
        drawn = COMPOSITES[name](np.random.default_rng([seed, len(name)]), holding(arithmetic))
        balls = drawn.on(lambda array: Ball.exact(array, arithmetic))
        slopes = Slopes(drawn)
        for key, ball in balls.items():
            places = np.flatnonzero(_judged(ball))
            for place in rng.permutation(places)[:PLACES]:
                found = slopes.directions(key, int(place))
                promise = found.reach / float(ball.radius.flat[place])
                targets.setdefault(key, []).append(_Target(promise, drawn, balls, found.slopes))
    worst = dict.fromkeys(targets, 0.0)
    if arithmetic.stored.roundoff > arithmetic.computed.roundoff:
        worst |= _searched(name, arithmetic, SEARCHED * cases)
    for candidates in targets.values():
        for target in sorted(candidates, key=lambda t: -t.promise)[:TARGETS]:
            for results in directed_results(target.drawn, target.slopes, arithmetic, rng):
                for key in worst:
                    found_ratios = ratio(results[key], target.balls[key])
                    worst[key] = max(worst[key], float(np.nanmax(found_ratios, initial=0.0)))
    return worst


def _searched(name: str, arithmetic: Arithmetic, cases: int) -> dict[str, float]:
    """The worst ratio of each result over many inputs, one machine each."""
    worst: dict[str, float] = {}
    for seed in range(cases):
        rng = np.random.default_rng([seed, len(name)])
        drawn = COMPOSITES[name](rng, holding(arithmetic))
        for key, _, found in machine_ratios(drawn, arithmetic, rng, 1):
            worst[key] = max(worst.get(key, 0.0), float(np.nanmax(found, initial=0.0)))
    return worst


def _judged(ball: Ball) -> Any:
    return np.isfinite(ball.radius) & (ball.radius > 0.0)


def machine_ratios(
    drawn: Drawn, arithmetic: Arithmetic, rng: Rng, machines: int
) -> Iterator[tuple[str, Ball, Any]]:
    """Name, ball and ratios of each result, machine by machine."""
    balls = drawn.on(lambda array: Ball.exact(array, arithmetic))
    for _ in range(machines):
        machine = Machine(arithmetic, rng)
        with np.errstate(all="ignore"):
            found = drawn.on(_reader(machine))
        for key, ball in balls.items():
            yield key, ball, ratio(found[key].value, ball)


def _reader(machine: Machine) -> Callable[[Any], Any]:
    return lambda array: simulated(array, machine)


def _units(ball: Ball, judged: Any) -> Any:
    """Radius over value, in roundoffs of the coarsest format."""
    arithmetic = ball.arithmetic
    formats = (arithmetic.computed, arithmetic.accumulated, arithmetic.stored)
    sizes = np.abs(ball.value[judged])
    with np.errstate(divide="ignore", over="ignore"):
        return ball.radius[judged] / sizes / max(number.roundoff for number in formats)


def digit_ratios(drawn: Drawn) -> dict[str, Any]:
    """The reference's own errors against 60 digits, in radii of a float64 implementation."""
    balls = drawn.on(lambda array: Ball.exact(array, FORMATS["float64"]))
    with mpmath.workdps(DIGITS):
        exact = drawn.on(in_digits)
        return {key: apart(exact[key].value, ball) for key, ball in balls.items()}


def apart(exact: Any, ball: Ball) -> Any:
    """Ratios against numbers in many digits, where the radius is not 0."""
    judged = ball.radius > 0.0
    triples = zip(exact[judged], ball.value[judged], ball.radius[judged], strict=True)
    return np.array([float(abs(true - mpmath.mpf(v)) / mpmath.mpf(r)) for true, v, r in triples])
