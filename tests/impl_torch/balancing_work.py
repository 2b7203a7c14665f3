"""What each rank does in ``test_balancing_ranks.py``.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from impl_torch import HistogramBalancer, distinct_token_group, update_biases

SPLITS = 210
LAYERS = ((7, 2, 16), (5, 3, 33))  # N, K, B
STEPS = 2


class Split:
    """One generated split of tokens over ranks and micro-batches, the same tokens for any world."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        # Most often fewer tokens than ranks or few more, so that many a rank has none.
        self.tokens = self._integer(5) if seed % 3 else self._integer(60)
        self.logits = [self._normal(self.tokens, n) * 2 for n, _, _ in LAYERS]
        self.biases = [self._normal(n) * (seed % 4) for n, _, _ in LAYERS]
        self.mask = self._normal(self.tokens) > -1 if seed % 2 else None

    def _integer(self, most: int) -> int:
        return int(torch.randint(most + 1, (), generator=self._generator))

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def parts(self, rank: int, world: int, step: int) -> list[slice]:
        """This rank's micro-batches, of which one or both may be empty; another cut each step."""
        generator = torch.Generator().manual_seed(1000 * self.tokens + 10 * world + step)
        edges = torch.randint(self.tokens + 1, (2 * world - 1,), generator=generator)
        edges = torch.cat((torch.tensor([0, self.tokens]), edges)).sort().values.tolist()
        return [slice(*edges[2 * rank + part : 2 * rank + part + 2]) for part in range(2)]


def balance_splits(rank: int, world: int, _: Any) -> list[dict[str, Any]]:
    """For every split: digests of the reduced counts and of the biases, and what this rank saw."""
    return [_balance(Split(seed), rank, world) for seed in range(SPLITS)]


def _balance(split: Split, rank: int, world: int) -> dict[str, Any]:
    layers = [
        HistogramBalancer(*sizes, bias=bias, keep_reduced=True)
        for sizes, bias in zip(LAYERS, split.biases, strict=True)
    ]
    digest = hashlib.sha256()
    seen = 0
    for step in range(STEPS):
        for part in split.parts(rank, world, step):
            mask = None if split.mask is None else split.mask[part]
            for layer, logits in zip(layers, split.logits, strict=True):
                layer.observe(logits[part], mask=mask)
            seen += part.stop - part.start
        update_biases(layers)
        for layer in layers:
            assert layer.reduced_histogram is not None
            digest.update(layer.reduced_histogram.numpy().tobytes())
            digest.update(layer.bias.numpy().tobytes())
    first = layers[0].reduced_histogram
    assert first is not None
    return {"digest": digest.hexdigest(), "seen": seen, "counted": first.sum(1).tolist()}


class Traffic(TorchDispatchMode):
    """Every collective that is called, with the bytes and the formats of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            tensors = [each for each in args[0] if isinstance(each, Tensor)]
            size = sum(each.nbytes for each in tensors)
            self.calls.append((func.name(), size, str({each.dtype for each in tensors})))
        return func(*args, **(kwargs or {}))


def measure_traffic(rank: int, world: int, tokens: list[int]) -> list[list[tuple[str, int, str]]]:
    """The collectives of one update of all LAYERS, for each number of tokens per rank."""
    measured = []
    for m in tokens:
        layers = [HistogramBalancer(*sizes) for sizes in LAYERS]
        generator = torch.Generator().manual_seed(m + rank)
        with Traffic() as traffic:
            for layer, (n, _, _) in zip(layers, LAYERS, strict=True):
                layer.observe(torch.randn(m, n, generator=generator))
            update_biases(layers)
        measured.append(traffic.calls)
    return measured


def replicate_tokens(rank: int, world: int, tensor_parallel: int) -> dict[str, Any]:
    """Ranks of a tensor-parallel group observe the same tokens."""
    group = distinct_token_group(tensor_parallel)
    balancer = HistogramBalancer(*LAYERS[0], keep_reduced=True)
    source = rank // tensor_parallel
    generator = torch.Generator().manual_seed(source)
    balancer.observe(torch.randn(source + 3, 7, generator=generator))
    balancer.update(group=group)
    assert balancer.reduced_histogram is not None
    return {"counts": balancer.reduced_histogram.numpy(), "bias": balancer.bias.numpy()}


def load_a_bias_between(rank: int, world: int, _: Any) -> dict[str, Any]:
    """Rank 0 counts, every rank loads another bias, then updates; what they were told."""
    first, second = (HistogramBalancer(*LAYERS[0]) for _ in range(2))
    if rank == 0:
        second.observe(torch.linspace(-2, 2, 21).view(3, 7))
    for balancer in (first, second):
        balancer.bias.copy_(torch.linspace(-1, 1, 7))
    before = {name: value.clone() for name, value in second.state_dict().items()}
    try:
        update_biases([first, second])
        told = ""
    except RuntimeError as error:
        told = str(error)
    after = second.state_dict()
    unchanged = all(
        value.equal(after[name]) for name, value in before.items() if name != "extremes"
    )
    # The counts that a state dict without extremes brings along belong to the bias in it.
    second.load_state_dict({name: before[name] for name in ("bias", "histogram")})
    second.update()
    return {"told": told, "unchanged": unchanged, "bias": second.bias.numpy()}


def casts_and_idle_ranks(rank: int, world: int, _: Any) -> dict[str, Any]:
    """Casts between counting and updating, ranks that never observe, a disabled layer."""
    bias = torch.linspace(-0.3, 0.31, 7)
    balancer, off = HistogramBalancer(*LAYERS[0], bias=bias), HistogramBalancer(*LAYERS[0])
    off.enabled = False
    address = balancer.bias.data_ptr()
    if rank == world - 1:
        balancer.observe(torch.linspace(-2, 2, 21).view(3, 7))
    balancer.to(torch.bfloat16).half()
    with Traffic() as traffic:
        update_biases([off, balancer])
    kept = balancer.bias.data_ptr() == address
    wide = HistogramBalancer(*LAYERS[0], bias=bias)
    if rank == world - 1:
        wide.observe(torch.linspace(-2, 2, 21).view(3, 7))
    wide.double().update()
    return {
        "bias": balancer.bias.numpy(),
        "wide": wide.bias.numpy(),
        "kept": kept,
        "calls": traffic.calls,
        "off": off.bias.numpy(),
    }


def data_parallel(rank: int, world: int, _: Any) -> dict[str, Any]:
    """DistributedDataParallel, which would broadcast rank 0's counts if it handled buffers."""
    model = torch.nn.Sequential(torch.nn.Linear(7, 7), _Observing())
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(-1, 1, 49).view(7, 7))
        model[0].bias.zero_()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    for micro in range(2):
        x = torch.linspace(-2, 2, 7 * (rank + 1)).view(rank + 1, 7) + micro
        wrapped(x).sum().backward()
    update_biases(wrapped)
    balancer = model[1].balancer
    return {"counts": balancer.reduced_histogram.numpy(), "bias": balancer.bias.numpy()}


class _Observing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.balancer = HistogramBalancer(*LAYERS[0], keep_reduced=True)

    def forward(self, logits: Tensor) -> Tensor:
        return self.balancer.observe(logits).weights


def ordered(rank: int, world: int, _: Any) -> int:
    """The sum of all ranks, by a collective."""
    total = torch.tensor(rank)
    dist.all_reduce(total)
    return int(total)


def stumble(rank: int, world: int, how: str) -> None:
    """Rank 1 raises or dies; the others wait for it."""
    if rank == 1 and how == "raise":
        raise ValueError("rank one stumbles")
    if rank == 1 and how == "die":
        import os

        os._exit(3)
