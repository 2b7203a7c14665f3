"""The implementation under test, seen through the protocol and held to it.

A :class:`Subject` converts the suite's float64 arrays to the declared formats, hands them over read
only, checks type, shape and dtype of what comes back, and returns float64 copies. It remembers the
calls of the present case, so that a failure can show exactly what the implementation was given.

Two different things can go wrong in a call. A result that is not what the protocol promises is an
:class:`~properties.errors.AdapterError`. An exception on legal input, or an input that was
modified, is a :class:`~properties.errors.ViolationError` of the property that made the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache, partial
from typing import Any

import numpy as np

from properties.balancer import SubjectBalancer
from properties.boundary import (
    arrays_in,
    checked_parts,
    checked_result,
    exactly,
    read_only,
    round_to,
    split_arguments,
)
from properties.calls import Call, Case
from properties.errors import AdapterError, ViolationError
from properties.guard.protection import protected
from properties.guard.trace import Trace
from properties.protocol import (
    Array,
    Conventions,
    ExpertParameters,
    LayerConfig,
    LayerParameters,
    Precision,
    number_format,
)
from properties.returned import Routed, checked_experts, checked_layer, checked_routing
from properties.rounding import Arithmetic, Ball

__all__ = ["RANK_SECONDS", "WORLDS", "Call", "Case", "Routed", "Subject"]

# Numbers of ranks that an implementation is launched on, and how long one program may take there.
WORLDS = (2, 4)
RANK_SECONDS = 60.0

_arithmetic = lru_cache(Arithmetic)


class Subject:
    """An implementation with the protocol's methods, checked at every call."""

    def __init__(self, implementation: Any, reference: str, offered: frozenset[str]) -> None:
        self.implementation = implementation
        self.reference = reference
        self.offered = offered
        self.name: str = implementation.name
        self.version: str = implementation.version
        self.precision: Precision = implementation.precision
        self.conventions: Conventions = getattr(implementation, "conventions", Conventions())
        self.storage_dtype = number_format(self.precision.storage)
        self.routing_dtype = number_format(self.precision.routing_format)
        self.worlds: tuple[int, ...] = WORLDS if "ranks" in offered else ()
        self.rank_seconds = RANK_SECONDS
        self.rank_modules: tuple[str, ...] = ()  # imported once, before ranks are forked
        self.ranks_failed: dict[str, tuple[str, list[Call]]] = {}
        self.case = Case()
        self.trace = Trace()

    @contextmanager
    def new_case(self) -> Iterator[Case]:
        """Forget the previous case and collect the next one."""
        self.case = Case()
        yield self.case

    def limit_ranks(self, most: int, least: int = 2) -> None:
        """Judge so many ranks; where none are left, nothing that needs several is offered."""
        self.worlds = tuple(world for world in self.worlds if least <= world <= most)
        if not self.worlds:
            self.offered -= {"ranks"}

    # Formats -----------------------------------------------------------------------------------

    @property
    def arithmetic(self) -> Arithmetic:
        """The formats of activation, experts, norm and layer."""
        precision = self.precision
        return _arithmetic(precision.compute, precision.accumulate, precision.storage)

    def routing_arithmetic(self, stored: str | None = None) -> Arithmetic:
        """The formats of scores, bias and weights; ``stored`` is the one that results came in."""
        routing = self.precision.routing_format
        return _arithmetic(routing, routing, stored or routing)

    def ball(self, values: Array) -> Any:
        """Values that the implementation is given, as exact balls; the reference takes them."""
        return Ball.exact(values, self.arithmetic)

    def routing_ball(self, values: Array, stored: str | None = None) -> Any:
        """The same for logits, bias and weights; ``stored`` as in ``routing_arithmetic``."""
        return Ball.exact(values, self.routing_arithmetic(stored))

    def round_to_storage(self, values: Array) -> Array:
        """The nearest values that the storage format holds, as float64 of the same layout."""
        return round_to(values, self.storage_dtype)

    def round_to_routing(self, values: Array) -> Array:
        """The nearest values that the routing format holds, as float64 of the same layout."""
        return round_to(values, self.routing_dtype)

    # Calls -------------------------------------------------------------------------------------

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        """SiTU-GLU of two float64 arrays of storage values; float64 of the same shape."""
        out = self._call(
            "situ_glu",
            gate=self.as_storage(gate),
            up=self.as_storage(up),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        return self._storage_result("situ_glu", out, gate.shape)

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        """Gradients of SiTU-GLU, both of the inputs' shape."""
        out = self._call(
            "situ_glu_vjp",
            gate=self.as_storage(gate),
            up=self.as_storage(up),
            cotangent=self.as_storage(cotangent),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        d_gate, d_up = checked_parts("situ_glu_vjp", out, ("d_gate", "d_up"))
        return (
            self._storage_result("situ_glu_vjp: d_gate", d_gate, gate.shape),
            self._storage_result("situ_glu_vjp: d_up", d_up, gate.shape),
        )

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """RMSNorm over the last axis of x."""
        out = self._call("rms_norm", x=self.as_storage(x), weight=self.as_storage(weight), eps=eps)
        return self._storage_result("rms_norm", out, x.shape)

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routed:
        """Eq. 13 for logits (M, N) and a selection bias (N,) that is added to the scores.

        Implementations with ``bias_sign=-1`` are given the negated bias, and their cutoff is read
        unchanged: it is a biased score in either convention.
        """
        out = self._call(
            "route", logits=self.as_logits(logits), bias=self.as_bias(bias), top_k=top_k
        )
        return self.as_routed("route", out, logits.shape[0], top_k)

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routed:
        """``route`` among the experts of the ``top_groups`` best of ``num_groups`` groups."""
        out = self._call(
            "route_grouped",
            logits=self.as_logits(logits),
            bias=self.as_bias(bias),
            top_k=top_k,
            num_groups=num_groups,
            top_groups=top_groups,
        )
        return self.as_routed("route_grouped", out, logits.shape[0], top_k)

    def route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        """Gradients of the combine weights, (d_logits, d_bias); no d_bias at all reads as 0."""
        out = self._call(
            "route_vjp",
            logits=self.as_logits(logits),
            bias=self.as_bias(bias),
            weights_cotangent=self.as_routing(weights_cotangent),
            top_k=top_k,
        )
        d_logits, d_bias = checked_parts("route_vjp", out, ("d_logits", "d_bias"))
        either = self.either_dtype
        return (
            checked_result("route_vjp: d_logits", d_logits, logits.shape, either),
            np.zeros(bias.shape)
            if d_bias is None
            else checked_result("route_vjp: d_bias", d_bias, bias.shape, either),
        )

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        """The next centred bias (N,), in the sign convention of a bias that is added."""
        arguments: dict[str, Any] = {
            "logits": self.as_logits(logits),
            "bias": self.as_bias(bias),
            "top_k": top_k,
        }
        if mask is not None:
            arguments["mask"] = mask
        out = self._call("quantile_update", **arguments)
        result = checked_result("quantile_update", out, bias.shape, (self.routing_dtype,))
        return result * self.conventions.bias_sign

    def balancer(self, *, num_experts: int, top_k: int, **options: Any) -> SubjectBalancer:
        """A fresh balancer, wrapped like the subject itself."""
        if options.get("bias") is not None:
            options["bias"] = self.as_bias(options["bias"])
        made = self._call("balancer", num_experts=num_experts, top_k=top_k, **options)
        return SubjectBalancer(self, made, num_experts, top_k)

    def experts(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Array:
        """The routed experts' weighted sum (M, L)."""
        out = self._call(
            "experts",
            x=self.as_storage(x),
            expert_ids=expert_ids,
            weights=self.as_routing(weights),
            parameters=self.as_storage_fields(parameters),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        return self._storage_result("experts", out, x.shape)

    def experts_vjp(
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
        """Gradients of the routed experts: (d_x, d_weights, d_parameters)."""
        out = self._call(
            "experts_vjp",
            x=self.as_storage(x),
            expert_ids=expert_ids,
            weights=self.as_routing(weights),
            parameters=self.as_storage_fields(parameters),
            cotangent=self.as_storage(cotangent),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        names = ("d_x", "d_weights", "d_parameters")
        d_x, d_weights, d_parameters = checked_parts("experts_vjp", out, names)
        either = self.either_dtype
        return (
            self._storage_result("experts_vjp: d_x", d_x, x.shape),
            checked_result("experts_vjp: d_weights", d_weights, weights.shape, either),
            checked_experts(
                "experts_vjp: d_parameters", d_parameters, parameters, self.storage_dtype
            ),
        )

    def router_logits(self, x: Array, parameters: LayerParameters) -> Array:
        """The router's logits (…, N) of x (…, D)."""
        out = self._call(
            "router_logits", x=self.as_storage(x), parameters=self._layer_parameters(parameters)
        )
        shape = (*x.shape[:-1], parameters.gate_weight.shape[0])
        return checked_result("router_logits", out, shape, (self.routing_dtype, self.storage_dtype))

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        """The whole layer for x (…, D)."""
        out = self._call(
            "layer",
            x=self.as_storage(x),
            parameters=self._layer_parameters(parameters),
            config=config,
            training=training,
        )
        return self._storage_result("layer", out, x.shape)

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        """Gradients of the whole layer, (d_x, d_parameters); no gradient of the bias reads as 0."""
        out = self._call(
            "layer_vjp",
            x=self.as_storage(x),
            parameters=self._layer_parameters(parameters),
            cotangent=self.as_storage(cotangent),
            config=config,
        )
        d_x, d_parameters = checked_parts("layer_vjp", out, ("d_x", "d_parameters"))
        return (
            self._storage_result("layer_vjp: d_x", d_x, x.shape),
            checked_layer(
                "layer_vjp: d_parameters",
                d_parameters,
                parameters,
                self.storage_dtype,
                self.either_dtype,
            ),
        )

    def parallel(self, *, tensor_parallel: int = 1, expert_parallel: int | None = None) -> None:
        """Say how the ranks of a world share tokens and experts."""
        self._call("parallel", tensor_parallel=tensor_parallel, expert_parallel=expert_parallel)

    def poison(self) -> None:
        """Fill memory that the next call has not written with NaN, where that is offered."""
        if "poison" in self.offered:
            self._call("poison")

    # Machinery ---------------------------------------------------------------------------------

    def _call(self, method: str, /, **arguments: Any) -> Any:
        function = self.reading(method, lambda: getattr(self.implementation, method))
        output = self.guarded(method, function, arguments)
        arrays, bits = self.case.returned.get(method, ([], []))
        for array, then in zip(arrays, bits, strict=True):
            if array.tobytes() != then:
                raise ViolationError(f"{method} changed what an earlier call of it had returned")
        if method != "balancer":  # which has a state of its own
            arrays = arrays_in(output)
            self.case.returned[method] = arrays, [array.tobytes() for array in arrays]
        return output

    def guarded(self, label: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call a function of the implementation on read-only views, and check that it left them."""
        call = Call(label, arguments)
        self.case.calls.append(call)
        before = [array.tobytes() for array in arrays_in(arguments)]
        positional, keywords = split_arguments(label, read_only(arguments))
        work = partial(function, *positional, **keywords)
        call.output = protected(self.trace, label, work, ViolationError, arguments=arguments)
        for array, bytes_before in zip(arrays_in(arguments), before, strict=True):
            if array.tobytes() != bytes_before:
                raise ViolationError(f"{label} modified one of its inputs in place")
        return call.output

    def reading(self, label: str, read: Callable[[], Any]) -> Any:
        """What an attribute of the implementation holds; it may be computed, and fail like a call.

        Raises AdapterError if reading it raises.
        """
        return protected(self.trace, label, read, AdapterError, doing="reading ")

    def as_storage(self, values: Array) -> Array:
        return exactly(values, self.storage_dtype)

    def as_routing(self, values: Array) -> Array:
        exactly(values, self.storage_dtype)
        return exactly(values, self.routing_dtype)

    as_logits = as_routing

    def as_bias(self, bias: Array) -> Array:
        added = self.conventions.bias_sign == 1
        return exactly(bias if added else -bias, self.routing_dtype)

    def as_storage_fields(self, parameters: ExpertParameters) -> ExpertParameters:
        return ExpertParameters(
            *(self.as_storage(getattr(parameters, part.name)) for part in fields(parameters))
        )

    def _layer_parameters(self, parameters: LayerParameters) -> LayerParameters:
        converted: dict[str, Any] = {}
        for part in fields(parameters):
            value = getattr(parameters, part.name)
            if isinstance(value, ExpertParameters):
                converted[part.name] = self.as_storage_fields(value)
            elif part.name == "e_score_correction_bias":
                converted[part.name] = self.as_bias(value)
            else:
                converted[part.name] = self.as_storage(value)
        return LayerParameters(**converted)

    @property
    def either_dtype(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """Those that results between router and experts may have: routing, or storage."""
        return self.routing_dtype, self.storage_dtype

    def _storage_result(self, what: str, value: Any, shape: tuple[int, ...]) -> Array:
        return checked_result(what, value, shape, (self.storage_dtype,))

    def as_routed(self, what: str, value: Any, tokens: int, top_k: int) -> Routed:
        return checked_routing(what, value, (tokens, top_k), self.either_dtype)
