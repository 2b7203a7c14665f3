"""What crosses the boundary: formats, layouts, read-only inputs, sign conventions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from properties.errors import AdapterError, SuiteError, ViolationError
from properties.loading import subject_of
from properties.protocol import (
    Array,
    Conventions,
    ExpertParameters,
    LayerConfig,
    LayerParameters,
    Precision,
    Routing,
)
from properties.reference import Reference
from properties.strategies.arrays import LAYOUTS, laid_out


class Spy:
    """Keeps what it was given and answers with what it was told to."""

    name = "spy"
    version = "1"
    precision = Precision(storage="bfloat16")
    conventions = Conventions(bias_sign=-1)

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.answer: Any = None

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Any:
        self.seen = {"gate": gate, "up": up}
        return gate.copy() if self.answer is None else self.answer

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Any:
        self.seen = {"logits": logits, "bias": bias}
        return self.answer

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        self.seen = {"bias": bias, "mask": mask}
        return bias.copy()

    def experts(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Array:
        self.seen = {"x": x, "weights": weights, "parameters": parameters}
        parameters.gate_proj.setflags(write=True)
        parameters.gate_proj[...] = 0
        return x.copy()

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        self.seen = {"parameters": parameters}
        return x.copy()


def layer_parameters() -> LayerParameters:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype(np.float64)

    def stack(n: int, h: int, w: int) -> ExpertParameters:
        return ExpertParameters(drawn(n, h, w), drawn(n, h, w), drawn(n, w, h))

    return LayerParameters(
        drawn(3, 4), drawn(3), drawn(2, 4), stack(3, 5, 2), drawn(2), drawn(4, 2), stack(1, 6, 4)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_arrive_in_storage_read_only_and_with_their_layout(layout: Any) -> None:
    spy = Spy()
    subject = subject_of(spy)
    gate = laid_out(np.arange(12.0).reshape(3, 4), layout)
    out = subject.situ_glu(gate, gate, beta_gate=4.0, beta_up=25.0)
    given = spy.seen["gate"]
    assert given.dtype == ml_dtypes.bfloat16
    assert not given.flags.writeable
    assert [stride // given.itemsize for stride in given.strides] == [
        stride // gate.itemsize for stride in gate.strides
    ]
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out, gate)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounding_keeps_the_layout(layout: Any) -> None:
    x = laid_out(np.arange(1.0, 13.0).reshape(3, 4) / 3, layout)
    rounded = subject_of(Spy()).round_to_storage(x)
    assert rounded.strides == x.strides
    np.testing.assert_array_equal(rounded, x.astype(ml_dtypes.bfloat16).astype(np.float64))


def test_values_that_storage_cannot_hold_are_the_suites_fault() -> None:
    with pytest.raises(SuiteError, match="bfloat16 cannot hold"):
        subject_of(Spy()).situ_glu(np.array([1 / 3]), np.array([1.0]), beta_gate=4.0, beta_up=25.0)


def test_signs_of_the_bias_follow_the_convention() -> None:
    spy = Spy()
    subject = subject_of(spy)
    logits, bias = np.zeros((2, 3)), np.array([1.0, 2.0, -3.0])
    updated = subject.quantile_update(logits, bias, top_k=1)
    np.testing.assert_array_equal(spy.seen["bias"], -bias)
    np.testing.assert_array_equal(updated, bias)
    subject.layer(np.zeros((1, 4)), layer_parameters(), config=LayerConfig(top_k=1))
    given = spy.seen["parameters"].e_score_correction_bias
    np.testing.assert_array_equal(given, -layer_parameters().e_score_correction_bias)
    assert given.dtype == np.float32


def test_mutated_parameters_are_noticed_deep_inside() -> None:
    parameters = layer_parameters().experts
    with pytest.raises(ViolationError, match="experts modified one of its inputs in place"):
        subject_of(Spy()).experts(
            np.zeros((1, 2)),
            np.zeros((1, 1), np.int64),
            np.ones((1, 1)),
            parameters,
            beta_gate=4.0,
            beta_up=25.0,
        )


class Reuses(Reference):
    """Ids of all calls lie in one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = np.zeros((1, 1), np.int64)

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        self.ids[...] = routed.expert_ids
        return routed._replace(expert_ids=self.ids)


