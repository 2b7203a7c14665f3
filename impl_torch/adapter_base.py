"""From tensor functions to the adapter protocol: the base class of a torch user's adapter."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from impl_torch.arrays import Array, nan_memory, poison, to_array, to_tensor, torch_dtype
from impl_torch.boundary import (
    Handed,
    Inputs,
    TorchBalancer,
    checked_routing,
    checked_tensor,
    mapped,
    refilled,
)
from properties.protocol import (
    Conventions,
    ExpertParameters,
    LayerConfig,
    LayerParameters,
    Precision,
    Routing,
)

__all__ = ["TorchImplementation"]

# Each protocol method and what a subclass has to define for it to be offered.
_NEEDS: Mapping[str, str] = {
    "situ_glu": "situ_glu_forward",
    "situ_glu_vjp": "situ_glu_forward",
    "rms_norm": "rms_norm_forward",
    "route": "route_forward",
    "route_vjp": "route_forward",
    "route_grouped": "route_grouped_forward",
    "quantile_update": "quantile_update_forward",
    "balancer": "make_balancer",
    "experts": "experts_forward",
    "experts_vjp": "experts_forward",
    "router_logits": "router_logits_forward",
    "layer": "layer_forward",
    "layer_vjp": "layer_forward",
}


class TorchImplementation:
    """Turns forward functions on tensors into the protocol; the base of a torch user's adapter.

    A complete adapter for an activation, value and gradients::

        import torch
        from impl_torch.adapter import TorchImplementation

        class Mine(TorchImplementation):
            name, version = "mine", "1.0"

            def situ_glu_forward(self, gate, up, *, beta_gate, beta_up):
                capped = beta_up * torch.tanh(up / beta_up)
                return beta_gate * torch.tanh(gate / beta_gate) * torch.sigmoid(gate) * capped

    A protocol method is there if and only if its forward is: ``hasattr(Mine(), "route")`` is False.
    A forward has the protocol's name followed by ``_forward`` and the protocol's arguments as
    tensors: hidden states and parameters in ``precision.storage``, logits, bias and weights in the
    routing format, ids and masks as they come, all with the strides of the arrays. Every ``_vjp``
    comes from autograd of the forward; ``differentiable = False`` offers none. Setting an
    inherited forward to None withdraws it; a method defined under the protocol's own name is taken
    as it is, NumPy arrays and all.

    Forwards return tensors whose format is passed on unchanged, except:

    * ``route_forward``, ``route_grouped_forward``: (expert_ids, weights, cutoff or None);
    * ``experts_forward``, ``router_logits_forward`` and ``layer_forward`` are given the protocol's
      parameter classes, holding tensors;
    * ``make_balancer(*, num_experts, top_k, num_bins, bias, enabled)`` returns an object with
      tensors ``bias`` and ``histogram`` (or None), ``observe(logits, *, training, mask)`` that
      returns what ``route_forward`` does, and ``update()``. Its ``state_dict``,
      ``load_state_dict``, ``to`` and ``reduced_histogram`` are offered if it has them,
      ``set_enabled`` if it has the attribute ``enabled``, ``observe_recomputed`` if it is a
      ``torch.nn.Module``; num_bins and bias may be None.

    Raises, from the methods:
        TypeError: a forward returned something else, or a result that autograd cannot follow.
        RuntimeError: a forward changed one of its inputs in place.
    """

    name: str
    version: str
    precision: Precision = Precision()
    conventions: Conventions = Conventions()
    device: torch.device | str = "cpu"
    differentiable: bool = True
    _poisoned: bool = False

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not defined: the protocol's methods, in the usual case.
        needs = _NEEDS.get(name)
        if needs is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if getattr(self, needs, None) is None:
            raise AttributeError(f"{type(self).__name__} does not offer {name}: it has no {needs}")
        if name.endswith("_vjp") and not self.differentiable:
            raise AttributeError(f"{type(self).__name__} does not offer {name}: no gradients")
        return partial(self._watched, needs, getattr(self, f"_{name}"))

    def _watched(self, forward: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        # The arrays are read only, but the forward works on copies.
        handed = self._handed = Handed()
        with nan_memory() if self._poisoned else nullcontext():
            self._poisoned = False
            result = method(*args, **kwargs)
        handed.check(forward)
        return result

    def poison(self) -> None:
        """Let the next call find NaN wherever it reads memory that it has not written.

        That is certain for the tensors of ``torch.empty`` and its kin, and likely for memory that a
        kernel allocates by itself.
        """
        poison()
        self._poisoned = True

    # The protocol's methods, reached through __getattr__.

    def _situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        inputs = self._storage(gate), self._storage(up)
        out = self.situ_glu_forward(*inputs, beta_gate=beta_gate, beta_up=beta_up)
        return to_array(checked_tensor("situ_glu_forward", out))

    def _situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        inputs = Inputs()
        leaves = inputs.add(self._storage(gate)), inputs.add(self._storage(up))
        out = self.situ_glu_forward(*leaves, beta_gate=beta_gate, beta_up=beta_up)
        d_gate, d_up = inputs.vjp("situ_glu_forward", out, self._storage(cotangent))
        return d_gate, d_up

    def _rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = self.rms_norm_forward(self._storage(x), self._storage(weight), eps=eps)
        return to_array(checked_tensor("rms_norm_forward", out))

    def _route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        out = self.route_forward(self._routing(logits), self._routing(bias), top_k=top_k)
        return _routing_arrays("route_forward", out)

    def _route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        inputs = Inputs()
        leaves = inputs.add(self._routing(logits)), inputs.add(self._routing(bias))
        _, weights, _ = checked_routing("route_forward", self.route_forward(*leaves, top_k=top_k))
        cotangent = self._routing(weights_cotangent)
        d_logits, d_bias = inputs.vjp("route_forward: weights", weights, cotangent)
        return d_logits, d_bias

    def _route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        out = self.route_grouped_forward(
            self._routing(logits),
            self._routing(bias),
            top_k=top_k,
            num_groups=num_groups,
            top_groups=top_groups,
        )
        return _routing_arrays("route_grouped_forward", out)

    def _quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        out = self.quantile_update_forward(
            self._routing(logits), self._routing(bias), top_k=top_k, mask=self._plain(mask)
        )
        return to_array(checked_tensor("quantile_update_forward", out))

    def _balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> TorchBalancer:
        made = self.make_balancer(
            num_experts=num_experts,
            top_k=top_k,
            num_bins=num_bins,
            bias=None if bias is None else self._routing(bias),
            enabled=enabled,
        )
        dtype = torch_dtype(self.precision.routing_format)
        return TorchBalancer(made, dtype, self.device, _routing_arrays)

    def _experts(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Array:
        out = self.experts_forward(
            self._storage(x),
            self._plain(expert_ids),
            self._routing(weights),
            self._expert_tensors(parameters),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        return to_array(checked_tensor("experts_forward", out))

    def _experts_vjp(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        cotangent: Array,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> tuple[Array, Array, ExpertParameters]:
        inputs = Inputs()
        out = self.experts_forward(
            inputs.add(self._storage(x)),
            self._plain(expert_ids),
            inputs.add(self._routing(weights)),
            mapped(inputs.add, self._expert_tensors(parameters)),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        d_x, d_weights, *rest = inputs.vjp("experts_forward", out, self._storage(cotangent))
        return d_x, d_weights, refilled(parameters, rest)

    def _router_logits(self, x: Array, parameters: LayerParameters) -> Array:
        out = self.router_logits_forward(self._storage(x), self._layer_tensors(parameters))
        return to_array(checked_tensor("router_logits_forward", out))

    def _layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        tensors = self._layer_tensors(parameters)
        out = self.layer_forward(self._storage(x), tensors, config=config, training=training)
        return to_array(checked_tensor("layer_forward", out))

    def _layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        inputs = Inputs()
        leaf = inputs.add(self._storage(x))
        leaves = mapped(inputs.add, self._layer_tensors(parameters))
        out = self.layer_forward(leaf, leaves, config=config, training=True)
        d_x, *rest = inputs.vjp("layer_forward", out, self._storage(cotangent))
        return d_x, refilled(parameters, rest)

    # Tensors in the two groups of formats that the protocol names, and as they come.

    def _storage(self, array: Array) -> Tensor:
        dtype = torch_dtype(self.precision.storage)
        return self._handed.add(to_tensor(array, dtype, self.device))

    def _routing(self, array: Array) -> Tensor:
        dtype = torch_dtype(self.precision.routing_format)
        return self._handed.add(to_tensor(array, dtype, self.device))

    def _plain(self, array: Array | None) -> Tensor | None:
        return None if array is None else self._handed.add(to_tensor(array, device=self.device))

    def _expert_tensors(self, parameters: ExpertParameters) -> ExpertParameters:
        return mapped(self._storage, parameters)

    def _layer_tensors(self, parameters: LayerParameters) -> LayerParameters:
        bias: Any = self._routing(parameters.e_score_correction_bias)
        return replace(mapped(self._storage, parameters), e_score_correction_bias=bias)


def _routing_arrays(what: str, value: Any) -> Routing:
    expert_ids, weights, cutoff = checked_routing(what, value)
    return Routing(
        to_array(checked_tensor(f"{what}: expert_ids", expert_ids)),
        to_array(checked_tensor(f"{what}: weights", weights)),
        None if cutoff is None else to_array(checked_tensor(f"{what}: cutoff", cutoff)),
    )
