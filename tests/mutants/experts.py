"""Wrong dispatches, each one step away from a correct grouped one.

Every mutant stands here in float32, and a second time, under its name and ``BFloat16``, with
bfloat16 storage and float32 accumulation. ``killed_by`` names the property that has to catch it.

Legend: M tokens, N experts, K top_k, P = M K assignments in the order of their experts, L latent
width, H hidden width, C capacity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from impl_torch import situ_glu
from impl_torch.adapter import BFloat16, TorchImplementation
from properties.protocol import ExpertParameters, Precision


class Correct(TorchImplementation):
    """Sort by expert, compute group by group, undo the sorting, combine: in steps to replace."""

    name = "mutant"
    version = "1"
    precision = Precision()

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
        self.betas = {"beta_gate": beta_gate, "beta_up": beta_up}
        ids_P = self.numbered(expert_ids, parameters.gate_proj.shape[0]).reshape(-1)
        order_P = torch.argsort(ids_P, stable=True)
        sent_PL = self.sent(x, weights)[order_P]
        y_PL = self.grouped(sent_PL, ids_P[order_P], parameters)
        y_MKL = y_PL[self.way_back(order_P)].view(*expert_ids.shape, x.shape[1])
        return self.combine(y_MKL.float(), self.kept(weights, order_P)).to(x.dtype)

    def numbered(self, expert_ids: Tensor, num_experts: int) -> Tensor:
        return expert_ids

    def sent(self, x: Tensor, weights: Tensor) -> Tensor:
        """Each token K times (P, L), before sorting."""
        return x.repeat_interleave(weights.shape[1], dim=0)

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        y_PL = torch.zeros_like(sent_PL)
        for expert in ids_P.unique().tolist():
            y_PL = torch.where(
                (ids_P == expert)[:, None],
                self.expert(sent_PL, *(part[expert] for part in _parts(parameters))),
                y_PL,
            )
        return y_PL

    def expert(self, x_PL: Tensor, gate_HL: Tensor, up_HL: Tensor, down_LH: Tensor) -> Tensor:
        return situ_glu(x_PL @ gate_HL.t(), x_PL @ up_HL.t(), **self.betas) @ down_LH.t()

    def way_back(self, order_P: Tensor) -> Tensor:
        return torch.argsort(order_P)

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        return (y_MKL * weights[:, :, None]).sum(1)


def _parts(parameters: Any) -> tuple[Tensor, Tensor, Tensor]:
    return parameters.gate_proj, parameters.up_proj, parameters.down_proj


class InversePermutationForgotten(Correct):
    """Results stay in the order of the experts."""

    killed_by = "DSP-DENSE"

    def way_back(self, order_P: Tensor) -> Tensor:
        return torch.arange(order_P.numel())


class PermutationAppliedTwice(Correct):
    """Results are sorted once more instead of back: right for an involution."""

    killed_by = "DSP-PERMUTE"

    def way_back(self, order_P: Tensor) -> Tensor:
        return order_P


class LastExpertNeverCounted(Correct):
    """The loop over experts ends one early."""

    killed_by = "DSP-ONEHOT"

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        y_PL = super().grouped(sent_PL, ids_P, parameters)
        return y_PL * (ids_P != parameters.gate_proj.shape[0] - 1)[:, None]


class IdsShifted(Correct):
    """Ids count from 1."""

    killed_by = "DSP-DENSE"

    def numbered(self, expert_ids: Tensor, num_experts: int) -> Tensor:
        return (expert_ids + 1) % num_experts


class IdsInBytes(Correct):
    """Ids are sent as uint8: right up to 256 experts."""

    killed_by = "DSP-ONEHOT"

    def numbered(self, expert_ids: Tensor, num_experts: int) -> Tensor:
        return expert_ids.to(torch.uint8).to(torch.int64)


class OffsetsOneLate(Correct):
    """The first row of every group is computed by the expert before."""

    killed_by = "DSP-ONEHOT"

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        first_P = torch.ones_like(ids_P, dtype=torch.bool)
        first_P[1:] = ids_P[1:] != ids_P[:-1]
        late_P = torch.where(first_P, (ids_P - 1).clamp(min=0), ids_P)
        return super().grouped(sent_PL, late_P, parameters)


class ZeroWeightsCounted(Correct):
    """Weights are kept away from 0, so that slots which weigh nothing count a little."""

    killed_by = "DSP-ONEHOT"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights.clamp(min=0.05)


class WeightsBeforeActivation(Correct):
    """Weights multiply what experts are given, not what they return."""

    killed_by = "DSP-DENSE"

    def sent(self, x: Tensor, weights: Tensor) -> Tensor:
        return (super().sent(x, weights) * weights.reshape(-1, 1)).to(x.dtype)

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return torch.ones_like(weights)


class WeightsOfTheWrongSlot(Correct):
    """Weights are sorted along, and not sorted back."""

    killed_by = "DSP-DENSE"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights.reshape(-1)[order_P].view_as(weights)


class WeightsNormalisedAgain(Correct):
    """Weights are divided by their sum once more."""

    killed_by = "DSP-SAME"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights / weights.sum(1, keepdim=True).clamp(min=1e-20)


class AssignedNotAccumulated(Correct):
    """Every slot overwrites the row of its token."""

    killed_by = "DSP-SAME"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        return y_MKL[:, -1] * weights[:, -1, None]


class LastSlotDropped(Correct):
    """The k-th slot is left out of the sum."""

    killed_by = "DSP-DENSE"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        return super().combine(y_MKL[:, :-1], weights[:, :-1])


class UniformWeights(Correct):
    """Every chosen expert weighs the same."""

    killed_by = "DSP-DENSE"

    def kept(self, weights: Tensor, order_P: Tensor) -> Tensor:
        return weights.mean(1, keepdim=True).expand_as(weights)


class CombinedInBFloat16(Correct):
    """The running sum over the slots is rounded to bfloat16 after every term."""

    killed_by = "DSP-DENSE"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        terms_MKL = (y_MKL * weights[:, :, None]).bfloat16()
        total_ML = torch.zeros_like(terms_MKL[:, 0])
        for slot in range(terms_MKL.shape[1]):
            total_ML = total_ML + terms_MKL[:, slot]
        return total_ML


class DownTransposed(Correct):
    """The down projection is taken the other way round where it is square."""

    killed_by = "DSP-DENSE"

    def expert(self, x_PL: Tensor, gate_HL: Tensor, up_HL: Tensor, down_LH: Tensor) -> Tensor:
        square = down_LH.shape[0] == down_LH.shape[1]
        return super().expert(x_PL, gate_HL, up_HL, down_LH.t() if square else down_LH)


class GateAndUpSwapped(Correct):
    """up_proj feeds the gate."""

    killed_by = "DSP-DENSE"

    def expert(self, x_PL: Tensor, gate_HL: Tensor, up_HL: Tensor, down_LH: Tensor) -> Tensor:
        return super().expert(x_PL, up_HL, gate_HL, down_LH)


class StridesIgnored(Correct):
    """x is read row after row, whatever its strides."""

    killed_by = "DSP-DENSE"

    def sent(self, x: Tensor, weights: Tensor) -> Tensor:
        return super().sent(x.as_strided(x.shape, (x.shape[1], 1)), weights)


class BeyondCapacityDropped(Correct):
    """An expert takes the first tokens that come, up to a quarter more than its fair share."""

    killed_by = "DSP-PERMUTE"

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        num_experts = parameters.gate_proj.shape[0]
        capacity = -(-5 * ids_P.numel() // (4 * num_experts))
        start_P = torch.searchsorted(ids_P.contiguous(), ids_P.contiguous())
        kept_P = torch.arange(ids_P.numel()) - start_P < capacity
        return super().grouped(sent_PL, ids_P, parameters) * kept_P[:, None]


class TailOfTheTileForgotten(Correct):
    """Rows after the last full tile of four stay 0, where there is a full tile."""

    killed_by = "DSP-PERMUTE"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        whole = y_MKL.shape[0] // 4 * 4 or y_MKL.shape[0]
        computed_M = torch.arange(y_MKL.shape[0]) < whole
        return super().combine(y_MKL, weights) * computed_M[:, None]


class IdleRowsUninitialised(Correct):
    """Outputs lie in a buffer (N, P, L) that idle experts never write, and are read times 0."""

    killed_by = "DSP-EMPTY"

    def grouped(self, sent_PL: Tensor, ids_P: Tensor, parameters: Any) -> Tensor:
        num_experts = parameters.gate_proj.shape[0]
        buffer_NPL = torch.empty(num_experts, *sent_PL.shape, dtype=sent_PL.dtype)
        for expert in ids_P.unique().tolist():
            buffer_NPL[expert] = self.expert(
                sent_PL, *(part[expert] for part in _parts(parameters))
            )
        chosen_NP1 = (ids_P == torch.arange(num_experts)[:, None])[:, :, None]
        return (buffer_NPL * chosen_NP1).sum(0)


class NothingCrashes(Correct):
    """The number of groups comes from the largest id, which no token has when there is none."""

    killed_by = "DSP-EMPTY"

    def numbered(self, expert_ids: Tensor, num_experts: int) -> Tensor:
        return expert_ids.clamp(max=int(expert_ids.max()))


class _Gradients(Correct):
    """Values are right; the gradients of the projections pass through ``spoilt``."""

    def experts_forward(
        self, x: Tensor, expert_ids: Tensor, weights: Tensor, parameters: Any, **betas: float
    ) -> Tensor:
        if parameters.gate_proj.requires_grad:
            used_N = torch.zeros(parameters.gate_proj.shape[0], dtype=torch.bool)
            used_N[expert_ids.reshape(-1)] = True
            hooked = [part.clone() for part in _parts(parameters)]
            for part in hooked:
                part.register_hook(lambda gradient, part=part: self.spoilt(gradient, part, used_N))
            parameters = ExpertParameters(*hooked)
        return super().experts_forward(x, expert_ids, weights, parameters, **betas)

    def spoilt(self, gradient: Tensor, parameter: Tensor, used_N: Tensor) -> Tensor:
        return gradient


class IdleGradientsUninitialised(_Gradients):
    """The gradient's buffer is written where tokens went, and nowhere else."""

    killed_by = "DSP-EMPTY"

    def spoilt(self, gradient: Tensor, parameter: Tensor, used_N: Tensor) -> Tensor:
        buffer = torch.empty_like(gradient)
        buffer[used_N] = gradient[used_N]
        return buffer


