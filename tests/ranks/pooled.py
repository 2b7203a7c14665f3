"""The reference on several ranks: every call gathers what all ranks have, and computes it all.

Correct, and unlike any kernel: nothing is dispatched, rank 0 alone returns gradients of parameters,
and a rank of a replicated-token group that is not its first takes no part in the counts.

Legend: M tokens, N routed experts, K top_k, L latent width, D model width, B histogram bins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import reference_numpy as reference
from properties.protocol import (
    Array,
    Conventions,
    ExpertParameters,
    LayerConfig,
    LayerParameters,
)
from properties.reference import Reference


class PooledBalancer(reference.HistogramBalancer):
    """Counts its own tokens, and reads its bias from the counts of all."""

    reduced_histogram: Array | None = None

    def __init__(self, world: Pooled, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.world = world

    def update(self) -> None:
        if self.enabled:
            self.histogram = self.reduced_histogram = self.pooled()
            super().update()

    def pooled(self) -> Array:
        """The counts of every distinct token."""
        own = self.histogram if self.world.is_first else np.zeros_like(self.histogram)
        return self.reduced(own)

    def reduced(self, counts: Array) -> Array:
        """The sum over the world."""
        tensor = torch.from_numpy(counts.copy())
        if self.world.size > 1:
            dist.all_reduce(tensor)
        return tensor.numpy()


class Pooled(Reference):
    """See the module's docstring."""

    name = "pooled reference"
    conventions = Conventions(
        expert_rank="interior",
        histogram_rank="q",
        ties="lowest_index",
        padding="masked",
        ranks=True,
    )
    balancer_class: type[PooledBalancer] = PooledBalancer

    def __init__(self) -> None:
        super().__init__()
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.tensor_parallel = 1
        self.expert_parallel = self.size
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("gloo")

    def parallel(self, *, tensor_parallel: int = 1, expert_parallel: int | None = None) -> None:
        self.tensor_parallel = tensor_parallel
        self.expert_parallel = expert_parallel or self.size

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of those with the same tokens."""
        return self.rank % self.tensor_parallel == 0

    def gathered(self, *arrays: Array) -> tuple[tuple[Array, ...], slice]:
        """The rows of every distinct token, and where this rank's are."""
        if self.size == 1:
            return arrays, slice(None)
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, tuple(map(np.ascontiguousarray, arrays)))
        distinct = everyone[:: self.tensor_parallel]
        before = sum(len(parts[0]) for parts in distinct[: self.rank // self.tensor_parallel])
        pooled = tuple(np.concatenate(rows) for rows in zip(*distinct, strict=True))
        return pooled, slice(before, before + len(arrays[0]))

    def once(self, gradients: Any) -> Any:
        """Gradients of parameters: all of them on rank 0, nothing elsewhere."""
        return gradients if self.rank == 0 else mapped(np.zeros_like, gradients)

    def balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> PooledBalancer:
        bins = 1000 if num_bins is None else num_bins
        return self.balancer_class(self, num_experts, top_k, bins, bias, enabled)

    def experts(
        self, x: Array, expert_ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        pooled, own = self.gathered(x, expert_ids, weights)
        return super().experts(*pooled, parameters, **caps)[own]

    def experts_vjp(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        cotangent: Array,
        **caps: Any,
    ) -> tuple[Array, Array, ExpertParameters]:
        (x, expert_ids, weights, cotangent), own = self.gathered(x, expert_ids, weights, cotangent)
        d_x, d_weights, d_parameters = super().experts_vjp(
            x, expert_ids, weights, parameters, cotangent, **caps
        )
        return d_x[own], d_weights[own], self.once(d_parameters)

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        shape = x.shape
        (x_MD,), own = self.gathered(x.reshape(-1, shape[-1]))
        return super().layer(x_MD, parameters, config=config, training=training)[own].reshape(shape)

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        shape, flat = x.shape, (-1, x.shape[-1])
        (x, cotangent), own = self.gathered(x.reshape(flat), cotangent.reshape(flat))
        d_x, d_parameters = super().layer_vjp(x, parameters, cotangent, config=config)
        return d_x[own].reshape(shape), self.once(d_parameters)


def mapped(function: Callable[[Array], Array], parameters: Any) -> Any:
    """The same parameters with every array replaced."""
    parts = {}
    for part in fields(parameters):
        value = getattr(parameters, part.name)
        parts[part.name] = mapped(function, value) if is_dataclass(value) else function(value)
    return type(parameters)(**parts)
