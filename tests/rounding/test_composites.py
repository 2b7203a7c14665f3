"""The reference's formulas from end to end, gradients included, on balls and on machines."""

from __future__ import annotations

import numpy as np
import pytest

from properties.rounding import Arithmetic, Ball
from tests.rounding.composites import COMPOSITES, holding
from tests.rounding.sharpness import LOOSEST, Figures, composite_figures, digit_ratios
from tests.rounding.simulation import FORMATS

CASES, MACHINES, DIRECTED_CASES = 4, 3, 2
VECTOR_JACOBIAN = [name for name in COMPOSITES if "_vjp" in name]

# Every declared precision that a layer may come in.
DECLARED = {
    **FORMATS,
    "half in memory": Arithmetic("float32", "float32", "float16"),
    "half, wide sums": Arithmetic("float16", "float32", "float16"),
}


def figures_of(name: str, format_name: str) -> dict[str, Figures]:
    return composite_figures(name, format_name, CASES, MACHINES, DIRECTED_CASES)


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_no_machine_leaves_the_ball_of_a_formula(name: str, format_name: str) -> None:
    for figures in figures_of(name, format_name).values():
        assert figures.worst <= 1.0


@pytest.mark.parametrize("name", [name for name in COMPOSITES if not name.startswith("layer")])
@pytest.mark.parametrize("format_name", FORMATS)
def test_radii_of_formulas_are_within_reach_of_errors(name: str, format_name: str) -> None:
    for key, figures in figures_of(name, format_name).items():
        assert figures.worst >= 1.0 / LOOSEST, key


@pytest.mark.parametrize("name", ["experts_vjp, dense", "layer, dense", "layer_vjp, thin"])
@pytest.mark.parametrize("format_name", ["float32", "float64"])
def test_machines_that_err_on_purpose_err_more(name: str, format_name: str) -> None:
    for key, figures in figures_of(name, format_name).items():
        assert figures.directed is not None
        assert figures.directed > figures.chance, key


@pytest.mark.parametrize("name", COMPOSITES)
def test_the_exact_value_lies_in_the_ball_of_float64(name: str) -> None:
    drawn = COMPOSITES[name](np.random.default_rng(3), holding(FORMATS["float64"]))
    for ratios in digit_ratios(drawn).values():
        assert ratios.max(initial=0.0) <= 1.0


@pytest.mark.parametrize("name", VECTOR_JACOBIAN)
@pytest.mark.parametrize("format_name", DECLARED)
def test_gradients_run_on_balls_in_every_precision(name: str, format_name: str) -> None:
    """Finite at unit amplitude, except in dense layers computed in half precision."""
    arithmetic = DECLARED[format_name]
    drawn = COMPOSITES[name](np.random.default_rng(4), holding(arithmetic))
    results = drawn.on(lambda array: Ball.exact(array, arithmetic))
    halved = name == "layer_vjp, dense" and arithmetic.computed.name in ("float16", "bfloat16")
    for key, ball in results.items():
        assert halved or np.isfinite(ball.radius).all(), key
    assert results
