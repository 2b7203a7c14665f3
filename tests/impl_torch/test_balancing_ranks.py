"""Pooling over processes: bit-equal for any split of the tokens, in one all-reduce of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from impl_torch import HistogramBalancer, LatentMoE, distinct_token_group, update_biases
from tests.impl_torch import balancing_work as work
from tests.impl_torch.launch import launch


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Any]]:
    (results,) = launch(work.balance_splits, 1)
    return list(results)


@pytest.mark.parametrize("world", [2, 4])
def test_any_split_over_processes_is_bit_equal(world: int, alone: list[dict[str, Any]]) -> None:
    ranks = launch(work.balance_splits, world)
    assert work.SPLITS >= 200
    empty = 0
    for seed, expected in enumerate(alone):
        split = work.Split(seed)
        valid = split.tokens if split.mask is None else int(split.mask.sum())
        results = [rank[seed] for rank in ranks]
        assert expected["counted"] == [valid] * 7
        assert all(each["digest"] == expected["digest"] for each in results), seed
        assert sum(each["seen"] for each in results) == work.STEPS * split.tokens
        empty += split.tokens > 0 and any(each["seen"] == 0 for each in results)
    assert empty >= 20 * (world // 2)  # ranks without tokens in both steps are common


def test_one_all_reduce_of_integers_whatever_the_number_of_tokens() -> None:
    tokens = [64, 1024, 65536]
    size = sum(8 * n * bins for n, _, bins in work.LAYERS)
    for rank in launch(work.measure_traffic, 2, tokens):
        assert rank == [[("c10d::allreduce_", size, "{torch.int64}")]] * len(tokens)


@pytest.mark.parametrize("tensor_parallel", [2, 4])
def test_replicated_tokens_count_once(tensor_parallel: int) -> None:
    balancer = HistogramBalancer(*work.LAYERS[0])
    for source in range(4 // tensor_parallel):
        generator = torch.Generator().manual_seed(source)
        balancer.observe(torch.randn(source + 3, 7, generator=generator))
    counts = balancer.histogram.numpy().copy()
    balancer.update()
    for rank in launch(work.replicate_tokens, 4, tensor_parallel):
        np.testing.assert_array_equal(rank["counts"], counts)
        np.testing.assert_array_equal(rank["bias"], balancer.bias.numpy())


def test_a_bias_loaded_under_pending_counts_is_refused_on_every_rank() -> None:
    results = launch(work.load_a_bias_between, 2)
    for rank in results:
        assert "balancing layers [1]: a rank has counted tokens under another bias" in rank["told"]
        assert rank["unchanged"]
    np.testing.assert_array_equal(results[0]["bias"], results[1]["bias"])
    assert np.ptp(results[0]["bias"]) > 0


def test_casts_idle_ranks_and_disabled_layers() -> None:
    bias = torch.linspace(-0.3, 0.31, 7)
    one = HistogramBalancer(*work.LAYERS[0], bias=bias)
    wide = HistogramBalancer(*work.LAYERS[0], bias=bias)
    for balancer in (one, wide):
        balancer.observe(torch.linspace(-2, 2, 21).view(3, 7))
    one.update()
    wide.double().update()
    for rank in launch(work.casts_and_idle_ranks, 2):
        np.testing.assert_array_equal(rank["bias"], one.bias.numpy())
        np.testing.assert_array_equal(rank["wide"], wide.bias.numpy())
        assert rank["kept"]
        assert [size for _, size, _ in rank["calls"]] == [8 * 7 * 16]
        assert not rank["off"].any()


def test_data_parallel_counts_every_rank() -> None:
    one, two = launch(work.data_parallel, 2)
    assert one["counts"].sum(1).tolist() == [2 * (1 + 2)] * 7
    np.testing.assert_array_equal(one["counts"], two["counts"])
    np.testing.assert_array_equal(one["bias"], two["bias"])


def test_a_process_alone_needs_no_group() -> None:
    assert distinct_token_group(1) is None
    with pytest.raises(ValueError, match="tensor_parallel = 2 does not divide 1 ranks"):
        distinct_token_group(2)
    with pytest.raises(ValueError, match="no balancing layer found"):
        update_biases(torch.nn.Linear(2, 2))
    sizes = {"model_dim": 6, "latent_dim": 4, "expert_dim": 3, "num_experts": 5, "top_k": 2}
    model = torch.nn.Sequential(LatentMoE(**sizes), LatentMoE(**sizes, num_bins=None))
    model(torch.randn(9, 6))
    update_biases(model)
    assert model[0].gate.e_score_correction_bias.any()
    assert not model[0].balancer.histogram.any()


@pytest.mark.parametrize(
    ("how", "message"), [("raise", "rank 1 raised(?s:.*)rank one stumbles"), ("die", "rank 1 died")]
)
def test_the_launcher_tells_of_ranks_that_fail(how: str, message: str) -> None:
    assert launch(work.ordered, 2) == [1, 1]
    with pytest.raises(RuntimeError, match=message):
        launch(work.stumble, 2, how)
