"""Expert parallelism: every rank holds some experts, tokens travel to them and back (all-to-all).

Where ranks see the same tokens (tensor parallelism), each of them sends a slice, so that a token
is dispatched once. All collectives are torch.distributed's, and so are their gradients: an
exchange in the other direction. Every rank of a group must make the same calls, forward and
backward, also one without tokens or without experts. Equation numbers are those of
arXiv 2607.24653.

Legend: M tokens of this rank, N routed experts, K top_k, P = M K assignments in the order of
experts, R assignments received, L latent width, H expert hidden width, E experts of this rank.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from impl_torch.experts import (
    Experts,
    check_shapes,
    combine,
    dispatch,
    expert_rows,
    gather,
)
from impl_torch.pooling import group_size, own_subgroup
from impl_torch.precision import widened

__all__ = ["ExpertParallel", "ParallelExperts", "parallel_experts"]


class ExpertParallel:
    """Which ranks share the experts, and which see the same tokens.

    Experts are dealt out in runs of consecutive ids; the first N mod (ranks) ranks hold one more.
    Like the process groups it refers to, it belongs to its process: a copy is the same object, and
    it cannot be pickled.

    Args:
        group: the ranks that hold all experts once, together; None is the default group.
        replicas: ranks with the same tokens as this one, itself among them; None: no other.
            They need not belong to the same ``group``.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self.ranks = group_size(group)
        self.rank = dist.get_rank(group) if self.ranks > 1 else 0
        self.replicas = replicas
        self.num_replicas = 1 if replicas is None else group_size(replicas)
        self.replica = dist.get_rank(replicas) if self.num_replicas > 1 else 0

    @classmethod
    def arrange(
        cls, *, tensor_parallel: int = 1, expert_parallel: int | None = None
    ) -> ExpertParallel:
        """The usual arrangement of all ranks; every rank has to call it, at the same time.

        Args:
            tensor_parallel: so many consecutive ranks see the same tokens.
            expert_parallel: so many consecutive ranks share the experts; all ranks if left out.

        Raises:
            ValueError: a size does not divide the number of ranks.
        """
        world = group_size()
        replicas = None
        if tensor_parallel != 1:
            replicas = _own_block(tensor_parallel, world, "tensor_parallel")
        shared = world if expert_parallel is None else expert_parallel
        return cls(_own_block(shared, world, "expert_parallel"), replicas=replicas)

    def sizes(self, num_experts: int) -> list[int]:
        """How many experts each rank of the group holds."""
        return _even_parts(num_experts, self.ranks)

    def own(self, num_experts: int) -> slice:
        """The experts of this rank."""
        return _part(self.sizes(num_experts), self.rank)

    def slices(self, tokens: int) -> list[int]:
        """How many of the tokens that they share each replica dispatches."""
        return _even_parts(tokens, self.num_replicas)

    def own_tokens(self, tokens: int) -> slice:
        """The tokens that this rank dispatches for its replicas."""
        return _part(self.slices(tokens), self.replica)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertParallel:
        """The same object: process groups exist once."""
        return self

    def __reduce__(self) -> Any:
        """Refuse: process groups have no meaning in another process."""
        raise TypeError(
            "a layer with expert_parallel cannot be pickled, as process groups cannot; "
            "save its state_dict()"
        )


def _own_block(size: int, world: int, name: str) -> dist.ProcessGroup | None:
    """The group of ``size`` consecutive ranks that this rank is in, None in a process alone."""
    if size < 1 or world % size:
        raise ValueError(f"{name} = {size} does not divide {world} ranks")
    if world == 1:
        return None
    if size == world:
        return dist.group.WORLD
    blocks = [list(range(first, first + size)) for first in range(0, world, size)]
    return own_subgroup(blocks)


