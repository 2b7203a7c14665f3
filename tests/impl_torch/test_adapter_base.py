"""Writing an adapter: what the base class offers, checks and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import reference_numpy as reference
from impl_torch.adapter import Float32, TorchImplementation
from properties.protocol import METHODS, ExpertParameters, Precision

BETAS = {"beta_gate": 4.0, "beta_up": 25.0}


class Activation(TorchImplementation):
    name, version = "mine", "1.0"

    def situ_glu_forward(
        self, gate: torch.Tensor, up: torch.Tensor, *, beta_gate: float, beta_up: float
    ) -> Any:
        capped = beta_up * torch.tanh(up / beta_up)
        return beta_gate * torch.tanh(gate / beta_gate) * torch.sigmoid(gate) * capped


def offered(implementation: object) -> set[str]:
    return {name for names in METHODS.values() for name in names if hasattr(implementation, name)}


def test_only_what_has_a_forward_is_offered() -> None:
    assert offered(Activation()) == {"situ_glu", "situ_glu_vjp"}
    assert offered(TorchImplementation()) == set()
    everything = {name for names in METHODS.values() for name in names}
    assert offered(Float32()) == everything
    with pytest.raises(AttributeError, match="Activation does not offer route: it has no route_f"):
        Activation().route(None, None, top_k=1)
    with pytest.raises(AttributeError, match="'Activation' object has no attribute 'rout'"):
        Activation().rout()


def test_forwards_are_withdrawn_by_none_and_gradients_by_a_flag() -> None:
    class Less(Float32):
        experts_forward = None  # type: ignore[assignment]

    class Values(Float32):
        differentiable = False

    assert offered(Float32()) - offered(Less()) == {"experts", "experts_vjp"}
    assert offered(Float32()) - offered(Values()) == {
        name for name in offered(Float32()) if name.endswith("_vjp")
    }
    with pytest.raises(AttributeError, match="does not offer layer_vjp: no gradients"):
        Values().layer_vjp(None, None, None, config=None)


def test_a_method_of_the_protocols_own_name_is_taken_as_it_is() -> None:
    class Own(Activation):
        def rms_norm(self, x: np.ndarray, weight: np.ndarray, *, eps: float) -> np.ndarray:
            return x * weight + eps

    assert Own().rms_norm(np.ones(2), np.ones(2), eps=1.0).tolist() == [2.0, 2.0]
    assert offered(Own()) == {"situ_glu", "situ_glu_vjp", "rms_norm"}


def test_a_ten_line_adapter_has_values_and_gradients() -> None:
    g, u, c = np.random.default_rng(11).standard_normal((3, 9)).astype(np.float32)
    expected = reference.situ_glu(g.astype(np.float64), u.astype(np.float64))
    np.testing.assert_allclose(Activation().situ_glu(g, u, **BETAS), expected, atol=3e-6)
    got = Activation().situ_glu_vjp(g, u, c, **BETAS)
    wide = [array.astype(np.float64) for array in (g, u, c)]
    for ours, theirs in zip(got, reference.situ_glu_vjp(*wide), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)


def test_forwards_see_the_strides_and_formats_of_the_arrays() -> None:
    seen: list[torch.Tensor] = []

    class Spy(Activation):
        precision = Precision(storage="bfloat16")

        def situ_glu_forward(self, gate: torch.Tensor, up: torch.Tensor, **_: float) -> Any:
            seen.extend((gate, up))
            return gate + up

    gate = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16)[:, ::2]
    up = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16).T
    out = Spy().situ_glu(gate, up, **BETAS)
    assert [tensor.stride() for tensor in seen] == [(6, 2), (1, 4)]
    assert {tensor.dtype for tensor in seen} == {torch.bfloat16}
    assert out.tolist() == (gate.astype(float) + up.astype(float)).tolist()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda _: None, "situ_glu_forward is a NoneType; expected a torch.Tensor"),
        (lambda gate: gate.detach().numpy(), "situ_glu_forward is a ndarray; expected a torch"),
    ],
)
def test_results_that_are_no_tensors_are_named(
    result: Callable[[torch.Tensor], Any], message: str
) -> None:
    class Wrong(Activation):
        def situ_glu_forward(self, gate: torch.Tensor, *_: Any, **__: Any) -> Any:
            return result(gate)

    with pytest.raises(TypeError, match=message):
        Wrong().situ_glu(np.ones(2, np.float32), np.ones(2, np.float32), **BETAS)
    with pytest.raises(TypeError, match=message):
        Wrong().situ_glu_vjp(*[np.ones(2, np.float32)] * 3, **BETAS)


def test_results_without_gradient_are_named() -> None:
    class Detached(Activation):
        def situ_glu_forward(self, gate: torch.Tensor, *_: Any, **__: Any) -> Any:
            return gate.detach()

    with pytest.raises(TypeError, match=r"detached from its inputs.*differentiable = False"):
        Detached().situ_glu_vjp(*[np.ones(2, np.float32)] * 3, **BETAS)


def test_results_without_elements_have_gradients_of_zero_recorded_or_not() -> None:
    class Looped(TorchImplementation):
        name, version = "looped", "1"

        def experts_forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return torch.zeros(x.shape)  # and a loop over the experts that have tokens

    projections = [np.ones(shape, np.float32) for shape in [(2, 3, 4), (2, 3, 4), (2, 4, 3)]]
    x, ids = np.ones((0, 4), np.float32), np.ones((0, 1), np.int64)
    weights = np.ones((0, 1), np.float32)
    arguments = x, ids, weights, ExpertParameters(*projections), x
    d_x, d_weights, d_parameters = Looped().experts_vjp(*arguments, **BETAS)
    assert (d_x.shape, d_weights.shape) == ((0, 4), (0, 1))
    np.testing.assert_array_equal(d_parameters.down_proj, np.zeros((2, 4, 3)))


def test_forwards_that_work_in_place_are_named() -> None:
    class InPlace(Activation):
        def situ_glu_forward(self, gate: torch.Tensor, up: torch.Tensor, **_: float) -> Any:
            return up.data.mul_(2) + gate

        def make_balancer(self, **_: Any) -> Any:
            return self

        def observe(self, logits: torch.Tensor, **_: Any) -> Any:
            logits += 1
            return logits, logits, None

    x = np.array([1.0, np.nan], np.float32)
    with pytest.raises(RuntimeError, match="situ_glu_forward changed one of its inputs"):
        InPlace().situ_glu(x, x, **BETAS)
    with pytest.raises(RuntimeError, match="situ_glu_forward changed one of its inputs"):
        InPlace().situ_glu_vjp(x, x, x, **BETAS)
    with pytest.raises(RuntimeError, match="the balancer's observe changed one of its inputs"):
        InPlace().balancer(num_experts=1, top_k=1).observe(np.ones((2, 1), np.float32))


@pytest.mark.parametrize("result", [None, (1, 2), [1, 2, 3]])
def test_routings_that_are_no_triples_are_named(result: Any) -> None:
    class Wrong(TorchImplementation):
        def route_forward(self, *_: Any, **__: Any) -> Any:
            return result

    with pytest.raises(TypeError, match=r"route_forward returned .*expected a tuple of three"):
        Wrong().route(np.zeros((2, 3), np.float32), np.zeros(3, np.float32), top_k=1)


def test_a_wrong_output_format_is_passed_on_for_the_suite_to_see() -> None:
    class Wide(Activation):
        def situ_glu_forward(self, gate: torch.Tensor, *_: Any, **__: Any) -> Any:
            return gate.double()

    assert Wide().situ_glu(*[np.ones(2, np.float32)] * 2, **BETAS).dtype == np.float64
    assert Wide().situ_glu_vjp(*[np.ones(2, np.float32)] * 3, **BETAS)[0].dtype == np.float32


def test_an_unknown_format_is_named() -> None:
    class Odd(Activation):
        precision = Precision(storage="float12")

    with pytest.raises(ValueError, match="torch has no number format 'float12'"):
        Odd().situ_glu(*[np.ones(2, np.float32)] * 2, **BETAS)


def test_a_balancer_offers_what_its_tensors_offer() -> None:
    class Sign:
        histogram = None

        def __init__(self, n: int) -> None:
            self.bias = torch.zeros(n)

        def observe(self, logits: torch.Tensor, *, training: bool, mask: Any) -> Any:
            assert training
            assert mask is None
            ids = logits.topk(1).indices
            self._loads = torch.bincount(ids.flatten(), minlength=self.bias.numel())
            return ids, torch.ones_like(logits[:, :1]), None

        def update(self) -> None:
            self.bias -= 0.1 * torch.sign(self._loads - self._loads.float().mean())

    class Mine(TorchImplementation):
        def make_balancer(self, *, num_experts: int, **_: Any) -> Sign:
            return Sign(num_experts)

    balancer = Mine().balancer(num_experts=2, top_k=1)
    assert offered(Mine()) == {"balancer"}
    optional = ("state_dict", "load_state_dict", "to", "set_enabled", "bias_storage_id")
    assert [name for name in optional if hasattr(balancer, name)] == ["bias_storage_id"]
    routing = balancer.observe(np.array([[1, 0], [2, 1]], np.float32))
    assert routing.expert_ids.tolist() == [[0], [0]]
    balancer.update()
    np.testing.assert_allclose(balancer.bias, [-0.1, 0.1], rtol=1e-6)
    assert balancer.histogram is None
    with pytest.raises(AttributeError, match="the balancer does not offer 'to'"):
        balancer.to("float32")


def test_grouped_routing_is_offered_with_its_forward() -> None:
    class Grouped(Float32):
        def route_grouped_forward(
            self, logits: Any, bias: Any, *, top_k: int, num_groups: int, top_groups: int
        ) -> Any:
            assert (num_groups, top_groups) == (1, 1)
            return self.route_forward(logits, bias, top_k=top_k)

    logits, bias = np.eye(3, dtype=np.float32), np.zeros(3, np.float32)
    routing = Grouped().route_grouped(logits, bias, top_k=1, num_groups=1, top_groups=1)
    assert routing.expert_ids.tolist() == [[0], [1], [2]]