class GradientsOfIdleExperts(_Gradients):
    """Weight decay is folded into the gradients, so that idle experts move."""

    killed_by = "DSP-EMPTY"

    def spoilt(self, gradient: Tensor, parameter: Tensor, used_N: Tensor) -> Tensor:
        return gradient + 0.01 * parameter.detach()


class ZeroOutput(Correct):
    """Zeros of the right shape."""

    killed_by = "DSP-DENSE"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        return torch.zeros_like(y_MKL[:, 0])


class InputCopied(Correct):
    """x, unchanged."""

    killed_by = "DSP-DENSE"

    def expert(self, x_PL: Tensor, gate_HL: Tensor, up_HL: Tensor, down_LH: Tensor) -> Tensor:
        return x_PL


class RandomOutput(Correct):
    """Normal numbers of the right shape."""

    killed_by = "DSP-DENSE"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(y_MKL.shape[0], y_MKL.shape[2], generator=generator)


class WrongDtype(Correct):
    """float64 from an implementation that declares another format."""

    killed_by = "DSP-DENSE"
    verdict = "adapter error"

    def experts_forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().experts_forward(*args, **kwargs).double()


class WritesIntoWeights(Correct):
    """The result is right, and the weights are used as scratch memory."""

    killed_by = "DSP-DENSE"

    def combine(self, y_MKL: Tensor, weights: Tensor) -> Tensor:
        out = super().combine(y_MKL, weights)
        weights.detach().zero_()
        return out


def bfloat16_twin(mutant: type) -> type:
    """The same mistake with bfloat16 storage."""
    kept = {name: getattr(mutant, name) for name in ("__doc__", "__module__", "killed_by")}
    precision = {"precision": BFloat16.precision}
    return type(f"{mutant.__name__}BFloat16", (mutant,), kept | precision)


_mutants = [thing for thing in globals().values() if hasattr(thing, "killed_by")]
globals().update({twin.__name__: twin for twin in map(bfloat16_twin, _mutants)})
