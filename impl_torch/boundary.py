"""What the adapter does to any implementation's tensors, independent of the protocol's classes.

Legend: N routed experts, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from impl_torch.arrays import Array, to_array, to_tensor, torch_dtype

__all__ = [
    "Handed",
    "Inputs",
    "TorchBalancer",
    "by_checkpoint_name",
    "checked_routing",
    "checked_tensor",
    "mapped",
    "refilled",
]

Parameters = TypeVar("Parameters")

# Each optional method of a balancer and the attribute that the wrapped one has to have.
_BALANCER_NEEDS: Mapping[str, str] = {
    "state_dict": "state_dict",
    "load_state_dict": "load_state_dict",
    "to": "to",
    "set_enabled": "enabled",
    "bias_storage_id": "bias",
    "reduced_histogram": "reduced_histogram",
    "observe_recomputed": "register_forward_hook",  # a torch.nn.Module, the thing to checkpoint
}
_STATE = ("bias", "histogram")


def checked_tensor(what: str, value: Any) -> Tensor:
    """The value, which has to be a tensor; TypeError otherwise, naming ``what``."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a torch.Tensor")
    return value


def checked_routing(what: str, value: Any) -> tuple[Any, Any, Any]:
    """The value, which has to be (expert_ids, weights, cutoff or None); TypeError otherwise."""
    if not isinstance(value, tuple) or len(value) != 3:
        raise TypeError(
            f"{what} returned a {type(value).__name__}; expected a tuple of three, "
            "(expert_ids, weights, cutoff or None)"
        )
    return value


def mapped(function: Callable[[Any], Any], parameters: Parameters) -> Parameters:
    """A dataclass of arrays, perhaps nested, with each array replaced by a function of it."""
    return cast("Parameters", _mapped(function, parameters))


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if not is_dataclass(value):
        return function(value)
    names = [field.name for field in fields(value)]
    values = {name: _mapped(function, getattr(value, name)) for name in names}
    return type(value)(**values)  # type: ignore[misc]


def refilled(parameters: Parameters, values: list[Array]) -> Parameters:
    """A dataclass like ``parameters`` with other arrays, in the order in which ``mapped`` goes."""
    remaining = iter(values)
    return mapped(lambda _: next(remaining), parameters)


def by_checkpoint_name(parameters: Any) -> dict[str, Tensor]:
    """The protocol's layer parameters as the state dict of a ``LatentMoE``.

    Without shared experts there are no names for them.
    """
    routed, shared = parameters.experts, parameters.shared_experts
    named = {
        "gate.weight": parameters.gate_weight,
        "gate.e_score_correction_bias": parameters.e_score_correction_bias,
        "routed_expert_down_proj.weight": parameters.routed_expert_down_proj,
        "experts.gate_proj": routed.gate_proj,
        "experts.up_proj": routed.up_proj,
        "experts.down_proj": routed.down_proj,
        "routed_expert_norm.weight": parameters.routed_expert_norm,
        "routed_expert_up_proj.weight": parameters.routed_expert_up_proj,
    }
    if shared.gate_proj.shape[0]:
        named["shared_experts.gate_proj.weight"] = shared.gate_proj.flatten(0, 1)
        named["shared_experts.up_proj.weight"] = shared.up_proj.flatten(0, 1)
        named["shared_experts.down_proj.weight"] = shared.down_proj.transpose(0, 1).flatten(1)
    return named


class Handed:
    """Tensors handed to a forward, which must find the same bits in them as before."""

    def __init__(self) -> None:
        self._before: list[tuple[Tensor, bytes]] = []

    def add(self, tensor: Tensor) -> Tensor:
        """The tensor, from now on watched."""
        self._before.append((tensor, to_array(tensor).tobytes()))
        return tensor

    def check(self, what: str) -> None:
        """Raise RuntimeError, naming ``what``, if a watched tensor has changed."""
        if any(to_array(tensor).tobytes() != before for tensor, before in self._before):
            raise RuntimeError(f"{what} changed one of its inputs in place; work on a copy")


