"""Random expressions never leave their ball, neither in 60 digits nor on simulated machines."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from properties.rounding import Ball, ratio
from properties.rounding.arithmetic import Arithmetic
from tests.rounding.programs import (
    DIGITS,
    IN_DIGITS,
    ON_BALLS,
    SIDE,
    Step,
    digits,
    distance_over_radius,
    drawn_program,
    on_machine,
    run,
)
from tests.rounding.simulation import FORMATS, Machine, drawn, nearest

PROGRAMS = 240
EXTREME_PROGRAMS = 120
INPUTS = 3
LENGTH = 8
MACHINES = 3


def drawn_inputs(arithmetic: Arithmetic, rng: np.random.Generator) -> list[Any]:
    """Numbers of many sizes, with exact zeros, ones and subnormal numbers among them."""
    spread = rng.choice([0.5, 3.0, 12.0])
    arrays = [drawn(arithmetic, rng, (SIDE, SIDE), (-spread, spread)) for _ in range(INPUTS)]
    for special in (0.0, 1.0, -1.0, arithmetic.computed.smallest_normal / 4):
        if rng.random() < 0.3:
            array = arrays[rng.integers(INPUTS)]
            array[tuple(rng.integers(SIDE, size=2))] = special
    return arrays


def lines(program: list[Step]) -> str:
    return "\n".join(f"{INPUTS + i}: {s.name} {s.operands}" for i, s in enumerate(program))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("part", range(2))
def test_no_expression_leaves_its_ball(format_name: str, part: int) -> None:
    arithmetic = FORMATS[format_name]
    decided = total = 0
    for seed in range(part * PROGRAMS // 2, (part + 1) * PROGRAMS // 2):
        rng = np.random.default_rng(seed)
        program = drawn_program(rng, INPUTS, LENGTH)
        inputs = drawn_inputs(arithmetic, rng)
        balls = run(program, [Ball.exact(x, arithmetic) for x in inputs], ON_BALLS)
        for ball in balls:
            decided += int(np.isfinite(ball.radius).sum())
            total += ball.size
            assert not np.isnan(ball.radius).any()
        check_digits(program, inputs, balls, seed)
        for _ in range(MACHINES):
            check_machine(program, inputs, balls, Machine(arithmetic, rng), seed)
    assert decided > 0.6 * total


def check_digits(program: list[Step], inputs: list[Any], balls: list[Ball], seed: int) -> None:
    with mpmath.workdps(DIGITS):
        exact = run(program, [digits(x) for x in inputs], IN_DIGITS)
        for place, (true, ball) in enumerate(zip(exact, balls, strict=True)):
            worst = distance_over_radius(true, ball.value, ball.radius)
            assert worst <= 1.0, f"step {place} of program {seed}\n{lines(program)}"


def check_machine(
    program: list[Step], inputs: list[Any], balls: list[Ball], machine: Machine, seed: int
) -> None:
    """Every value is inside its ball and its ends, and NaN only where that is announced."""
    with np.errstate(all="ignore"):
        found = run(program, [machine.read(x) for x in inputs], on_machine(machine))
    for place, (actual, ball) in enumerate(zip(found, balls, strict=True)):
        numbers = np.broadcast_to(actual, ball.shape)
        wrong = ratio(numbers, ball) > 1.0
        wrong |= (numbers < ball.bounds[0]) | (numbers > ball.bounds[1])
        if ball.floor is not None:
            wrong |= numbers < ball.floor
        if ball.least_size is not None:
            nearer = numbers * np.sign(ball.value) < ball.least_size
            wrong |= nearer & (ball.least_size > 0.0)
        wrong |= np.isnan(numbers) & ~np.isnan(ball.value)
        assert not wrong.any(), (
            f"step {place} of program {seed}, {vars(machine)}\n{lines(program)}\n"
            f"{numbers}\n{ball}, bounds {ball.bounds}"
        )


def extreme_inputs(arithmetic: Arithmetic, rng: np.random.Generator) -> list[Any]:
    """Inputs with infinities, and with numbers at both ends of the range."""
    arrays = drawn_inputs(arithmetic, rng)
    number = arithmetic.computed
    ends = [np.inf, -np.inf, number.largest, -number.largest, number.smallest_normal]
    ends += [np.sqrt(number.largest), 1.0 / np.sqrt(number.largest)]
    for array in arrays:
        for _ in range(rng.integers(4)):
            end = nearest(rng.choice(ends), number)
            array[tuple(rng.integers(SIDE, size=2))] = end
    return arrays


@pytest.mark.parametrize("format_name", FORMATS)
def test_claims_hold_at_the_ends_of_the_range(format_name: str) -> None:
    """Certain infinities are found, NaN appears only where it is announced, and bounds hold."""
    arithmetic = FORMATS[format_name]
    certain = 0
    for seed in range(EXTREME_PROGRAMS):
        rng = np.random.default_rng(seed + 10_000)
        program = drawn_program(rng, INPUTS, LENGTH)
        inputs = extreme_inputs(arithmetic, rng)
        balls = run(program, [Ball.exact(x, arithmetic) for x in inputs], ON_BALLS)
        certain += sum(int((np.isinf(b.value) & (b.radius == 0.0)).sum()) for b in balls[INPUTS:])
        for _ in range(MACHINES):
            check_machine(program, inputs, balls, Machine(arithmetic, rng), seed)
    assert certain > EXTREME_PROGRAMS
