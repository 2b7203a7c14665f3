"""Counting in real life: recomputation, compilation, casts, copies, checkpoints, large counts."""

from __future__ import annotations

import copy
import io
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from impl_torch import HistogramBalancer, LatentMoE, update_biases
from impl_torch.adapter import Float32, Float64, StableLatentMoE
from impl_torch.balancing import histogram_quantile
from properties.protocol import ExpertParameters, LayerConfig, LayerParameters, Precision

SIZES: dict[str, Any] = {
    "model_dim": 8,
    "latent_dim": 5,
    "expert_dim": 4,
    "num_experts": 7,
    "top_k": 2,
    "num_bins": 32,
}


def tokens(m: int, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_counts_once(reentrant: bool) -> None:
    torch.manual_seed(1)
    plain = torch.nn.Sequential(LatentMoE(**SIZES), LatentMoE(**SIZES))
    recomputed = copy.deepcopy(plain)
    for micro in range(2):
        x = tokens(9, seed=micro)
        plain(x).sum().backward()
        y = x.clone().requires_grad_()
        for layer in recomputed:
            y = checkpoint(lambda z, layer=layer: layer(z), y, use_reentrant=reentrant)
        y.sum().backward()
    for one, other in zip(plain, recomputed, strict=True):
        assert (one.balancer.histogram.sum(1) == 18).all()
        assert torch.equal(one.balancer.histogram, other.balancer.histogram)
        assert torch.equal(one.gate.weight.grad, other.gate.weight.grad)


def test_the_adapter_observes_under_recomputation() -> None:
    logits = tokens(6, 5).numpy()
    plain, recomputed = (Float32().balancer(num_experts=5, top_k=2) for _ in range(2))
    routing = plain.observe(logits)
    np.testing.assert_array_equal(recomputed.observe_recomputed(logits).weights, routing.weights)
    np.testing.assert_array_equal(recomputed.histogram, plain.histogram)
    counts = plain.histogram
    assert plain.reduced_histogram is None
    plain.update()
    np.testing.assert_array_equal(plain.reduced_histogram, counts)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_counts_and_updates_equal_eager_ones(backend: str) -> None:
    plain, compiled = HistogramBalancer(7, 2, 32), HistogramBalancer(7, 2, 32)

    def route(logits: torch.Tensor) -> torch.Tensor:
        return compiled.observe(logits).weights

    torch._dynamo.reset()
    # A full graph: no break at the count, inside a checkpoint either.
    whole = torch.compile(
        lambda z: checkpoint(route, z, use_reentrant=False), backend=backend, fullgraph=True
    )
    step = torch.compile(compiled.update, backend=backend)
    for m in (6, 6, 9):
        z = tokens(m, 7, m).requires_grad_()
        plain.observe(z)
        whole(z).square().sum().backward()
        assert torch.equal(plain.histogram, compiled.histogram)
        assert torch.equal(plain.extremes, compiled.extremes)
        plain.update()
        step()
        assert torch.equal(plain.bias, compiled.bias)
        assert not compiled.histogram.any()


def test_copies_and_checkpoints_keep_bias_and_counts() -> None:
    balancer = HistogramBalancer(5, 2, 8, bias=torch.linspace(-1, 1, 5))
    balancer.observe(tokens(6, 5))
    file = io.BytesIO()
    torch.save(balancer.state_dict(), file)
    file.seek(0)
    loaded = HistogramBalancer(5, 2, 8)
    addresses = loaded.bias.data_ptr(), loaded.histogram.data_ptr()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert (loaded.bias.data_ptr(), loaded.histogram.data_ptr()) == addresses
    copies = [balancer, copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer)), loaded]
    for each in copies:
        assert (each.histogram.sum(1) == 6).all()
        address = each.bias.data_ptr()
        each.update()
        assert each.bias.data_ptr() == address
        assert torch.equal(each.bias, balancer.bias)
    copies[1].bias.zero_()
    assert balancer.bias.any()


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double", "float"])
def test_casts_of_a_layer_keep_counts_and_their_meaning(cast: str) -> None:
    torch.manual_seed(0)
    layer = LatentMoE(**SIZES)
    layer.gate.e_score_correction_bias.copy_(tokens(1, 7)[0])
    kept = copy.deepcopy(layer)
    for each in (layer, kept):
        each(tokens(9))
    getattr(layer, cast)()
    assert torch.equal(layer.balancer.histogram, kept.balancer.histogram)
    layer.update_bias()
    kept.update_bias()
    dtype = torch.float64 if cast == "double" else torch.float32
    assert layer.gate.e_score_correction_bias.dtype == dtype
    assert torch.equal(
        layer.gate.e_score_correction_bias.float(), kept.gate.e_score_correction_bias
    )


