from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference_numpy as reference
from impl_torch.adapter import BFloat16, Float32, Float64, TorchImplementation
from properties.protocol import ExpertParameters, LayerConfig, LayerParameters

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


def test_declarations() -> None:
    assert Float64.precision.routing_format == "float64"
    assert BFloat16.precision.routing_format == "float32"
    for ready in READY:
        assert ready.precision.storage in ready.name
        assert ready.version
        assert ready.conventions.expert_rank == "interior"
        assert ready.conventions.histogram_rank == "q"


class _Unwritten(TorchImplementation):
    """An activation that lets its second element lie where it fell."""

    name, version = "unwritten", "1"

    def situ_glu_forward(
        self, gate: Tensor, up: Tensor, *, beta_gate: float, beta_up: float
    ) -> Tensor:
        out = torch.empty_like(gate)
        out[:1] = up[:1]
        return out


def test_the_call_after_a_poison_finds_nan_in_unwritten_memory() -> None:
    implementation = _Unwritten()
    implementation.poison()
    ones = np.ones(2, np.float32)
    out = implementation.situ_glu(ones, ones, beta_gate=1.0, beta_up=1.0)
    assert out[0] == 1.0
    assert np.isnan(out[1])
    assert not torch.are_deterministic_algorithms_enabled()
