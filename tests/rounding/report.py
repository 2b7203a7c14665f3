"""docs/rounding.md: how often, how far and how closely radii hold, by operation and precision.

python -m tests.rounding.report            writes the page, in a quarter of an hour
python -m tests.rounding.report --quick    prints it with a tenth of the cases
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import mpmath
import numpy as np

from properties.rounding import ALLOWANCES, Ball, ratio
from tests.rounding.composites import COMPOSITES, holding
from tests.rounding.programs import (
    DIGITS,
    IN_DIGITS,
    ON_BALLS,
    digits,
    distance_over_radius,
    drawn_program,
    on_machine,
    run,
)
from tests.rounding.sharpness import LOOSEST, Figures, apart, composite_figures, digit_ratios
from tests.rounding.simulation import FORMATS, Machine
from tests.rounding.test_operations import CASES, IN_MANY_DIGITS, arguments, ratios
from tests.rounding.test_soundness import INPUTS, LENGTH, drawn_inputs

PAGE = Path(__file__).parents[2] / "docs" / "rounding.md"
HEAD = Path(__file__).parent / "rounding_page.md"

PROGRAMS, PROGRAM_MACHINES = 1000, 4
COMPOSITE_CASES, COMPOSITE_MACHINES, DIRECTED_CASES = 24, 6, 16

# The formats of compute, accumulate and storage behind the short names.
TITLES = {
    "float64": "float64",
    "float32": "float32",
    "rounded in memory": "float32, stored bfloat16",
    "mixed": "bfloat16, sums float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}


class Soundness(NamedTuple):
    """Random expressions in one arithmetic: numbers compared and worst ratios, both ways."""

    values: int
    in_digits: float
    on_machines: float


@cache
def expressions(format_name: str, programs: int) -> Soundness:
    """The worst ratios of all steps of ``programs`` random expressions."""
    arithmetic = FORMATS[format_name]
    values, worst_digits, worst_machine = 0, 0.0, 0.0
    for seed in range(programs):
        rng = np.random.default_rng([seed, 77])
        program = drawn_program(rng, INPUTS, LENGTH)
        inputs = drawn_inputs(arithmetic, rng)
        balls = run(program, [Ball.exact(x, arithmetic) for x in inputs], ON_BALLS)
        values += sum(int(np.isfinite(ball.radius).sum()) for ball in balls)
        with mpmath.workdps(DIGITS):
            exact = run(program, [digits(x) for x in inputs], IN_DIGITS)
            for true, ball in zip(exact, balls, strict=True):
                distance = distance_over_radius(true, ball.value, ball.radius)
                worst_digits = max(worst_digits, distance)
        for _ in range(PROGRAM_MACHINES):
            machine = Machine(arithmetic, rng)
            with np.errstate(all="ignore"):
                found = run(program, [machine.read(x) for x in inputs], on_machine(machine))
            for actual, ball in zip(found, balls, strict=True):
                found_ratios = ratio(np.broadcast_to(actual, ball.shape), ball)
                worst_machine = max(worst_machine, float(np.nanmax(found_ratios, initial=0.0)))
    return Soundness(values, worst_digits, worst_machine)


@cache
def operation(name: str, format_name: str) -> Figures | None:
    """One operation on forty machines; in float64, which they share with it, against 60 digits."""
    case, rng = CASES[name], np.random.default_rng(len(name))
    none = np.array([])
    if format_name != "float64":
        return Figures(ratios(case, FORMATS[format_name], rng), none)
    if name not in IN_MANY_DIGITS:
        return None
    given = arguments(case, FORMATS[format_name], rng)
    ball = case.on_balls(*(Ball.exact(x, FORMATS[format_name]) for x in given))
    with mpmath.workdps(DIGITS):
        return Figures(apart(IN_MANY_DIGITS[name](*(digits(x) for x in given)), ball), none)


# The page ----------------------------------------------------------------------------------------


def page(share: float = 1.0) -> str:
    """The whole page, with ``share`` of the cases."""
    text = HEAD.read_text()
    for marker, rows in (
        ("<!-- allowances -->", allowance_rows()),
        ("<!-- expressions -->", expression_rows(max(2, round(PROGRAMS * share)))),
        ("<!-- operations -->", operation_rows(CASES)),
        ("<!-- formulas -->", formula_rows(COMPOSITES, max(2, round(COMPOSITE_CASES * share)))),
        ("<!-- digits -->", digit_rows(COMPOSITES)),
    ):
        text = text.replace(marker, "\n".join(rows))
    return text


def allowance_rows() -> Iterator[str]:
    yield "| operation | u | and u times the argument | because |"
    yield "|---|---|---|---|"
    for name, allowance in ALLOWANCES.items():
        yield (
            f"| {name} | {allowance.units:g} | {allowance.per_argument or '–'} | "
            f"{allowance.reason} |"
        )


def expression_rows(programs: int) -> Iterator[str]:
    yield "| arithmetic | expressions | values | worst ratio in 60 digits | on machines |"
    yield "|---|---|---|---|---|"
    for name, title in TITLES.items():
        found = expressions(name, programs)
        yield (
            f"| {title} | {programs} | {found.values} | {found.in_digits:.2g} | "
            f"{found.on_machines:.2g} |"
        )


def operation_rows(names: Sequence[str] | dict[str, object]) -> Iterator[str]:
    yield from _heads("operation")
    for name in names:
        yield _row(name, [operation(name, format_name) for format_name in TITLES])


def formula_rows(names: Sequence[str] | dict[str, object], cases: int) -> Iterator[str]:
    """A row per result: median / worst by chance / worst on purpose, and the radius."""
    yield from _heads("formula")
    directed = max(2, round(DIRECTED_CASES * cases / COMPOSITE_CASES))
    for name in names:
        columns = [
            composite_figures(name, format_name, cases, COMPOSITE_MACHINES, directed)
            for format_name in TITLES
        ]
        for key in dict.fromkeys(key for column in columns for key in column):
            label = f"{name}: {key}" if key else name
            yield _row(label, [column.get(key) for column in columns])


def digit_rows(names: Sequence[str] | dict[str, object]) -> Iterator[str]:
    yield "| formula | values | worst ratio |"
    yield "|---|---|---|"
    for name in names:
        drawn = COMPOSITES[name](np.random.default_rng(11), holding(FORMATS["float64"]))
        found = np.concatenate([part.ravel() for part in digit_ratios(drawn).values()])
        yield f"| {name} | {found.size} | {found.max(initial=0.0):.2g} |"


def _heads(first: str) -> Iterator[str]:
    yield f"| {first} | " + " | ".join(TITLES.values()) + " |"
    yield "|---" * (1 + len(TITLES)) + "|"


def _row(name: str, figures: Sequence[Figures | None]) -> str:
    return f"| {name} | " + " | ".join(_cell(found) for found in figures) + " |"


def _cell(found: Figures | None) -> str:
    """Median ratio, the worst by chance and on purpose, and the radius, as far as there are any."""
    if found is None:
        return "–"
    worst = f"{found.chance:.2g}"
    if found.directed is not None:
        worst += f" / {found.directed:.2g}"
    cell = f"{found.median:.2g} / " + (f"**{worst}**" if found.worst < 1.0 / LOOSEST else worst)
    if found.units.size:
        cell += f" ({_short(float(np.median(found.units)))} u)"
    return cell


def _short(units: float) -> str:
    return f"{units:.0f}" if units < 1e5 else f"{units:.0e}"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.rounding.report")
    parser.add_argument("--quick", action="store_true", help="print, with a tenth of the cases")
    if parser.parse_args(arguments).quick:
        print(page(0.1))
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
