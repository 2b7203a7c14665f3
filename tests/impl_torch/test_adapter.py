from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import reference_numpy as reference
from impl_torch.adapter import BFloat16, Float32, Float64, TorchImplementation
from properties.protocol import METHODS, ExpertParameters, LayerConfig, LayerParameters, Precision

READY = [Float64, Float32, BFloat16]
# The sizes below are small, so a few roundings of the storage format bound every error; float64 is
# compared with a reference that rounds as often.
TOLERANCE = {"float64": 1e-13, "float32": 3e-6, "bfloat16": 6e-2}
M, N, K, D, L, H, S, HS = 37, 11, 3, 13, 7, 5, 2, 9
BETAS = {"beta_gate": 4.0, "beta_up": 25.0}


class Data:
    """Random arrays: float64 for the reference, read-only ones of the protocol's dtypes."""

    def __init__(self, implementation: TorchImplementation) -> None:
        self.storage = np.dtype(implementation.precision.storage)
        self.routing = np.dtype(implementation.precision.routing_format)
        self.tolerance = TOLERANCE[implementation.precision.storage]
        self._rng = np.random.default_rng(11)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        drawn = self._rng.standard_normal(shape) * scale
        return drawn.astype(self.storage).astype(np.float64)

    def ids(self) -> np.ndarray:
        return self._rng.random((M, N)).argsort(axis=1)[:, :K]

    def experts(self, n: int, hidden: int, width: int) -> ExpertParameters:
        shapes = ((n, hidden, width), (n, hidden, width), (n, width, hidden))
        return ExpertParameters(*(self.normal(*shape) for shape in shapes))

    def layer(self) -> LayerParameters:
        return LayerParameters(
            gate_weight=self.normal(N, D),
            e_score_correction_bias=(self.normal(N) * 0.1).astype(np.float32).astype(np.float64),
            routed_expert_down_proj=self.normal(L, D),
            experts=self.experts(N, H, L),
            routed_expert_norm=self.normal(L),
            routed_expert_up_proj=self.normal(D, L),
            shared_experts=self.experts(S, HS, D),
        )

    def cross(self, value: Any, dtype: np.dtype | None = None) -> Any:
        """What the suite hands over: read-only arrays of the protocol's dtypes."""
        if isinstance(value, ExpertParameters):
            parts = (value.gate_proj, value.up_proj, value.down_proj)
            return ExpertParameters(*(self.cross(part) for part in parts))
        if isinstance(value, LayerParameters):
            parts = {name: self.cross(part) for name, part in vars(value).items()}
            bias = self.cross(value.e_score_correction_bias, self.routing)
            return LayerParameters(**{**parts, "e_score_correction_bias": bias})
        array = np.array(value, dtype=dtype or self.storage)
        array.flags.writeable = False
        return array

    def compare(self, got: np.ndarray, want: np.ndarray, dtype: np.dtype | None = None) -> None:
        assert isinstance(got, np.ndarray)
        assert got.dtype == (dtype or self.storage)
        assert got.shape == want.shape
        limit = self.tolerance * max(float(np.abs(want).max(initial=0)), 1e-30)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=limit)


@pytest.mark.parametrize("ready", READY)
def test_activation_and_norm(ready: type[TorchImplementation]) -> None:
    implementation = ready()
    data = Data(implementation)
    g, u, c = data.normal(20, 3, scale=9), data.normal(20, 3, scale=50), data.normal(20, 3)
    crossed = [data.cross(array) for array in (g, u, c)]
    data.compare(implementation.situ_glu(*crossed[:2], **BETAS), reference.situ_glu(g, u))
    gradients = implementation.situ_glu_vjp(*crossed, **BETAS)
    for got, want in zip(gradients, reference.situ_glu_vjp(g, u, c), strict=True):
        data.compare(got, want)
    x, weight = data.normal(4, 5, L), data.normal(L)
    got = implementation.rms_norm(data.cross(x), data.cross(weight), eps=1e-5)
    data.compare(got, reference.rms_norm(x, weight, eps=1e-5))


@pytest.mark.parametrize("ready", READY)
def test_routing_and_balancing(ready: type[TorchImplementation]) -> None:
    implementation = ready()
    data = Data(implementation)
    logits, bias, c = data.normal(M, N), data.normal(N, scale=0.2), data.normal(M, K)
    mask = np.arange(M) % 5 > 0
    z, b, cotangent = (data.cross(array, data.routing) for array in (logits, bias, c))
    routing, expected = implementation.route(z, b, top_k=K), reference.route(logits, bias, top_k=K)
    np.testing.assert_array_equal(routing.expert_ids, expected.expert_ids)
    data.compare(routing.weights, expected.weights, data.routing)
    data.compare(routing.cutoff, expected.cutoff, data.routing)
    assert implementation.route(z, b, top_k=N).cutoff is None
    d_logits, d_bias = implementation.route_vjp(z, b, cotangent, top_k=K)
    data.compare(d_logits, reference.route_vjp(logits, bias, c, top_k=K)[0], data.routing)
    data.compare(d_bias, np.zeros(N), data.routing)
    for chosen in (None, mask):
        got = implementation.quantile_update(z, b, top_k=K, mask=chosen)
        want = reference.quantile_update(logits, bias, top_k=K, mask=chosen)
        data.compare(got, want, data.routing)


