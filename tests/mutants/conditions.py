"""Kernels that are right but for one condition: a size, a memory layout, an amplitude, a call.

The mistake itself is a plain one; what hides it is when it shows. ``killed_by`` names the property
that has to catch it. Legend: M tokens or rows, N routed experts, K top_k, L latent width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from properties.reference import Reference


def whole_tiles(rows: int) -> int:
    """How many rows are in full tiles of 8."""
    return rows - rows % 8


def faint(values: Array) -> bool:
    """Whether nothing in an array is as large as 1e-3."""
    return bool(np.max(np.abs(values), initial=0.0) < 1e-3)


def cut_by_row(array: Array) -> Array:
    """What a kernel reads that takes any memory for contiguous: the numbers as they lie."""
    return np.ravel(array, order="K").reshape(array.shape)


# Activation and norm ------------------------------------------------------------------------------


class FaintGatesAreZero(Reference):
    """Gates below 1e-3 are taken for 0."""

    killed_by = "ACT-VALUE"

    def situ_glu(self, gate: Array, up: Array, **caps: float) -> Array:
        return super().situ_glu(np.where(np.abs(gate) < 1e-3, 0.0, gate), up, **caps)


class FaintCotangentsAreZero(Reference):
    """The backward pass takes cotangents below 1e-3 for 0."""

    killed_by = "ACT-VJP-LINEAR"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        kept = np.where(np.abs(cotangent) < 1e-3, 0.0, cotangent)
        return super().situ_glu_vjp(gate, up, kept, **caps)


class CapsOfTheFirstCall(Reference):
    """Caps are constants of a kernel that is compiled once for each shape."""

    killed_by = "ACT-VALUE"

    def __init__(self) -> None:
        super().__init__()
        self.compiled: dict[tuple[int, ...], dict[str, float]] = {}

    def situ_glu(self, gate: Array, up: Array, **caps: float) -> Array:
        return super().situ_glu(gate, up, **self.compiled.setdefault(gate.shape, caps))


class GradientTailForgotten(Reference):
    """d_up of the elements after the last full vector of 8 lacks the slope of the cap."""

    killed_by = "ACT-VJP"

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, **caps: float
    ) -> tuple[Array, Array]:
        d_gate, d_up = super().situ_glu_vjp(gate, up, cotangent, **caps)
        uncapped = super().situ_glu_vjp(gate, up, cotangent, **(caps | {"beta_up": 1e6}))[1]
        late = np.arange(d_up.size) >= whole_tiles(d_up.size)
        return d_gate, np.where(late.reshape(d_up.shape), uncapped, d_up)


class RowsAfterTheLastTileOfEight(Reference):
    """Rows after the last full tile of 8 are normalised without eps, where there is a full tile."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps)
        rows = out.reshape(-1, x.shape[-1])
        whole = whole_tiles(len(rows))
        if 0 < whole < len(rows):
            rows[whole:] = x.reshape(rows.shape)[whole:] * weight
        return rows.reshape(x.shape)


