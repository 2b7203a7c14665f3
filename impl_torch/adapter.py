"""This package's own adapters: ``impl_torch.adapter:Float64``, ``:Float32`` and ``:BFloat16``.

They are named after the storage format. Started by torchrun, they work on all its processes.
``TorchImplementation``, the base of other adapters in torch, is offered here, too.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from torch import Tensor

import impl_torch
from impl_torch.adapter_base import TorchImplementation
from impl_torch.arrays import torch_dtype
from impl_torch.boundary import by_checkpoint_name
from impl_torch.world import World, own_parameters
from properties.protocol import Conventions, LayerConfig, Precision

__all__ = ["BFloat16", "Float32", "Float64", "StableLatentMoE", "TorchImplementation"]


class _WorldBalancer(impl_torch.HistogramBalancer):
    """A balancer whose updates add up the distinct tokens of all ranks."""

    def __init__(self, world: World, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._world = world

    def update(self, **_: Any) -> None:
        super().update(group=self._world.distinct)


class StableLatentMoE(TorchImplementation):
    """This package, in whichever precision a subclass declares."""

    version = impl_torch.__version__
    conventions = Conventions(expert_rank="interior", histogram_rank="q", ranks=True)

    @cached_property
    def _world(self) -> World:
        return World(self.device)

    def parallel(self, *, tensor_parallel: int = 1, expert_parallel: int | None = None) -> None:
        """Arrange the ranks: see ``impl_torch.world.World.arrange``."""
        self._world.arrange(tensor_parallel, expert_parallel)

    def situ_glu_forward(
        self, gate: Tensor, up: Tensor, *, beta_gate: float, beta_up: float
    ) -> Tensor:
        """Eq. 12 without the projections."""
        return impl_torch.situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)

    def rms_norm_forward(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        """The latent norm."""
        return impl_torch.rms_norm(x, weight, eps=eps)

    def route_forward(self, logits: Tensor, bias: Tensor, *, top_k: int) -> impl_torch.Routing:
        """Eq. 13 and the cutoff."""
        return impl_torch.route(logits, bias, top_k=top_k)

    def route_grouped_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int, num_groups: int, top_groups: int
    ) -> impl_torch.Routing:
        """Eq. 13 among the experts of the best groups."""
        return impl_torch.route_grouped(
            logits, bias, top_k=top_k, num_groups=num_groups, top_groups=top_groups
        )

    def quantile_update_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int, mask: Tensor | None
    ) -> Tensor:
        """Eq. 14 with the linear quantile."""
        return impl_torch.quantile_update(logits, bias, top_k=top_k, mask=mask)

    def make_balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None,
        bias: Tensor | None,
        enabled: bool,
    ) -> impl_torch.HistogramBalancer:
        """App. D over all ranks, with 1000 bins unless told otherwise."""
        self._world.join()
        return _WorldBalancer(
            self._world,
            num_experts,
            top_k,
            1000 if num_bins is None else num_bins,
            bias=bias,
            enabled=enabled,
            keep_reduced=True,
            device=self.device,
            dtype=torch_dtype(self.precision.routing_format),
        )

    def experts_forward(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor,
        parameters: Any,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Tensor:
        """Grouped dispatch, to the experts of all ranks."""
        layout = self._world.layout
        num_experts = parameters.gate_proj.shape[0]
        own = slice(None) if layout is None else layout.own(num_experts)
        run = impl_torch.experts
        if layout is not None:
            run = partial(impl_torch.parallel_experts, num_experts=num_experts, layout=layout)
        return run(
            x,
            expert_ids,
            weights,
            parameters.gate_proj[own],
            parameters.up_proj[own],
            parameters.down_proj[own],
            beta_gate=beta_gate,
            beta_up=beta_up,
        )

    def router_logits_forward(self, x: Tensor, parameters: Any) -> Tensor:
        """The full-width router's logits."""
        return impl_torch.router_logits(x, parameters.gate_weight)

    def layer_forward(
        self, x: Tensor, parameters: Any, *, config: LayerConfig, training: bool
    ) -> Tensor:
        """The module ``LatentMoE`` over the given parameters, of which it takes its own part."""
        tensors = by_checkpoint_name(parameters)
        if self._world.layout is not None:
            tensors = own_parameters(tensors, self._world.layout)
        return impl_torch.latent_moe(
            x,
            tensors,
            top_k=config.top_k,
            beta_gate=config.beta_gate,
            beta_up=config.beta_up,
            norm_eps=config.norm_eps,
            routed_scale=config.routed_scale,
            training=training,
            expert_parallel=self._world.layout,
        )


class Float64(StableLatentMoE):
    """Everything in float64."""

    name = "impl_torch float64"
    precision = Precision(compute="float64", accumulate="float64", storage="float64")


class Float32(StableLatentMoE):
    """Everything in float32."""

    name = "impl_torch float32"
    precision = Precision(compute="float32", accumulate="float32", storage="float32")


class BFloat16(StableLatentMoE):
    """bfloat16 in memory, float32 in elementwise arithmetic, sums and routing."""

    name = "impl_torch bfloat16"
    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