def _even_parts(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _part(sizes: list[int], index: int) -> slice:
    start = sum(sizes[:index])
    return slice(start, start + sizes[index])


def parallel_experts(
    x_ML: Tensor,
    expert_ids_MK: Tensor,
    weights_MK: Tensor,
    gate_proj_EHL: Tensor,
    up_proj_EHL: Tensor,
    down_proj_ELH: Tensor,
    *,
    num_experts: int,
    layout: ExpertParallel,
    beta_gate: float = 4.0,
    beta_up: float = 25.0,
) -> Tensor:
    """``experts`` over all ranks' experts, for this rank's tokens (Eq. 11, 12), (M, L).

    The sum over a token's K experts is complete: each row comes back to the token's rank, which
    weighs and adds up all of them, in the order of one process. Gradients: complete for x and
    weights, on every replica; for the parameters those of all tokens in this ``layout.group``, each
    counted once.

    Args:
        x_ML: this rank's latent tokens; M may be 0, and differs between ranks.
        expert_ids_MK: integers in [0, N), counted over all ranks' experts.
        weights_MK: combine weights.
        gate_proj_EHL: gate projections of the experts ``layout.own(num_experts)``; E may be 0.
        up_proj_EHL: up projections.
        down_proj_ELH: down projections.
        num_experts: N.
        layout: where the experts are.
        beta_gate: cap of the gate.
        beta_up: cap of up.

    Raises:
        IndexError: an id is out of range.
        ValueError: shapes do not fit, or a beta is not positive and finite.
        TypeError: ids are not integers.
    """
    check_shapes(x_ML, expert_ids_MK, weights_MK, gate_proj_EHL, up_proj_EHL, down_proj_ELH)
    sizes = layout.sizes(num_experts)
    if gate_proj_EHL.shape[0] != sizes[layout.rank]:
        raise ValueError(
            f"gate_proj holds {gate_proj_EHL.shape[0]} experts; rank {layout.rank} of "
            f"{layout.ranks} has {sizes[layout.rank]} of {num_experts}"
        )
    stored, tokens = x_ML.dtype, x_ML.shape[0]
    x_ML, gate, up, down = widened(x_ML, gate_proj_EHL, up_proj_EHL, down_proj_ELH)
    if layout.num_replicas > 1:
        expert_ids_MK = expert_ids_MK[layout.own_tokens(tokens)]
        x_ML, weights_MK = _OwnTokens.apply(x_ML, weights_MK, layout)  # type: ignore[no-untyped-call]
    plan = dispatch(expert_ids_MK, num_experts)
    sent, received_RE = _exchange_counts(plan.counts, sizes, layout)
    received = received_RE.sum(1).tolist()
    x_RL = _Exchange.apply(gather(x_ML, plan), sent, received, layout)  # type: ignore[no-untyped-call]
    order_R, back_R = _by_expert(received_RE.to(x_RL.device))
    x_RL = _Permute.apply(x_RL, order_R, back_R)  # type: ignore[no-untyped-call]
    y_RL = expert_rows(x_RL, gate, up, down, received_RE.sum(0).tolist(), beta_gate, beta_up)
    y_RL = _Permute.apply(y_RL, back_R, order_R)  # type: ignore[no-untyped-call]
    y_PL = _Exchange.apply(y_RL, received, sent, layout)  # type: ignore[no-untyped-call]
    y_ML = combine(y_PL, weights_MK, plan)
    if layout.num_replicas > 1:
        y_ML = _AllTokens.apply(y_ML, tokens, layout)  # type: ignore[no-untyped-call]
    return y_ML.to(stored)


def _exchange_counts(
    counts: list[int], sizes: list[int], layout: ExpertParallel
) -> tuple[list[int], Tensor]:
    """Rows that go to each rank, and a table (ranks, E) of rows that come, on the CPU."""
    edges = list(accumulate(sizes, initial=0))
    sent = [sum(counts[start:stop]) for start, stop in pairwise(edges)]
    held = sizes[layout.rank]
    outgoing = torch.tensor(counts, device=_wire_device(layout.group))
    incoming = _all_to_all(outgoing, sizes, [held] * layout.ranks, layout)
    return sent, incoming.view(layout.ranks, held).cpu()


def _wire_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where a group's backend wants tensors: the GPU for NCCL."""
    nccl = group_size(group) > 1 and dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def _by_expert(received_RE: Tensor) -> tuple[Tensor, Tensor]:
    """The order that sorts received rows by expert, then by sender, and its inverse."""
    ranks, held = received_RE.shape
    expert = torch.arange(held, device=received_RE.device).repeat(ranks)
    order_R = torch.sort(expert.repeat_interleave(received_RE.flatten()), stable=True).indices
    back_R = torch.empty_like(order_R)
    back_R[order_R] = torch.arange(order_R.numel(), device=order_R.device)
    return order_R, back_R


def _all_to_all(
    rows: Tensor, sent: list[int], received: list[int], layout: ExpertParallel
) -> Tensor:
    if layout.ranks == 1:
        return rows.clone()
    out = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=layout.group)
    return out


