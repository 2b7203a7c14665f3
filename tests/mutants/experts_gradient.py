"""Wrong backward passes of a right forward pass, each one step away from the reference's.

``Spoilt`` mutants are the reference in float64 with one gradient changed afterwards.

Legend: M tokens, N experts, K top_k, P = M K slots in the order of their experts, L latent width,
H hidden width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from properties.protocol import Array, ExpertParameters
from properties.reference import Reference


class Spoilt(Reference):
    """The reference; its gradients pass through ``spoilt``."""

    name = "mutant"

    def experts_vjp(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        cotangent: Array,
        **betas: float,
    ) -> Any:
        self.call = (x, expert_ids, weights, parameters, cotangent)
        self.betas = betas
        return self.spoilt(*self.right(*self.call))

    def right(self, *call: Any) -> Any:
        return super().experts_vjp(*call, **self.betas)

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return d_x, d_weights, d_parameters


class WeightsDetached(Spoilt):
    """Combine weights are detached: their gradient is 0."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return d_x, np.zeros_like(d_weights), d_parameters


class DownGradientTransposed(Spoilt):
    """The gradient of a square down projection is a^T c for c a^T."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        down = d_parameters.down_proj
        if down.shape[1] == down.shape[2]:
            d_parameters = replace(
                d_parameters, down_proj=np.ascontiguousarray(down.swapaxes(1, 2))
            )
        return d_x, d_weights, d_parameters


class GateAndUpGradientsSwapped(Spoilt):
    """The two halves of the fused projection's gradient change places."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        swapped = replace(
            d_parameters, gate_proj=d_parameters.up_proj, up_proj=d_parameters.gate_proj
        )
        return d_x, d_weights, swapped


class SlotsOverwriteGradients(Spoilt):
    """A token's d_x is that of its last slot: assigned, not accumulated."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        last = (x, expert_ids[:, -1:], weights[:, -1:], parameters, cotangent)
        return self.right(*last)[0], d_weights, d_parameters


class WrongWayBack(Spoilt):
    """The backward pass sorts d_x once more where it should undo the sorting."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        slots = [
            self.right(x, expert_ids[:, [a]], weights[:, [a]], parameters, cotangent)[0]
            for a in range(expert_ids.shape[1])
        ]
        rows_PL = np.stack(slots, axis=1).reshape(-1, x.shape[1])
        order_P = np.argsort(expert_ids.reshape(-1), kind="stable")
        return (
            rows_PL[order_P][order_P].reshape(*expert_ids.shape, -1).sum(1),
            d_weights,
            d_parameters,
        )


class WeightsGradientsSorted(Spoilt):
    """d_weights stays in the order of the experts."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        order_P = np.argsort(self.call[1].reshape(-1), kind="stable")
        return d_x, d_weights.reshape(-1)[order_P].reshape(d_weights.shape), d_parameters


class WeightsTwice(Spoilt):
    """Weights multiply the cotangent before and again after the down projection."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        twice_x, _, twice = self.right(x, expert_ids, weights**2, parameters, cotangent)
        return twice_x, d_weights, replace(twice, down_proj=d_parameters.down_proj)


class WeightsMissingFromDown(Spoilt):
    """d_down_proj is c a^T, without the weight."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        bare = self.right(x, expert_ids, np.ones_like(weights), parameters, cotangent)[2]
        return d_x, d_weights, replace(d_parameters, down_proj=bare.down_proj)


class AveragedOverTokens(Spoilt):
    """Parameters' gradients are means over an expert's tokens."""

    killed_by = "DSP-GRAD-SUM"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        num_experts = d_parameters.gate_proj.shape[0]
        counts = np.bincount(self.call[1].reshape(-1), minlength=num_experts).clip(min=1)
        return d_x, d_weights, _scaled(d_parameters, 1.0 / counts[:, None, None])


class DividedByTheBatch(Spoilt):
    """Every gradient is divided by the number of tokens of the call."""

    killed_by = "DSP-GRAD-SUM"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        share = 1.0 / max(1, d_x.shape[0])
        return d_x * share, d_weights * share, _scaled(d_parameters, share)


class LastTokenOfTheGroupForgotten(Spoilt):
    """The last token of the last expert in use has no part in the parameters' gradients."""

    killed_by = "DSP-GRAD-SUM"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        if not expert_ids.size:
            return d_x, d_weights, d_parameters
        last_P = np.flatnonzero(expert_ids.reshape(-1) == expert_ids.max())[-1]
        kept = np.where(np.arange(expert_ids.size) == last_P, 0.0, weights.reshape(-1))
        fewer = self.right(x, expert_ids, kept.reshape(weights.shape), parameters, cotangent)[2]
        return d_x, d_weights, fewer


class LastExpertForgotten(Spoilt):
    """The loop over experts ends one early in the backward pass."""

    killed_by = "DSP-RELABEL"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        kept = np.arange(d_parameters.gate_proj.shape[0]) < d_parameters.gate_proj.shape[0] - 1
        return d_x, d_weights, _scaled(d_parameters, kept[:, None, None])


