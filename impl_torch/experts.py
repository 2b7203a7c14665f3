"""Grouped dispatch: every expert sees only its own tokens, in one matrix product per projection.

The M K assignments are sorted by expert; rows of one expert are then a contiguous segment. Sorting
is stable and sums run over the K slots in their order, so repeated calls are bit-equal. Equation
numbers are those of arXiv 2607.24653.

Legend: M tokens, N routed experts, K top_k, P = M K assignments in sorted order, L latent width,
H expert hidden width, I and O input and output width of a projection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from impl_torch.activation import situ_glu
from impl_torch.precision import compute_dtype, widened

__all__ = [
    "Dispatch",
    "Experts",
    "check_shapes",
    "combine",
    "dispatch",
    "expert_rows",
    "experts",
    "gather",
    "grouped_linear",
]


class Dispatch(NamedTuple):
    """The assignments of M tokens in the order of their experts.

    ``token`` (P,) the token of each assignment; ``rank`` (M, K) where the assignment of a token's
    slot went; ``counts`` the number of assignments of each of the N experts.
    """

    token: Tensor
    rank: Tensor
    counts: list[int]


def dispatch(expert_ids_MK: Tensor, num_experts: int) -> Dispatch:
    """Sort assignments by expert.

    Raises:
        IndexError: an id is not in 0 … N - 1.
        TypeError: ids are not integers.
    """
    if expert_ids_MK.dtype.is_floating_point or expert_ids_MK.dtype == torch.bool:
        raise TypeError(f"expert ids must be integers, got {expert_ids_MK.dtype}")
    top_k = expert_ids_MK.shape[1]
    ids_P = expert_ids_MK.reshape(-1)
    ordered_P, order_P = torch.sort(ids_P, stable=True)
    if ids_P.numel() and not 0 <= int(ordered_P[0]) <= int(ordered_P[-1]) < num_experts:
        raise IndexError(
            f"expert ids must be in 0 … {num_experts - 1}, "
            f"got {int(ordered_P[0])} … {int(ordered_P[-1])}"
        )
    rank_P = torch.empty_like(order_P)
    rank_P[order_P] = torch.arange(order_P.numel(), device=order_P.device)
    counts = torch.bincount(ids_P, minlength=num_experts).tolist()
    return Dispatch(order_P // top_k, rank_P.view_as(expert_ids_MK), counts)


def gather(x_ML: Tensor, plan: Dispatch) -> Tensor:
    """Rows of tokens in sorted order, (P, L); the gradient adds a token's K rows in float32."""
    result: Tensor = _Gather.apply(x_ML, plan.token, plan.rank)  # type: ignore[no-untyped-call]
    return result


def grouped_linear(x_PI: Tensor, weight_NOI: Tensor, counts: list[int]) -> Tensor:
    """``x @ weight[j].T`` for the rows of each expert j, (P, O).

    Args:
        x_PI: rows in the order of experts.
        weight_NOI: one matrix per expert, any strides.
        counts: rows of each expert, adding up to P.
    """
    result: Tensor = _GroupedLinear.apply(x_PI, weight_NOI, counts)  # type: ignore[no-untyped-call]
    return result


def combine(y_PL: Tensor, weights_MK: Tensor, plan: Dispatch) -> Tensor:
    """Add up each token's K expert outputs times its weights, (M, L).

    Products and the sum are float32 (float64 for float64), rounded once to the format of y.
    """
    result: Tensor = _Combine.apply(y_PL, weights_MK, plan.token, plan.rank)  # type: ignore[no-untyped-call]
    return result


def experts(
    x_ML: Tensor,
    expert_ids_MK: Tensor,
    weights_MK: Tensor,
    gate_proj_NHL: Tensor,
    up_proj_NHL: Tensor,
    down_proj_NLH: Tensor,
    *,
    beta_gate: float = 4.0,
    beta_up: float = 25.0,
) -> Tensor:
    """``sum_j p_j E_j(x)`` over each token's chosen experts (Eq. 11, 12), (M, L).

    M may be 0, experts may be without tokens, and an id may occur twice in a row (its terms add
    up). Parameters of experts that no token chose get a gradient of exactly 0. Differentiable once.
    float8 is a format to store in: everything is computed in float32 and rounded at the end.

    Args:
        x_ML: latent tokens.
        expert_ids_MK: integers in [0, N).
        weights_MK: combine weights, not rounded to the format of x.
        gate_proj_NHL: gate projections, in the format of x.
        up_proj_NHL: up projections.
        down_proj_NLH: down projections.
        beta_gate: cap of the gate.
        beta_up: cap of up.

    Raises:
        IndexError: an id is out of range.
        ValueError: shapes do not fit, or a beta is not positive and finite.
        TypeError: ids are not integers.
    """
    check_shapes(x_ML, expert_ids_MK, weights_MK, gate_proj_NHL, up_proj_NHL, down_proj_NLH)
    x, gate, up, down = widened(x_ML, gate_proj_NHL, up_proj_NHL, down_proj_NLH)
    plan = dispatch(expert_ids_MK, gate_proj_NHL.shape[0])
    y_PL = expert_rows(gather(x, plan), gate, up, down, plan.counts, beta_gate, beta_up)
    return combine(y_PL, weights_MK, plan).to(x_ML.dtype)