class Inputs:
    """The tensors that gradients are taken with respect to, in the order they were added."""

    def __init__(self) -> None:
        self._leaves: list[Tensor] = []

    def add(self, tensor: Tensor) -> Tensor:
        """The tensor, from now on one of the inputs."""
        self._leaves.append(tensor.requires_grad_())
        return tensor

    def vjp(self, what: str, output: Any, cotangent: Tensor) -> list[Array]:
        """Gradients of sum(cotangent * output) for every input, zeros where there is no path.

        Raises TypeError if the output is no tensor or carries no gradient at all. An output without
        elements need not: the objective is an empty sum, whatever autograd has recorded.
        """
        output = checked_tensor(what, output)
        if not output.requires_grad:
            if output.numel() == 0:
                return [to_array(torch.zeros_like(leaf)) for leaf in self._leaves]
            raise TypeError(
                f"{what} is detached from its inputs, so it has no gradients; use differentiable "
                "torch operations, or set differentiable = False to offer none"
            )
        gradients = torch.autograd.grad(
            output, self._leaves, cotangent.to(output.dtype), materialize_grads=True
        )
        return [to_array(gradient) for gradient in gradients]


def _optional(what: str, value: Any) -> Array | None:
    return None if value is None else to_array(checked_tensor(what, value))


class TorchBalancer:
    """A balancer of tensors (see ``TorchImplementation``) behind the protocol's NumPy arrays.

    Optional methods are there if what they need is: ``hasattr`` tells.
    """

    def __init__(
        self,
        inner: Any,
        dtype: torch.dtype,
        device: torch.device | str,
        result: Callable[[str, Any], Any],
    ) -> None:
        """Wrap ``inner``, given the format of its logits and how a routing becomes arrays."""
        self._inner = inner
        self._dtype = dtype
        self._device = device
        self._result = result

    def __getattr__(self, name: str) -> Any:
        needs = _BALANCER_NEEDS.get(name)
        if needs is None or not hasattr(self._inner, needs):
            raise AttributeError(f"the balancer does not offer {name!r}")
        return getattr(self, f"_{name}")

    @property
    def bias(self) -> Array:
        """The selection bias (N,), a copy."""
        return to_array(checked_tensor("the balancer's bias", self._inner.bias))

    @property
    def histogram(self) -> Array | None:
        """The pending counts (N, B), a copy, or None where none are kept."""
        return _optional("the balancer's histogram", self._inner.histogram)

    def observe(self, logits: Array, *, training: bool = True, mask: Array | None = None) -> Any:
        """Route a micro-batch with the present bias and, in training, count it."""
        handed = Handed()
        tensor = handed.add(to_tensor(logits, self._dtype, self._device))
        valid = None if mask is None else handed.add(to_tensor(mask, device=self._device))
        out = self._inner.observe(tensor, training=training, mask=valid)
        handed.check("the balancer's observe")
        return self._result("the balancer's observe", out)

    def update(self) -> None:
        """Replace the bias by the one that the counts since the last update ask for."""
        self._inner.update()

    @property
    def _reduced_histogram(self) -> Array | None:
        return _optional("the balancer's reduced_histogram", self._inner.reduced_histogram)

    def _observe_recomputed(self, logits: Array) -> Any:
        """Observe a micro-batch forward and backward, under activation checkpointing."""
        leaf = to_tensor(logits, self._dtype, self._device).requires_grad_()
        out: list[Any] = []

        def weights(tensor: Tensor) -> Any:
            out.append(self._inner.observe(tensor, training=True, mask=None))
            return checked_routing("the balancer's observe", out[-1])[1]

        total = checkpoint(weights, leaf, use_reentrant=False).sum()
        if total.requires_grad:  # Otherwise there is no backward pass that recomputes.
            total.backward()
        return self._result("the balancer's observe", out[0])

    def _state_dict(self) -> dict[str, Array]:
        state = self._inner.state_dict()
        return {key: to_array(state[key]) for key in _STATE}

    def _load_state_dict(self, state: Mapping[str, Array]) -> None:
        known = [key for key in _STATE if key in state]
        tensors = {key: to_tensor(state[key], device=self._device) for key in known}
        self._inner.load_state_dict(tensors)

    def _to(self, dtype: str) -> None:
        self._inner.to(torch_dtype(dtype))

    def _set_enabled(self, flag: bool) -> None:
        self._inner.enabled = flag

    def _bias_storage_id(self) -> int:
        address: int = self._inner.bias.data_ptr()
        return address