def test_results_that_a_later_call_changes_are_noticed() -> None:
    subject, bias = subject_of(Reuses()), np.zeros(2)
    for _ in range(2):  # the same bits again change nothing
        subject.route(np.array([[0.0, 1.0]]), bias, top_k=1)
    with pytest.raises(ViolationError, match="route changed what an earlier call of it"):
        subject.route(np.array([[1.0, 0.0]]), bias, top_k=1)
    with subject.new_case():
        subject.route(np.array([[0.0, 1.0]]), bias, top_k=1)  # another case, another caller


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Routing(np.zeros((2, 2), int), np.zeros((2, 1), np.float32)), "expert_ids has shape"),
        (Routing(np.zeros((2, 1)), np.zeros((2, 1), np.float32)), "expected integers"),
        (Routing(np.zeros((2, 1), int), np.zeros((2, 1))), "weights is a numpy.ndarray"),
        (
            Routing(np.zeros((2, 1), int), np.zeros((2, 1), np.float32), np.zeros((2, 1))),
            "cutoff is a numpy.ndarray",
        ),
        (None, "returned NoneType; expected properties.protocol.Routing"),
    ],
)
def test_a_wrong_routing_is_described(answer: Any, told: str) -> None:
    spy = Spy()
    spy.answer = answer
    with pytest.raises(AdapterError, match=told):
        subject_of(spy).route(np.zeros((2, 3)), np.zeros(3), top_k=1)


def test_weights_may_come_in_storage_or_routing_format() -> None:
    spy = Spy()
    for dtype, name in ((np.float32, "float32"), (ml_dtypes.bfloat16, "bfloat16")):
        spy.answer = Routing(np.zeros((2, 1), np.int16), np.ones((2, 1), dtype))
        routed = subject_of(spy).route(np.zeros((2, 3)), np.zeros(3), top_k=1)
        assert routed.weights_format == name
        assert routed.expert_ids.dtype == np.int64
        assert routed.cutoff is None


def test_calls_of_the_present_case_are_remembered() -> None:
    subject = subject_of(Spy())
    with subject.new_case() as case:
        subject.situ_glu(np.ones(2), np.ones(2), beta_gate=4.0, beta_up=25.0)
    assert [call.method for call in case.calls] == ["situ_glu"]
    with subject.new_case() as case:
        pass
    assert case.calls == []


class Gradients(Reference):
    """The reference's gradients of the layer, changed by ``change`` before they are returned."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, **given: Any
    ) -> Any:
        return self.change(*super().layer_vjp(x, parameters, cotangent, **given))


def layer_gradients(change: Any) -> Any:
    x = np.ones((2, 4))
    subject = subject_of(Gradients(change))
    return subject.layer_vjp(x, layer_parameters(), x, config=LayerConfig(top_k=2))


def test_a_selection_bias_without_gradient_has_a_gradient_of_zero() -> None:
    _, gradients = layer_gradients(lambda d_x, d: (d_x, replace(d, e_score_correction_bias=None)))
    np.testing.assert_array_equal(gradients.e_score_correction_bias, np.zeros(3))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d_x, d: d_x, r"layer_vjp returned .*; expected .*d_x, d_parameters"),
        (lambda d_x, d: (d_x[:1], d), "layer_vjp: d_x"),
        (lambda d_x, d: (d_x, d.experts), "d_parameters has no gate_weight"),
        (lambda d_x, d: (d_x, replace(d, gate_weight=None)), r"d_parameters\.gate_weight"),
        (
            lambda d_x, d: (d_x, replace(d, shared_experts=d.experts)),
            r"d_parameters\.shared_experts\.gate_proj",
        ),
    ],
)
def test_gradients_of_the_layer_are_those_of_its_parts(change: Any, told: str) -> None:
    with pytest.raises(AdapterError, match=told):
        layer_gradients(change)
