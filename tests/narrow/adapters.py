"""The reference's formulas in formats as narrow as float8, rounded after every operation.

What no package computes yet, or not on a CPU: float16 throughout, and hidden states in float8. Sums
run in their order and every operation rounds to nearest, so that calls repeat themselves; routing
and balancing are ``impl_torch``'s in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import reference_numpy as reference
from impl_torch.adapter import StableLatentMoE
from properties.judgement.layer import on_arrays
from properties.protocol import (
    Array,
    ExpertParameters,
    LayerConfig,
    LayerParameters,
    Precision,
    number_format,
)
from properties.rounding import Arithmetic
from tests.rounding.carriers import Carrier, simulated
from tests.rounding.simulation import Machine


class Plain(Machine):
    """A machine without habits: one rounding to nearest after each operation, sums in turn."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__(arithmetic, np.random.default_rng(0))
        self.truncates = self.devious = self.flushes = self.reciprocals = self.wide = False
        self.exp_by_powers_of_two, self.fused, self.order = False, True, "in turn"

    def near(self, z: Any, ulps: float) -> Any:
        return self.fit_nearest(z, self.number)

    def accumulate(self, terms: Any) -> Any:
        return self._in_turn(self.fit_nearest(terms, self.arithmetic.accumulated))


class Narrow(StableLatentMoE):
    """Hidden states in ``precision``'s formats; a subclass names them."""

    name, version = "reference in narrow formats", "1"

    def carried(self, values: Any) -> Any:
        """The array as numbers that compute and round as the formats do."""
        return simulated(np.asarray(values, np.float64), Plain(Arithmetic.of(self.precision)))

    def out(self, carrier: Any) -> Array:
        """What is stored."""
        values = carrier.value if isinstance(carrier, Carrier) else carrier
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(number_format(self.precision.storage))

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        balls = self.carried(gate), self.carried(up)
        return self.out(reference.situ_glu(*balls, beta_gate=beta_gate, beta_up=beta_up))

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        given = (self.carried(part) for part in (gate, up, cotangent))
        d_gate, d_up = reference.situ_glu_vjp(*given, beta_gate=beta_gate, beta_up=beta_up)
        return self.out(d_gate), self.out(d_up)

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return self.out(reference.rms_norm(self.carried(x), self.carried(weight), eps=eps))

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
        return self.out(
            reference.experts(
                self.carried(x),
                expert_ids,
                self.carried(weights),
                on_arrays(self.carried, parameters),
                beta_gate=beta_gate,
                beta_up=beta_up,
            )
        )

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
        d_x, d_weights, d_parameters = reference.experts_vjp(
            self.carried(x),
            expert_ids,
            self.carried(weights),
            on_arrays(self.carried, parameters),
            self.carried(cotangent),
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        return self.out(d_x), self.out(d_weights), on_arrays(self.out, d_parameters)

    def router_logits(self, x: Array, parameters: LayerParameters) -> Array:
        weight, x_MD = self.carried(parameters.gate_weight), x.reshape(-1, x.shape[-1])
        logits_MN = self.out(reference.router_logits(self.carried(x_MD), weight))
        return logits_MN.reshape(*x.shape[:-1], len(parameters.gate_weight))

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        x_MD = x.reshape(-1, x.shape[-1])
        logits_MN = self.router_logits(x_MD, parameters).astype(np.float32)
        routed = self.route(logits_MN, parameters.e_score_correction_bias, top_k=config.top_k)
        routing = reference.Routing(routed.expert_ids, self.carried(routed.weights))
        carried = on_arrays(self.carried, parameters)
        out = reference.layer(self.carried(x_MD), carried, config=config, routing=routing)
        return self.out(out).reshape(x.shape)

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        x_MD = x.reshape(-1, x.shape[-1])
        logits_MN = self.router_logits(x_MD, parameters).astype(np.float32)
        routed = self.route(logits_MN, parameters.e_score_correction_bias, top_k=config.top_k)
        d_x, d_parameters = reference.layer_vjp(
            self.carried(x_MD),
            on_arrays(self.carried, parameters),
            self.carried(cotangent.reshape(x_MD.shape)),
            config=config,
            expert_ids=routed.expert_ids,
        )
        return self.out(d_x).reshape(x.shape), on_arrays(self.out, d_parameters)


class Float16(Narrow):
    """float16 in memory, float32 everywhere else."""

    precision = Precision("float32", "float32", "float16")


class ComputeFloat16(Narrow):
    """float16 in memory and in elementwise arithmetic, sums in float32."""

    precision = Precision("float16", "float32", "float16")


class AllFloat16(Narrow):
    """float16 throughout."""

    precision = Precision("float16", "float16", "float16")


class E4M3(Narrow):
    """float8_e4m3fn in memory, float32 everywhere else."""

    precision = Precision("float32", "float32", "float8_e4m3fn")


class E5M2(Narrow):
    """float8_e5m2 in memory, float32 everywhere else."""

    precision = Precision("float32", "float32", "float8_e5m2")