@pytest.mark.parametrize("ready", READY)
def test_experts(ready: type[TorchImplementation]) -> None:
    implementation = ready()
    data = Data(implementation)
    x, ids, weights, c = data.normal(M, L), data.ids(), np.abs(data.normal(M, K)), data.normal(M, L)
    parameters = data.experts(N, H, L)
    crossed = (
        data.cross(x),
        data.cross(ids, np.dtype(np.int64)),
        data.cross(weights, data.routing),
        data.cross(parameters),
    )
    got = implementation.experts(*crossed, **BETAS)
    data.compare(got, reference.experts(x, ids, weights, parameters))
    d_x, d_weights, d = implementation.experts_vjp(*crossed, data.cross(c), **BETAS)
    want_x, want_weights, want = reference.experts_vjp(x, ids, weights, parameters, c)
    data.compare(d_x, want_x)
    data.compare(d_weights, want_weights, data.routing)
    for name in ("gate_proj", "up_proj", "down_proj"):
        data.compare(getattr(d, name), getattr(want, name))


@pytest.mark.parametrize("ready", READY)
def test_layer(ready: type[TorchImplementation]) -> None:
    implementation = ready()
    data = Data(implementation)
    x, c, parameters = data.normal(2, 9, D), data.normal(2, 9, D), data.layer()
    config = LayerConfig(top_k=K, routed_scale=2.5, norm_eps=1e-4)
    crossed = data.cross(x), data.cross(parameters)
    logits = implementation.router_logits(*crossed)
    data.compare(logits, reference.router_logits(x, parameters.gate_weight), data.routing)
    want = reference.layer(x, parameters, config=config)
    for training in (False, True):
        data.compare(implementation.layer(*crossed, config=config, training=training), want)
    d_x, d = implementation.layer_vjp(*crossed, data.cross(c), config=config)
    want_x, expected = reference.layer_vjp(x, parameters, c, config=config)
    data.compare(d_x, want_x)
    for name, value in vars(expected).items():
        if isinstance(value, ExpertParameters):
            for part in ("gate_proj", "up_proj", "down_proj"):
                data.compare(getattr(getattr(d, name), part), getattr(value, part))
        else:
            routing = data.routing if name == "e_score_correction_bias" else None
            data.compare(getattr(d, name), value, routing)


@pytest.mark.parametrize("ready", READY)
def test_balancer(ready: type[TorchImplementation]) -> None:
    implementation = ready()
    data = Data(implementation)
    bias = data.normal(N, scale=0.2)
    ours = implementation.balancer(
        num_experts=N, top_k=K, num_bins=64, bias=data.cross(bias, data.routing)
    )
    theirs = reference.HistogramBalancer(N, K, 64, bias=bias)
    mask = np.arange(M) % 5 > 0
    for chosen in (None, mask):
        logits = data.normal(M, N)
        routing = ours.observe(data.cross(logits, data.routing), mask=chosen)
        expected = theirs.observe(logits, mask=chosen)
        np.testing.assert_array_equal(routing.expert_ids, expected.expert_ids)
    ours.observe(data.cross(logits, data.routing), training=False)
    assert ours.histogram.dtype == np.int64
    # A required bias within float32's roundoff of a bin's edge may fall to either side.
    assert np.abs(np.cumsum(ours.histogram - theirs.histogram, axis=1)).sum() <= 1
    data.compare(ours.bias, bias, data.routing)
    state = ours.state_dict()
    address = ours.bias_storage_id()
    ours.update()
    theirs.update()
    np.testing.assert_allclose(ours.bias, theirs.bias, atol=1e-6)
    assert ours.bias_storage_id() == address

    twin = implementation.balancer(num_experts=N, top_k=K, num_bins=64)
    assert set(state) == {"bias", "histogram"}
    twin.load_state_dict(state)
    twin.to("bfloat16")
    twin.set_enabled(False)
    twin.update()
    data.compare(twin.bias, bias, data.routing)
    twin.set_enabled(True)
    twin.update()
    np.testing.assert_allclose(twin.bias, ours.bias, atol=1e-6)
    with pytest.raises(RuntimeError, match="bias"):
        twin.load_state_dict({"histogram": state["histogram"]})
    assert not implementation.balancer(num_experts=N, top_k=K).bias.any()
    assert implementation.balancer(num_experts=N, top_k=K).histogram.shape == (N, 1000)
    off = implementation.balancer(num_experts=N, top_k=K, enabled=False)
    off.observe(data.cross(logits, data.routing))
    assert not off.histogram.any()


# Writing an adapter ----------------------------------------------------------------------------


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
    data = Data(Activation())
    g, u, c = (data.normal(9) for _ in range(3))
    crossed = [data.cross(array) for array in (g, u, c)]
    data.compare(Activation().situ_glu(*crossed[:2], **BETAS), reference.situ_glu(g, u))
    got = Activation().situ_glu_vjp(*crossed, **BETAS)
    for ours, theirs in zip(got, reference.situ_glu_vjp(g, u, c), strict=True):
        data.compare(ours, theirs)


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


def test_declarations() -> None:
    assert Float64.precision.routing_format == "float64"
    assert BFloat16.precision.routing_format == "float32"
    for ready in READY:
        assert ready.precision.storage in ready.name
        assert ready.version
        assert ready.conventions.expert_rank == "interior"
        assert ready.conventions.histogram_rank == "q"
        ready().poison()
