"""Dispatches that are right for a plain call, and wrong for slots, names, sizes, layouts or twice.

Legend: M tokens, N experts, K top_k, P = M K slots in the order of their experts, L latent width,
H hidden width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from properties.protocol import Array, ExpertParameters
from properties.reference import Reference
from tests.mutants.experts import Correct


class LargestWeightFirst(Correct):
    """Slots are taken to come in the order of descending weights, and weights are sorted so."""

    killed_by = "DSP-SLOTS"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights.sort(1, descending=True).values


class SlotsBeyondEightDropped(Correct):
    """A table of slots has eight places."""

    killed_by = "DSP-SIZES"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        return super().combine(y_MKL[:, :8], weights[:, :8])


class ExpertZeroMeansNone(Correct):
    """Id 0 stands for an empty slot."""

    killed_by = "DSP-RELABEL"

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        return super().grouped(sent_PL, ids_P, parameters) * (ids_P != 0)[:, None]


class WeightsSquared(Correct):
    """Weights are applied on the way there and on the way back."""

    killed_by = "DSP-LINEAR"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights * weights


class WeightsCutAtOne(Correct):
    """Weights are clipped to 1."""

    killed_by = "DSP-LINEAR"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights.clamp(max=1.0)


class OtherExpertsLeak(Correct):
    """Masked experts weigh 1e-3 instead of 0."""

    killed_by = "DSP-ROWS"

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        stack = zip(parameters.gate_proj, parameters.up_proj, parameters.down_proj, strict=True)
        leak = sum(self.expert(sent_PL, *own) for own in stack)
        return super().grouped(sent_PL, ids_P, parameters) + 1e-3 * leak


class ScaledByTheBatch(Correct):
    """Outputs are divided by the batch's largest weight sum instead of nothing, where that is 2."""

    killed_by = "DSP-ROWS"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights / weights.sum(1).amax().clamp(min=1.0) if weights.numel() else weights


class GatheredByAProduct(Correct):
    """Tokens are sent through a product with a 0/1 matrix, where 0 times NaN is NaN."""

    killed_by = "DSP-NAN"

    def sent(self, x: Tensor, weights: Tensor) -> Tensor:
        there_PM = torch.eye(x.shape[0], dtype=x.dtype).repeat_interleave(weights.shape[1], dim=0)
        return there_PM @ x


class TileMaskedByAProduct(Correct):
    """Every group computes its neighbours' rows, too, and multiplies them by 0 afterwards."""

    killed_by = "DSP-NAN"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        neighbours_MKL = y_MKL.roll(1, dims=0) if y_MKL.numel() else y_MKL
        return super().combine(y_MKL + 0.0 * neighbours_MKL, weights)


class ChunkBoundaryAt128(Correct):
    """The second chunk of 128 rows begins one row late."""

    killed_by = "DSP-SIZES"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        late_M = torch.arange(y_MKL.shape[0]) == 128
        return super().combine(y_MKL, weights) * ~late_M[:, None]


class RowsBeyond256Dropped(Correct):
    """A grid is launched for 256 tokens."""

    killed_by = "DSP-SIZES"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        return super().combine(y_MKL, weights) * (torch.arange(y_MKL.shape[0]) < 256)[:, None]


class InnerWidthCutDown(Correct):
    """Dot products of more than 64 numbers leave out what is beyond a multiple of 16."""

    killed_by = "DSP-SIZES"

    def expert(self, x_PL: Tensor, gate_HL: Tensor, up_HL: Tensor, down_LH: Tensor) -> Tensor:
        latent = x_PL.shape[1]
        latent = latent // 16 * 16 if latent > 64 else latent
        return super().expert(x_PL[:, :latent], gate_HL[:, :latent], up_HL[:, :latent], down_LH)