def _all_gather(part: Tensor, tokens: int, layout: ExpertParallel) -> Tensor:
    """The replicas' slices, put together; all are sent at the size of the largest."""
    slices = layout.slices(tokens)
    padded = part.new_zeros((slices[0], *part.shape[1:]))
    padded[: part.shape[0]] = part
    parts = [torch.empty_like(padded) for _ in slices]
    dist.all_gather(parts, padded, group=layout.replicas)
    return torch.cat([each[:size] for each, size in zip(parts, slices, strict=True)])


class _Exchange(Function):
    """All-to-all of rows; the gradient goes the way back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], layout: ExpertParallel
    ) -> Tensor:
        ctx.call = (received, sent, layout)
        return _all_to_all(rows, sent, received, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(cotangent, *ctx.call), None, None, None


class _Permute(Function):
    """Rows in another order, whose inverse the gradient takes: no sum, so no rounding."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return cotangent.index_select(0, inverse), None, None


class _OwnTokens(Function):
    """This rank's slice of the replicated x and weights; gradients are gathered from all slices."""

    @staticmethod
    def forward(
        ctx: Any, x_ML: Tensor, weights_MK: Tensor, layout: ExpertParallel
    ) -> tuple[Tensor, Tensor]:
        ctx.call = (x_ML.shape[0], layout)
        own = layout.own_tokens(x_ML.shape[0])
        return x_ML[own].clone(), weights_MK[own].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_x: Tensor, d_weights: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        # One function for both, so that every rank gathers them in the same order.
        gathered = [
            _all_gather(cotangent, *ctx.call) if needed else None
            for cotangent, needed in zip((d_x, d_weights), ctx.needs_input_grad, strict=False)
        ]
        return gathered[0], gathered[1], None


class _AllTokens(Function):
    """All replicas' results; each replica's own slice of the cotangent goes back.

    The replicas compute the same from here on, so their cotangents are equal, and are not summed.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, tokens: int, layout: ExpertParallel) -> Tensor:
        ctx.own = layout.own_tokens(tokens)
        return _all_gather(part, tokens, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return cotangent[ctx.own], None, None


class ParallelExperts(Experts):
    """``Experts`` of which this rank holds its own part, ``layout.own(num_experts)``.

    Loading takes that part out of a state dict with all experts, in any form that ``Experts``
    accepts; saving writes this rank's stacks, which load into the same place.

    Args:
        layout: where the experts are.
        latent_dim: L.
        expert_dim: H.
        num_experts: N, those of all ranks together.
        beta_gate: cap of the gate.
        beta_up: cap of up.
    """

    def __init__(
        self,
        layout: ExpertParallel,
        latent_dim: int,
        expert_dim: int,
        num_experts: int,
        *,
        beta_gate: float = 4.0,
        beta_up: float = 25.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            latent_dim,
            expert_dim,
            layout.sizes(num_experts)[layout.rank],
            beta_gate=beta_gate,
            beta_up=beta_up,
            device=device,
            dtype=dtype,
        )
        self.num_experts = num_experts
        self.layout = layout

    def _own_part(self, stack: Tensor) -> Tensor:
        whole = stack.shape[0] == self.num_experts
        return stack[self.layout.own(self.num_experts)] if whole else stack

    def forward(self, x_ML: Tensor, expert_ids_MK: Tensor, weights_MK: Tensor) -> Tensor:
        """``parallel_experts`` with this rank's parameters."""
        return parallel_experts(
            x_ML,
            expert_ids_MK,
            weights_MK,
            self.gate_proj,
            self.up_proj,
            self.down_proj,
            num_experts=self.num_experts,
            layout=self.layout,
            beta_gate=self.beta_gate,
            beta_up=self.beta_up,
        )