def test_a_layer_made_on_the_meta_device() -> None:
    layer = LatentMoE(**SIZES, device="meta")
    balancer = HistogramBalancer(7, 2, 32, device="meta")
    balancer.observe(torch.empty(3, 7, device="meta"))
    update_biases([layer, balancer])
    assert balancer.bias.is_meta
    layer.to_empty(device="cpu")
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert not layer.balancer.histogram.any()
    assert torch.isnan(layer.balancer.extremes).all()
    assert torch.isfinite(layer(tokens(4))).all()
    assert (layer.balancer.histogram.sum(1) == 4).all()


def test_an_empty_micro_batch_does_not_fix_the_range() -> None:
    late, plain = HistogramBalancer(5, 2, 8), HistogramBalancer(5, 2, 8)
    late.observe(tokens(0, 5))
    late.observe(tokens(3, 5), mask=torch.zeros(3, dtype=torch.bool))
    for balancer in (late, plain):
        balancer.bias.copy_(torch.linspace(-3, 4, 5))
        balancer.observe(tokens(6, 5))
        balancer.update()
    assert torch.equal(late.bias, plain.bias)


def test_reduced_counts_are_kept_on_request_only() -> None:
    for keep in (False, True):
        balancer = HistogramBalancer(5, 2, 8, keep_reduced=keep)
        balancer.observe(tokens(6, 5))
        counts = balancer.histogram.clone()
        balancer.half().update()
        if keep:
            assert torch.equal(balancer.reduced_histogram, counts)
            balancer.reset_parameters()
        assert balancer.reduced_histogram is None
        assert "reduced_histogram" not in balancer.state_dict()


@pytest.mark.parametrize(("n", "k"), [(896, 16), (7, 3), (5, 4)])
def test_ranks_are_exact_up_to_the_largest_total(n: int, k: int) -> None:
    total = (2**63 - 1) // k // n * n  # an integral q
    q = total // n * k
    for before in (q - 1, q, q + 1):
        counts = torch.zeros(n, 3, dtype=torch.int64)
        counts[:, 0], counts[:, 2] = before, total - before
        got = histogram_quantile(counts, torch.tensor(0.0), torch.tensor(3.0), k)
        inside = Fraction(q, before) if before >= q else 2 + Fraction(q - before, total - before)
        assert (got - float(inside)).abs().max() < 1e-15 * 4
        assert (got > 1).all() == (before < q)


class Float8(StableLatentMoE):
    name = "impl_torch float8"
    precision = Precision(compute="float32", accumulate="float32", storage="float8_e4m3fn")


def test_float8_is_a_format_to_store_in() -> None:
    rng = np.random.default_rng(0)
    storage = np.dtype("float8_e4m3fn")

    def drawn(*shape: int) -> Any:
        return (rng.standard_normal(shape) / 2).astype(storage)

    def stacks(number: int, width: int) -> ExpertParameters:
        shapes = ((number, 4, width), (number, 4, width), (number, width, 4))
        return ExpertParameters(*(drawn(*shape) for shape in shapes))

    bias = np.zeros(7, np.float32)
    norm = np.ones(5).astype(storage)
    arrays = drawn(7, 8), bias, drawn(5, 8), stacks(7, 5), norm, drawn(8, 5), stacks(2, 8)
    parameters = LayerParameters(*arrays)
    x, cotangent, config = drawn(9, 8), drawn(9, 8), LayerConfig(top_k=2)
    y = Float8().layer(x, parameters, config=config)
    d_x, d = Float8().layer_vjp(x, parameters, cotangent, config=config)

    def wide(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.astype(np.float64)
        return type(value)(*(wide(part) for part in vars(value).values()))

    # One rounding to three bits at the end, and below 2^-6 to a fixed step of 2^-9.
    want = Float64().layer(wide(x), wide(parameters), config=config)
    want_x, want_d = Float64().layer_vjp(wide(x), wide(parameters), wide(cotangent), config=config)
    pairs = [(y, want), (d_x, want_x), (d.gate_weight, want_d.gate_weight)]
    pairs += [(d.experts.up_proj, want_d.experts.up_proj)]
    for got, exact in pairs:
        assert got.dtype == storage
        error = np.abs(got.astype(np.float64) - exact)
        assert (error <= np.maximum(np.abs(exact) * 2.0**-4, 2.0**-10) * 1.001).all()
