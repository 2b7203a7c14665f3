"""Printed inputs read back to the same bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from properties.calls import Call
from properties.literals import call_literal, calls_literal, is_described, literal
from properties.protocol import ExpertParameters, LayerConfig


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 3)])
def test_arrays_read_back_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    values = np.asarray(drawn).astype(dtype)
    back = eval(literal(values), {"np": np})
    assert back.dtype == dtype
    assert back.shape == shape
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4028235e38])
def test_special_values_read_back(value: float) -> None:
    for dtype in (np.float64, np.float32):
        values = np.array([value, 1.0], dtype)
        assert eval(literal(values), {"np": np}).tobytes() == values.tobytes()


def test_constant_arrays_are_short() -> None:
    assert literal(np.zeros((4, 5), np.float32)) == "np.full((4, 5), 0.0, np.float32)"


def test_large_arrays_are_described() -> None:
    assert literal(np.arange(1000.0)) == "<array of shape (1000,), dtype np.float64>"


def test_dataclasses_and_calls_read_back() -> None:
    config = LayerConfig(top_k=2)
    assert eval(literal(config), {"LayerConfig": LayerConfig}) == config
    parameters = ExpertParameters(np.ones((1, 2, 3)), np.ones((1, 2, 3)), np.ones((1, 3, 2)))
    text = call_literal("experts", {"parameters": parameters, "beta_up": 25.0})
    names: dict[str, Any] = {"np": np, "ExpertParameters": ExpertParameters}
    called = eval(text, {**names, "experts": lambda **arguments: arguments})
    assert called["beta_up"] == 25.0
    assert called["parameters"].down_proj.shape == (1, 3, 2)


def test_strides_are_told_because_a_literal_loses_them() -> None:
    text = call_literal("situ_glu", {"gate": np.arange(2.0)[::-1], "up": np.arange(2.0)})
    assert (
        "gate=np.array([1.0, 0.0], np.float64),  # passed with strides, in elements: gate (-1,)"
        in text
    )
    called = eval(text, {"np": np, "situ_glu": lambda **arguments: arguments})
    assert called["up"].tolist() == [0.0, 1.0]


def test_numbers_without_an_array_read_back_too() -> None:
    values = (0.1, float("inf"), -float("inf"), 3, True, None, "off", np.float64(0.1))
    assert [eval(literal(value), {"np": np}) for value in values] == list(values)
    assert literal(float("nan")) == "np.nan"


def test_of_many_long_calls_the_last_are_whole() -> None:
    calls = [Call("rms_norm", {"x": np.arange(500.0) + number}) for number in range(4)]
    told = calls_literal(calls)
    assert [is_described(call) for call in told] == [True, True, False, False]
    assert told[-1] == call_literal("rms_norm", calls[-1].arguments)
    assert calls_literal(calls[:1]) == [call_literal("rms_norm", calls[0].arguments)]
