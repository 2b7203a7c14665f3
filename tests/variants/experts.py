"""Right experts that are not the reference's: other dispatches, sums, casts, places of a weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from impl_torch.adapter import TorchImplementation
from properties.protocol import Conventions, Precision


class Experts(TorchImplementation):
    """A loop over the experts that adds weighted outputs up in float32: most public code."""

    name, version = "experts", "1"
    topics = ("experts",)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x.float() @ weight.float().mT).to(x.dtype)

    def activation(self, gate: Tensor, up: Tensor, b1: float, b2: float) -> Tensor:
        g, u = gate.float(), up.float()
        out = b1 * torch.tanh(g / b1) * torch.sigmoid(g) * (b2 * torch.tanh(u / b2))
        return out.to(gate.dtype)

    def expert(self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, caps: Any) -> Tensor:
        hidden = self.activation(self.product(x, gate), self.product(x, up), *caps)
        return self.product(hidden, down)

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
        p, out = parameters, torch.zeros(x.shape)
        for j in range(len(p.gate_proj)):
            rows, slots = torch.where(expert_ids == j)
            if len(rows):
                one = p.gate_proj[j], p.up_proj[j], p.down_proj[j]
                y = self.expert(x[rows], *one, (beta_gate, beta_up))
                out = out.index_add(0, rows, y.float() * weights[rows, slots, None].float())
        return out.to(x.dtype)


class Looped(Experts):
    """Experts in turn; in a batch without tokens autograd records nothing."""

    freedom = "any order of every sum; an empty batch has gradients of zero"
    precision = Precision(storage="bfloat16")


class Gathered(Experts):
    """Projections gathered for every slot, the weight on the activation, one product for all."""

    freedom = "a weight that meets the activation's output; deterministic = False"
    conventions = Conventions(deterministic=False)  # gradients of gathers add in any order

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
        p, ids = parameters, expert_ids.long()
        gate = torch.einsum("ml,mkhl->mkh", x, p.gate_proj[ids])
        up = torch.einsum("ml,mkhl->mkh", x, p.up_proj[ids])
        hidden = self.activation(gate, up, beta_gate, beta_up) * weights[..., None]
        return torch.einsum("mkh,mklh->ml", hidden, p.down_proj[ids])


class Sorted(Experts):
    """Slots sorted by expert, groups in turn, activations in float32, summed over slots last."""

    freedom = "tensors that need not be stored; a permutation of the slots and back"
    precision = Precision(storage="float16")

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
        p, (tokens, top_k) = parameters, expert_ids.shape
        flat = expert_ids.reshape(-1).long()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=len(p.gate_proj)).tolist()
        groups = x.float().repeat_interleave(top_k, 0)[order].split(counts)
        outputs = [
            self.expert(group, *one, (beta_gate, beta_up))
            for group, *one in zip(groups, p.gate_proj, p.up_proj, p.down_proj, strict=True)
        ]
        terms = torch.cat(outputs)[order.argsort()] * weights.reshape(-1, 1)
        return terms.reshape(tokens, top_k, x.shape[1]).sum(1).to(x.dtype)


class Shuffled(Experts):
    """Products split over the inner dimension; partial sums in another order in every call."""

    freedom = "any order of every sum; deterministic = False"
    conventions = Conventions(deterministic=False)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros(*x.shape[:-1], weight.shape[-2])
        for columns in torch.randperm(x.shape[-1]).split(5):
            total = total + x[..., columns] @ weight[..., columns].mT
        return total


class OpByOp(Experts):
    """A module cast to bfloat16 as a whole: terms are added up in bfloat16 and said to be."""

    freedom = "compute and accumulation in bfloat16"
    precision = Precision("bfloat16", "bfloat16", "bfloat16", "float32")

    def activation(self, gate: Tensor, up: Tensor, b1: float, b2: float) -> Tensor:
        return b1 * torch.tanh(gate / b1) * torch.sigmoid(gate) * (b2 * torch.tanh(up / b2))

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
        p, out = parameters, torch.zeros_like(x)
        for j in range(len(p.gate_proj)):
            rows, slots = torch.where(expert_ids == j)
            one = p.gate_proj[j], p.up_proj[j], p.down_proj[j]
            y = self.expert(x[rows], *one, (beta_gate, beta_up))
            out = out.index_add(0, rows, y * weights[rows, slots, None].to(x.dtype))
        return out


class Padded(Experts):
    """Every expert is given as many rows as the fullest one: zeros fill up, one batched product."""

    freedom = "a dispatch with padding"
    conventions = Conventions(deterministic=False)  # gradients of gathers add in any order

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
        p, (tokens, top_k) = parameters, expert_ids.shape
        flat = expert_ids.reshape(-1).long()
        mine = torch.nn.functional.one_hot(flat, len(p.gate_proj))
        place = (mine.cumsum(0) - 1).gather(1, flat[:, None])[:, 0]
        capacity = int(mine.sum(0).max()) if len(flat) else 0
        rows = x.new_zeros(len(p.gate_proj), capacity, x.shape[1])
        rows = rows.index_put((flat, place), x.repeat_interleave(top_k, 0))
        y = self.expert(rows, p.gate_proj, p.up_proj, p.down_proj, (beta_gate, beta_up))
        terms = y[flat, place] * weights.reshape(-1, 1)
        return terms.reshape(tokens, top_k, x.shape[1]).sum(1)


class Compensated(Experts):
    """The terms of a token are added up slot by slot as Kahan does, from the last."""

    freedom = "compensated sums: better than the declared formats"
    conventions = Conventions(deterministic=False)  # gradients of gathers add in any order

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
        p, ids = parameters, expert_ids.long()
        total = lost = torch.zeros_like(x)
        for slot in reversed(range(ids.shape[1])):
            one = (w[ids[:, slot]] for w in (p.gate_proj, p.up_proj, p.down_proj))
            y = self.expert(x[:, None], *one, (beta_gate, beta_up))[:, 0]
            term = y * weights[:, slot, None] - lost
            grown = total + term
            rest = (grown - total) - term
            lost, total = torch.where(rest.isfinite(), rest, 0.0), grown
        return total


class Autocast(Experts):
    """float32 parameters and hidden states; factors and results of products in float16."""

    freedom = "compute narrower in range than storage"
    precision = Precision("float16", "float32", "float32", "float32")

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x.half().float() @ weight.half().float().mT).half().float()