def expert_rows(
    x_PL: Tensor,
    gate_proj_NHL: Tensor,
    up_proj_NHL: Tensor,
    down_proj_NLH: Tensor,
    counts: list[int],
    beta_gate: float,
    beta_up: float,
) -> Tensor:
    """Each row's expert applied to it (Eq. 12), (P, L), rows being in the order of experts."""
    gate_PH = grouped_linear(x_PL, gate_proj_NHL, counts)
    up_PH = grouped_linear(x_PL, up_proj_NHL, counts)
    hidden_PH = situ_glu(gate_PH, up_PH, beta_gate=beta_gate, beta_up=beta_up)
    return grouped_linear(hidden_PH, down_proj_NLH, counts)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x_ML: Tensor, token_P: Tensor, rank_MK: Tensor) -> Tensor:
        ctx.save_for_backward(rank_MK)
        return x_ML.index_select(0, token_P)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent_PL: Tensor) -> tuple[Tensor, None, None]:
        (rank_MK,) = ctx.saved_tensors
        return _sum_slots(cotangent_PL, rank_MK, None), None, None


class _Combine(Function):
    @staticmethod
    def forward(
        ctx: Any, y_PL: Tensor, weights_MK: Tensor, token_P: Tensor, rank_MK: Tensor
    ) -> Tensor:
        ctx.save_for_backward(y_PL, weights_MK, token_P, rank_MK)
        return _sum_slots(y_PL, rank_MK, weights_MK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent_ML: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        y_PL, weights_MK, token_P, rank_MK = ctx.saved_tensors
        wide = compute_dtype(y_PL.dtype)
        d_y_PL = d_weights_MK = None
        cotangent_PL = cotangent_ML.index_select(0, token_P).to(wide)
        if ctx.needs_input_grad[1]:
            d_weights_P = (cotangent_PL * y_PL).sum(-1)
            d_weights_MK = d_weights_P[rank_MK].to(weights_MK.dtype)
        if ctx.needs_input_grad[0]:
            weights_P1 = torch.empty_like(token_P, dtype=wide)
            weights_P1[rank_MK] = weights_MK.to(wide)
            d_y_PL = cotangent_PL.mul_(weights_P1[:, None]).to(y_PL.dtype)
        return d_y_PL, d_weights_MK, None, None


def _sum_slots(y_PL: Tensor, rank_MK: Tensor, weights_MK: Tensor | None) -> Tensor:
    """For each token the (weighted) sum of its K rows, slot by slot, in float32 or better."""
    wide = compute_dtype(y_PL.dtype)
    total_ML = torch.zeros(rank_MK.shape[0], y_PL.shape[1], dtype=wide, device=y_PL.device)
    for slot in range(rank_MK.shape[1]):
        row_ML = y_PL.index_select(0, rank_MK[:, slot]).to(wide)
        if weights_MK is None:
            total_ML += row_ML
        else:
            total_ML.addcmul_(row_ML, weights_MK[:, slot, None].to(wide))
    return total_ML.to(y_PL.dtype)


class _GroupedLinear(Function):
    @staticmethod
    def forward(ctx: Any, x_PI: Tensor, weight_NOI: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x_PI, weight_NOI)
        ctx.counts = counts
        y_PO = x_PI.new_empty(x_PI.shape[0], weight_NOI.shape[1])
        for x_TI, weight_OI, y_TO in _segments(counts, x_PI, weight_NOI, y_PO):
            torch.mm(x_TI, weight_OI.t(), out=y_TO)
        return y_PO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent_PO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_PI, weight_NOI = ctx.saved_tensors
        d_x_PI = d_weight_NOI = None
        if ctx.needs_input_grad[0]:
            d_x_PI = torch.empty_like(x_PI, memory_format=torch.contiguous_format)
            for c_TO, weight_OI, d_x_TI in _segments(ctx.counts, cotangent_PO, weight_NOI, d_x_PI):
                torch.mm(c_TO, weight_OI, out=d_x_TI)
        if ctx.needs_input_grad[1]:
            d_weight_NOI = torch.zeros_like(weight_NOI, memory_format=torch.contiguous_format)
            for c_TO, d_weight_OI, x_TI in _segments(ctx.counts, cotangent_PO, d_weight_NOI, x_PI):
                torch.mm(c_TO.t(), x_TI, out=d_weight_OI)
        return d_x_PI, d_weight_NOI, None


def _segments(
    counts: list[int], a_PX: Tensor, matrix_NXY: Tensor, b_PY: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows of a, the matrix and rows of b for every expert that has any."""
    a_segments, b_segments = torch.split(a_PX, counts), torch.split(b_PY, counts)
    segments = zip(a_segments, matrix_NXY.unbind(), b_segments, strict=True)
    return [segment for segment in segments if segment[0].shape[0]]


def check_shapes(
    x_ML: Tensor,
    expert_ids_MK: Tensor,
    weights_MK: Tensor,
    gate_proj_NHL: Tensor,
    up_proj_NHL: Tensor,
    down_proj_NLH: Tensor,
) -> None:
    """Raise ValueError, naming it, if a tensor's shape does not fit the others'."""
    num_experts, hidden_dim, latent_dim = gate_proj_NHL.shape
    expected = {
        "x": (x_ML, (expert_ids_MK.shape[0], latent_dim)),
        "weights": (weights_MK, tuple(expert_ids_MK.shape)),
        "up_proj": (up_proj_NHL, (num_experts, hidden_dim, latent_dim)),
        "down_proj": (down_proj_NLH, (num_experts, latent_dim, hidden_dim)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected {shape} to match expert_ids "
                f"{tuple(expert_ids_MK.shape)} and gate_proj {tuple(gate_proj_NHL.shape)}"
            )


class Experts(nn.Module):
    """The routed experts, with stacked parameters ``gate_proj``, ``up_proj`` and ``down_proj``.

    The public checkpoint holds one matrix per expert and projection. Loading accepts these keys
    too, under ``{j}.gate_proj.weight``, ``{j}.up_proj.weight``, ``{j}.down_proj.weight`` or under
    ``{j}.w1.weight``, ``{j}.w3.weight``, ``{j}.w2.weight`` in the same order; saving writes stacks.

    Args:
        latent_dim: L.
        expert_dim: H.
        num_experts: N.
        beta_gate: cap of the gate.
        beta_up: cap of up.
    """

    def __init__(
        self,
        latent_dim: int,
        expert_dim: int,
        num_experts: int,
        *,
        beta_gate: float = 4.0,
        beta_up: float = 25.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.beta_gate = beta_gate
        self.beta_up = beta_up

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(num_experts, *shape, device=device, dtype=dtype))

        self.gate_proj = parameter(expert_dim, latent_dim)
        self.up_proj = parameter(expert_dim, latent_dim)
        self.down_proj = parameter(latent_dim, expert_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every matrix with variance 1/(its input width)."""
        for weight in (self.gate_proj, self.up_proj, self.down_proj):
            if weight.is_meta:  # nothing to draw, and torch takes milliseconds to find out
                return
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, x_ML: Tensor, expert_ids_MK: Tensor, weights_MK: Tensor) -> Tensor:
        """``experts`` with this module's parameters."""
        return experts(
            x_ML,
            expert_ids_MK,
            weights_MK,
            self.gate_proj,
            self.up_proj,
            self.down_proj,
            beta_gate=self.beta_gate,
            beta_up=self.beta_up,
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name, alias in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            for key in (name, alias):
                _stack(state_dict, prefix, key, name, self.num_experts)
            if prefix + name in state_dict:
                state_dict[prefix + name] = self._own_part(state_dict[prefix + name])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _own_part(self, stack: Tensor) -> Tensor:
        """What this module holds of a stack over all experts."""
        return stack

    def extra_repr(self) -> str:
        """Sizes, for ``print(module)``."""
        _, expert_dim, latent_dim = self.gate_proj.shape
        return f"{self.num_experts}, latent_dim={latent_dim}, expert_dim={expert_dim}"


def _stack(state_dict: dict[str, Any], prefix: str, key: str, name: str, num_experts: int) -> None:
    """Replace one matrix per expert by their stack, where all are there."""
    keys = [f"{prefix}{expert}.{key}.weight" for expert in range(num_experts)]
    if all(single in state_dict for single in keys):
        state_dict[prefix + name] = torch.stack([state_dict.pop(single) for single in keys])