class RowAfterRow(Reference):
    """The reference; one of the arguments is read as if it were contiguous."""

    name = "mutant"
    argument = ""

    def experts(self, *args: Any, **betas: float) -> Array:
        names = ("x", "expert_ids", "weights", "parameters")
        given = dict(zip(names, args, strict=True))
        if self.argument in given:
            given[self.argument] = self.read(given[self.argument])
        elif self.argument:
            whole = given["parameters"]
            changed = {n: getattr(whole, n) for n in ("gate_proj", "up_proj", "down_proj")}
            changed[self.argument] = self.read(changed[self.argument])
            given["parameters"] = ExpertParameters(**changed)
        return super().experts(*given.values(), **betas)

    def read(self, array: Array) -> Array:
        """What lies in memory from the array's lowest address on, as far as it is the array's."""
        return np.ravel(array, order="K").reshape(array.shape)


class StridesOfXIgnored(RowAfterRow):
    """x stored by columns is read by rows."""

    killed_by = "DSP-LAYOUT"
    argument = "x"


class StridesOfIdsIgnored(RowAfterRow):
    """ids stored by columns are read by rows."""

    killed_by = "DSP-LAYOUT"
    argument = "expert_ids"


class StridesOfWeightsIgnored(RowAfterRow):
    """weights stored by columns are read by rows."""

    killed_by = "DSP-LAYOUT"
    argument = "weights"


class StridesOfUpIgnored(RowAfterRow):
    """up_proj stored by columns is read by rows."""

    killed_by = "DSP-LAYOUT"
    argument = "up_proj"


class SumsInAnyOrder(Correct):
    """Terms are added in the order in which threads arrive, and determinism is declared."""

    killed_by = "DSP-REPEAT"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        total_ML = torch.zeros_like(y_MKL[:, 0])
        for slot in torch.randperm(y_MKL.shape[1]).tolist():
            total_ML = total_ML + y_MKL[:, slot] * weights[:, slot, None]
        return total_ML


class GradientsInAnyOrder(Correct):
    """Tokens are processed in a random order, which only parameters' gradients can show."""

    killed_by = "DSP-REPEAT"

    def experts_forward(
        self, x: Tensor, expert_ids: Tensor, weights: Tensor, parameters: Any, **betas: float
    ) -> Tensor:
        order_M = torch.randperm(x.shape[0])
        out = super().experts_forward(
            x[order_M], expert_ids[order_M], weights[order_M], parameters, **betas
        )
        return out[torch.argsort(order_M)]


class PlanCachedByShape(Correct):
    """The sorted order is kept from the first call of a shape."""

    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        self.plans: dict[tuple[int, ...], Tensor] = {}

    def numbered(self, expert_ids: Tensor, num_experts: int) -> Tensor:
        key = (*expert_ids.shape, num_experts)
        return self.plans.setdefault(key, expert_ids.clone())


class PackedWeightsCached(Correct):
    """Packed projections are kept from the first call with their shape."""

    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        self.packed: dict[tuple[int, ...], Tensor] = {}

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        gate = parameters.gate_proj
        gate = self.packed.setdefault(tuple(gate.shape), gate.detach().clone())
        kept = ExpertParameters(gate, parameters.up_proj, parameters.down_proj)
        return super().grouped(sent_PL, ids_P, kept)


class OutputInOneBuffer(Reference):
    """The result lies in a buffer that calls of one shape share."""

    name = "mutant"
    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[int, ...], Array] = {}

    def experts(self, *args: Any, **betas: float) -> Array:
        out = super().experts(*args, **betas)
        buffer = self.buffers.setdefault(out.shape, np.empty_like(out))
        buffer[...] = out
        return buffer


class RowsOfALargerCall(Reference):
    """A scratch buffer is not cleared: what an earlier, larger call left in it is added."""

    name = "mutant"
    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.scratch = np.zeros((0, 0))

    def experts(self, *args: Any, **betas: float) -> Array:
        out = super().experts(*args, **betas)
        before = self.scratch
        if out.size < before.size:
            out = out + np.resize(before, out.shape)
        self.scratch = out
        return out


class OutputInTwoBuffers(OutputInOneBuffer):
    """The result lies in one of two buffers, which calls take in turn."""

    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[tuple[int, ...], Array] = {}

    def experts(self, *args: Any, **betas: float) -> Array:
        self.buffers, self.others = self.others, self.buffers
        return super().experts(*args, **betas)