class FaintRowsAsTheyAre(Reference):
    """Rows below 1e-3 are not normalised."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        small = np.max(np.abs(x), axis=-1, keepdims=True) < 1e-3
        return np.where(small, x * weight, super().rms_norm(x, weight, eps=eps))


class WeightOfTheFirstCall(Reference):
    """The weight is kept from the first call of its width."""

    killed_by = "NRM-VALUE"

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, Array] = {}

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, self.weights.setdefault(len(weight), weight.copy()), eps=eps)


# Routing ------------------------------------------------------------------------------------------


class NinthSlotWeighsNothing(Reference):
    """From 9 slots on, those after the eighth weigh nothing."""

    killed_by = "RTR-WEIGHTS"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routing = super().route(logits, bias, top_k=top_k)
        return routing._replace(weights=np.where(np.arange(top_k) < 8, routing.weights, 0.0))


class NinthSlotLearnsNothing(Reference):
    """From 9 slots on, the backward pass reads the cotangents of eight."""

    killed_by = "RTR-GRAD"

    def route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        read = np.where(np.arange(top_k) < 8, weights_cotangent, 0.0)
        return super().route_vjp(logits, bias, read, top_k=top_k)


class FaintLogitsAreZero(Reference):
    """Tokens whose logits are all below 1e-3 are routed as if those were 0."""

    killed_by = "RTR-LARGE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        small = np.max(np.abs(logits), axis=1, keepdims=True) < 1e-3
        return super().route(np.where(small, 0.0, logits), bias, top_k=top_k)


class BiasOfTheFirstCall(Reference):
    """The bias is kept from the first call of its length."""

    killed_by = "RTR-VALID"

    def __init__(self) -> None:
        super().__init__()
        self.biases: dict[int, Array] = {}

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return super().route(logits, self.biases.setdefault(len(bias), bias.copy()), top_k=top_k)


# Experts ------------------------------------------------------------------------------------------


class FaintTokensSkipped(Reference):
    """Tokens below 1e-3 are taken for padding."""

    killed_by = "DSP-CALLS"

    def experts(self, x: Array, *rest: Any, **caps: float) -> Array:
        small = np.max(np.abs(x), axis=1, keepdims=True, initial=0.0) < 1e-3
        return np.where(small, 0.0, super().experts(x, *rest, **caps))


class GradientOfTheNinthSlotDropped(Reference):
    """From 9 slots on, d_weights has eight columns and zeros."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(self, *inputs: Any, **caps: float) -> Any:
        d_x, d_weights, d_parameters = super().experts_vjp(*inputs, **caps)
        return d_x, np.where(np.arange(d_weights.shape[1]) < 8, d_weights, 0.0), d_parameters


class GradientsOf256Experts(Reference):
    """Experts after the 256th learn nothing."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(self, *inputs: Any, **caps: float) -> Any:
        d_x, d_weights, d_parameters = super().experts_vjp(*inputs, **caps)
        first = (np.arange(len(d_parameters.gate_proj)) < 256)[:, None, None]
        return d_x, d_weights, replace(d_parameters, gate_proj=first * d_parameters.gate_proj)


# Layer --------------------------------------------------------------------------------------------


class LayerTailOfTheTile(Reference):
    """Tokens after the last full tile of 8 keep their shared experts only, beyond one tile."""

    killed_by = "LAY-SIZES"

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        out = super().layer(x, parameters, config=config)
        silent = replace(parameters, routed_expert_up_proj=0.0 * parameters.routed_expert_up_proj)
        rows = out.reshape(-1, x.shape[-1])
        whole = whole_tiles(len(rows))
        if whole > 0:
            alone = super().layer(x, silent, config=config)
            rows[whole:] = alone.reshape(rows.shape)[whole:]
        return rows.reshape(x.shape)


class LayerChunkOf64(Reference):
    """Tokens after the 64th have no shared experts."""

    killed_by = "LAY-SIZES"

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        out = super().layer(x, parameters, config=config)
        shared = parameters.shared_experts
        silent = replace(parameters, shared_experts=replace(shared, down_proj=0 * shared.down_proj))
        rows = out.reshape(-1, x.shape[-1])
        if len(rows) > 64:
            alone = super().layer(x, silent, config=config)
            rows[64:] = alone.reshape(rows.shape)[64:]
        return rows.reshape(x.shape)


class LayerOfFaintTokens(Reference):
    """A batch below 1e-3 is taken without the norm's eps."""

    killed_by = "LAY-TINY"

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        chosen = replace(config, norm_eps=0.0) if faint(x) else config
        return super().layer(x, parameters, config=chosen)


class LayerGradientBeyond256Experts(Reference):
    """With more than 256 experts, the router learns by half."""

    killed_by = "LAY-SIZES"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        factor = 0.5 if len(gradients.gate_weight) > 256 else 1.0
        return d_x, replace(gradients, gate_weight=factor * gradients.gate_weight)


class LayerGradientOfNinthSlot(Reference):
    """With 9 slots and more, the router learns by half."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        factor = 0.5 if config.top_k >= 9 else 1.0
        return d_x, replace(gradients, gate_weight=factor * gradients.gate_weight)
