"""Expert parallelism over processes equals one process, forward and backward."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from impl_torch import ExpertParallel, Experts, LatentMoE, ParallelExperts
from impl_torch.adapter import BFloat16, Float32, Float64, StableLatentMoE
from tests.impl_torch import expert_work as work
from tests.impl_torch.expert_work import Case
from tests.impl_torch.launch import launch

# As in test_adapter.py: a few roundings of the storage format bound every error of small sizes.
TOLERANCE = {"float64": 1e-13, "float32": 3e-6, "bfloat16": 6e-2}

CASES = {
    2: [
        Case(5, 2, (7, 3)),
        Case(4, 4, (0, 6)),
        Case(1, 1, (4, 2)),  # a rank without experts
        Case(6, 2, (0, 0)),
        Case(5, 2, (7,), tensor_parallel=2),
        Case(5, 3, (1,), tensor_parallel=2),  # a replica without a slice
        Case(5, 2, (5, 2), expert_parallel=1),
        Case(3, 2, (5,), tensor_parallel=2, expert_parallel=1),
    ],
    4: [
        Case(6, 3, (5, 0, 9, 2)),
        Case(3, 2, (4, 1, 0, 6)),
        Case(7, 2, (5, 4), tensor_parallel=2),
        Case(6, 2, (3, 0), tensor_parallel=2, expert_parallel=2),
        Case(5, 2, (7,), tensor_parallel=4, expert_parallel=2),
        Case(5, 2, (6, 1, 0, 3), expert_parallel=2),
        Case(5, 2, (6, 1), tensor_parallel=2, expert_parallel=1),
        Case(2, 1, (9,), tensor_parallel=4),
    ],
}


def compare(got: Any, want: Any, tolerance: float, what: str) -> None:
    assert got.shape == want.shape, what
    want = want.astype(np.float64)
    limit = tolerance * max(float(np.abs(want).max(initial=0)), 1e-30)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=limit, err_msg=what)


@pytest.mark.parametrize(
    ("world", "kind"), [(2, Float64), (2, Float32), (2, BFloat16), (4, Float64)]
)
def test_ranks_together_equal_one_process(world: int, kind: type[StableLatentMoE]) -> None:
    ranks = launch(work.through_the_adapter, world, (kind, CASES[world]), torchrun=True)
    tolerance = TOLERANCE[kind.precision.storage]
    for index, case in enumerate(CASES[world]):
        want = work.run_adapter(kind(), case)
        for rank, results in enumerate(ranks):
            for name, value in results[index]["tokens"].items():
                whole = want["tokens"][name]
                assert value.dtype == whole.dtype
                limit = tolerance * max(float(np.abs(whole.astype(float)).max(initial=0)), 1e-30)
                np.testing.assert_allclose(
                    value.astype(float),
                    whole[case.tokens_of(rank)].astype(float),
                    rtol=0,
                    atol=limit,
                    err_msg=f"{case}, rank {rank}: {name}",
                )
        for name, whole in want["parameters"].items():
            total = sum(each[index]["parameters"][name].astype(float) for each in ranks)
            compare(total, whole, tolerance, f"{case}: {name}")


def test_every_expert_has_one_rank_of_its_group() -> None:
    for world, num_experts in [(1, 3), (2, 5), (4, 3), (4, 10)]:
        layout = ExpertParallel()
        layout.ranks = world
        owned = []
        for layout.rank in range(world):
            owned += list(range(num_experts))[layout.own(num_experts)]
        assert owned == list(range(num_experts))
        assert max(layout.sizes(num_experts)) - min(layout.sizes(num_experts)) <= 1


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_the_adapters_balancer_pools_distinct_tokens(tensor_parallel: int) -> None:
    argument = (Float32, tensor_parallel)
    ranks = launch(work.balance_through_the_adapter, 4, argument, torchrun=True)
    distinct = [rank["own"] for rank in ranks[::tensor_parallel]]
    assert [own.sum(1)[0] for own in distinct] == list(range(1, 1 + len(distinct)))
    for rank in ranks:
        np.testing.assert_array_equal(rank["reduced"], sum(distinct))
        np.testing.assert_array_equal(rank["bias"], ranks[0]["bias"])


def test_a_layer_trains_with_its_experts_on_several_ranks() -> None:
    torch.manual_seed(3)
    whole = LatentMoE(**work.SIZES)
    x = torch.cat([work.training_tokens(rank) for rank in range(2)]).requires_grad_()
    y = whole(x)
    y.square().sum().backward()
    state = {name: value.clone() for name, value in whole.state_dict().items()}
    state["balancer.histogram"].zero_()
    state["balancer.extremes"].fill_(torch.nan)
    whole.update_bias()
    ranks = launch(work.train_a_layer, 2, state)
    assert [rank["shape"][0] for rank in ranks] == [3, 2]
    assert [len(rank["y"]) for rank in ranks] == [0, 3]
    compare(np.concatenate([rank["y"] for rank in ranks]), y.detach().numpy(), 1e-13, "y")
    compare(np.concatenate([rank["d_x"] for rank in ranks]), x.grad.numpy(), 1e-13, "d_x")
    for name, parameter in whole.named_parameters():
        parts = [rank["gradients"][name] for rank in ranks]
        got = np.concatenate(parts) if name.startswith("experts.") else sum(parts)
        compare(got, parameter.grad.numpy(), 1e-13, name)
    for rank in ranks:
        np.testing.assert_array_equal(rank["bias"], whole.gate.e_score_correction_bias.numpy())
        np.testing.assert_array_equal(rank["again"], rank["y"])
        assert "cannot be pickled" in rank["told"]


def test_one_rank_computes_what_experts_does() -> None:
    generator = torch.Generator().manual_seed(1)
    x, ids = torch.randn(6, 4, generator=generator), torch.tensor([[0, 2]] * 6)
    weights = torch.rand(6, 2, generator=generator)
    plain, parallel = Experts(4, 3, 5), ParallelExperts(ExpertParallel(), 4, 3, 5)
    single = {
        f"{expert}.{key}.weight": getattr(plain, name)[expert]
        for expert in range(5)
        for name, key in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
    }
    parallel.load_state_dict(single)
    assert torch.equal(parallel(x, ids, weights), plain(x, ids, weights))
    assert copy.deepcopy(parallel).layout is parallel.layout
    with pytest.raises(TypeError, match="save its state_dict"):
        pickle.dumps(parallel)
    with pytest.raises(IndexError, match=r"expert ids must be in 0 … 4"):
        parallel(x, ids + 3, weights)
    parallel.num_experts = 6
    with pytest.raises(ValueError, match="gate_proj holds 5 experts; rank 0 of 1 has 6 of 6"):
        parallel(x, ids, weights)


def test_one_process_takes_no_arrangement() -> None:
    Float64().parallel()
    with pytest.raises(ValueError, match="tensor_parallel = 2 does not divide 1 ranks"):
        Float64().parallel(tensor_parallel=2)
    with pytest.raises(ValueError, match="expert_parallel = 0 does not divide 1 ranks"):
        Float64().parallel(expert_parallel=0)