class FirstWeightForAllSlots(Spoilt):
    """d_x takes every slot's weight from the first one."""

    killed_by = "DSP-SLOTS"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        first = np.repeat(weights[:, :1], weights.shape[1], axis=1)
        return self.right(x, expert_ids, first, parameters, cotangent)[0], d_weights, d_parameters


class SlotsWithoutWeightSkipped(Spoilt):
    """Slots of weight 0 are skipped, and so the gradient of their weight is 0."""

    killed_by = "DSP-LINEAR"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return d_x, np.where(self.call[2] == 0.0, 0.0, d_weights), d_parameters


class WeightsGradientsTimesWeights(Spoilt):
    """d_weights is worked out from the weighted cotangent."""

    killed_by = "DSP-LINEAR"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return d_x, d_weights * self.call[2], d_parameters


class IdleExpertsDecay(Spoilt):
    """Weight decay is folded into every expert's gradient, used or not."""

    killed_by = "DSP-GRAD-ZERO"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        decay = self.call[3]
        names = ("gate_proj", "up_proj", "down_proj")
        added = {n: getattr(d_parameters, n) + 1e-9 * getattr(decay, n) for n in names}
        return d_x, d_weights, ExpertParameters(**added)


class MeanOverNothing(Spoilt):
    """Gradients pass through a mean over tokens times their number: NaN where there are none."""

    killed_by = "DSP-GRAD-ZERO"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        tokens = np.float64(d_x.shape[0])
        with np.errstate(invalid="ignore"):
            return d_x, d_weights, _scaled(d_parameters, tokens / tokens)


class WeightsKeptFromZero(Spoilt):
    """Weights are clamped away from 0 before they are divided by."""

    killed_by = "DSP-GRAD-ZERO"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        clamped = self.right(x, expert_ids, np.maximum(weights, 1e-6), parameters, cotangent)
        return clamped[0], d_weights, clamped[2]


class GradientsLeakBetweenTokens(Spoilt):
    """A thousandth of the batch's mean is added to every token's d_x."""

    killed_by = "DSP-ROWS"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        if not d_x.size:
            return d_x, d_weights, d_parameters
        return d_x + 1e-3 * d_x.mean(0), d_weights, d_parameters


class GradientsGatheredByAProduct(Spoilt):
    """Rows of d_x are gathered by a product with a 0/1 matrix, where 0 times NaN is NaN."""

    killed_by = "DSP-NAN"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        with np.errstate(invalid="ignore"):
            return np.eye(d_x.shape[0]) @ d_x, d_weights, d_parameters


class ChunkOverwritesGradients(Spoilt):
    """Beyond 128 tokens, the chunk that comes last is the parameters' whole gradient."""

    killed_by = "DSP-GRAD-SIZES"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        x, expert_ids, weights, parameters, cotangent = self.call
        start = (max(len(x), 1) - 1) // 128 * 128
        last = (x[start:], expert_ids[start:], weights[start:], parameters, cotangent[start:])
        return d_x, d_weights, self.right(*last)[2]


class TailOfTheTileWithoutGradient(Spoilt):
    """From 64 tokens on, rows of d_x after the last full tile of 8 stay 0."""

    killed_by = "DSP-GRAD-SIZES"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        tokens = d_x.shape[0]
        whole = tokens // 8 * 8 if tokens >= 64 else tokens
        return d_x * (np.arange(tokens) < whole)[:, None], d_weights, d_parameters


class CotangentStridesIgnored(Spoilt):
    """The cotangent is read row after row, whatever its strides."""

    killed_by = "DSP-LAYOUT"

    def right(self, x: Array, *others: Any) -> Any:
        *rest, cotangent = others
        if not cotangent.flags.c_contiguous and min(cotangent.strides, default=0) >= 0:
            cotangent = np.ravel(cotangent, order="K").reshape(cotangent.shape)
        return super().right(x, *rest, cotangent)

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return d_x, d_weights, d_parameters


class GradientsInOneBuffer(Spoilt):
    """d_x is returned in a buffer that calls of the same shape share."""

    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        buffer = self.buffers.setdefault(d_x.shape, np.empty_like(d_x))
        buffer[...] = d_x
        return buffer, d_weights, d_parameters


class ZeroGradients(Spoilt):
    """Zeros of the right shapes."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return np.zeros_like(d_x), np.zeros_like(d_weights), _scaled(d_parameters, 0.0)


class CotangentCopied(Spoilt):
    """d_x is the cotangent, unchanged."""

    killed_by = "DSP-GRAD"

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return self.call[4].copy(), d_weights, d_parameters


class UniformWeightsBackward(Spoilt):
    """The backward pass takes every slot for equally weighted."""

    killed_by = "DSP-GRAD"

    def right(self, x: Array, expert_ids: Array, weights: Array, *others: Any) -> Any:
        mean = weights.mean(1, keepdims=True)
        return super().right(x, expert_ids, np.broadcast_to(mean, weights.shape), *others)

    def spoilt(self, d_x: Array, d_weights: Array, d_parameters: ExpertParameters) -> Any:
        return d_x, d_weights, d_parameters


def _scaled(parameters: ExpertParameters, factor: Any) -> ExpertParameters:
    return ExpertParameters(
        parameters.gate_proj * factor, parameters.up_proj * factor, parameters.down_proj * factor
    )
