"""Right routers that are not the reference's: other ties, slots, sums, formats and conventions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from impl_torch.adapter import TorchImplementation
from properties.protocol import Array, Conventions, Precision, Routing


class Router(TorchImplementation):
    """Eq. 13 as a model's author writes it, with gradients from autograd."""

    name, version = "router", "1"
    topics = ("routing",)

    def choose(self, biased: Tensor, top_k: int) -> Tensor:
        return torch.topk(biased, top_k).indices

    def weigh(self, chosen: Tensor) -> Tensor:
        return chosen / (chosen.sum(-1, keepdim=True) + 1e-20)

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        scores = torch.sigmoid(logits)
        biased = scores.detach() + bias
        ids = self.choose(biased, top_k)
        return ids, self.weigh(scores.gather(1, ids)), self.cutoff(biased, top_k)

    def cutoff(self, biased: Tensor, top_k: int) -> Tensor | None:
        return biased.kthvalue(biased.shape[1] - top_k).values if top_k < biased.shape[1] else None


class RandomTies(Router):
    """Ties in a random order, slots by ascending id, no cutoff."""

    freedom = "the choice among ties; the order of the slots; to return no cutoff"

    def choose(self, biased: Tensor, top_k: int) -> Tensor:
        order = torch.from_numpy(np.random.default_rng(top_k).permutation(biased.shape[1]))
        found = biased[:, order].argsort(dim=1, descending=True, stable=True)[:, :top_k]
        return order[found].sort(dim=1).values

    def cutoff(self, biased: Tensor, top_k: int) -> Tensor | None:
        return None


class SoftmaxOfLogs(Router):
    """Weights are the softmax of log sigmoid over the chosen, without an epsilon."""

    freedom = "weight_epsilon = 0; an equal formula"
    conventions = Conventions(weight_epsilon=0.0)

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        biased = torch.sigmoid(logits.detach()) + bias
        ids = self.choose(biased, top_k)
        weights = torch.softmax(logsigmoid(logits.gather(1, ids)), -1)
        return ids, weights, self.cutoff(biased, top_k)


class Masked(Router):
    """Scores outside the choice are masked, the rest normalised over all N experts, reversed."""

    freedom = "the order of the sum, zeros among it"

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        scores = torch.sigmoid(logits)
        biased = scores.detach() + bias
        ids = self.choose(biased, top_k)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, ids, True)
        kept = torch.where(chosen, scores, 0.0).flip(1)
        weights = (kept / (kept.sum(1, keepdim=True) + 1e-20)).flip(1)
        return ids, weights.gather(1, ids), self.cutoff(biased, top_k)


class Subtracted(Router):
    """The bias is subtracted; a single weight is its score."""

    freedom = "bias_sign = -1; top1_renormalised off"
    conventions = Conventions(bias_sign=-1, top1_renormalised=False)

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        return super().route_forward(logits, -bias, top_k=top_k)

    def weigh(self, chosen: Tensor) -> Tensor:
        return chosen if chosen.shape[1] == 1 else super().weigh(chosen)


class Wider(Router):
    """Computed in float64, rounded once to float32."""

    freedom = "better than the declared formats"

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        found = super().route_forward(logits.double(), bias.double(), top_k=top_k)
        ids, weights, cutoff = found
        return ids, weights.float(), None if cutoff is None else cutoff.float()


class InStorage:
    """NumPy: ids of 16 bits in the columns of a wider array, weights and gradients in bfloat16."""

    name, version = "router in storage", "1"
    topics = ("routing",)
    freedom = "any integer dtype of ids; weights and d_logits rounded to storage; a reciprocal"
    precision = Precision(storage="bfloat16")
    conventions = Conventions()

    def parts(self, logits: Array, bias: Array, top_k: int) -> tuple[Array, Array, Array, Array]:
        with np.errstate(over="ignore"):
            scores = 1 / (1 + np.exp(-logits))
        biased = scores + bias
        order = np.argpartition(-biased, top_k - 1, axis=1)[:, :top_k]
        chosen = np.take_along_axis(scores, order, 1)
        reciprocal = 1 / (np.sum(chosen[:, ::-1], axis=1, keepdims=True) + np.float32(1e-20))
        return order, chosen, chosen * reciprocal, biased

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        ids, _, weights, biased = self.parts(logits, bias, top_k)
        wide = np.zeros((len(ids), 2 * top_k), np.int16)
        wide[:, 1::2] = ids
        best_first = -np.sort(-biased, axis=1)
        cutoff = best_first[:, top_k] if top_k < len(bias) else None
        return Routing(wide[:, 1::2], weights.astype("bfloat16"), cutoff)

    def route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, None]:
        ids, chosen, weights, _ = self.parts(logits, bias, top_k)
        pulled = np.sum(weights * weights_cotangent, axis=1, keepdims=True)
        d_logits = np.zeros_like(logits)
        slopes = weights * (1 - chosen) * (weights_cotangent - pulled)
        np.put_along_axis(d_logits, ids, slopes, 1)
        return d_logits.astype("bfloat16"), None


class ReturnsEarly(InStorage):
    """A batch without tokens is handed back at once: no ids, no weights, and no cutoff."""

    freedom = "no cutoff where there is no token"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        if len(logits):
            return super().route(logits, bias, top_k=top_k)
        return Routing(np.empty((0, top_k), np.int16), np.empty((0, top_k), np.float32), None)


class RoundsSingleTokens(InStorage):
    """Weights of a single token are rounded to storage, those of batches are not."""

    freedom = "weights in either format, call by call"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        _, _, weights, _ = self.parts(logits, bias, top_k)
        return routed if len(logits) == 1 else routed._replace(weights=weights)


class RoundsGroupsOnly(Router):
    """Weights of group-limited routing are rounded to storage, those of plain routing are not."""

    freedom = "weights in either format, method by method"
    precision = Precision(storage="bfloat16")

    def route_grouped_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int, num_groups: int, top_groups: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        tokens, experts = logits.shape
        scores = torch.sigmoid(logits)
        biased = scores + bias
        totals = (
            biased.reshape(tokens, num_groups, experts // num_groups).topk(2, dim=-1).values.sum(-1)
        )
        best = totals.topk(top_groups, dim=1).indices
        opened = torch.zeros(totals.shape, dtype=torch.bool).scatter(1, best, True)
        mine = opened.repeat_interleave(experts // num_groups, 1)
        ids = self.choose(biased.masked_fill(~mine, -torch.inf), top_k)
        return ids, self.weigh(scores.gather(1, ids)).bfloat16(), None


class GroupsByLogits(Router):
    """The bias is added to logits, and closed groups are masked with -inf, which logits may be."""

    freedom = "score_domain = logit; any groups, and any experts, where infinities leave no others"
    conventions = Conventions(score_domain="logit")

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        biased = logits.detach() + bias
        ids = self.choose(biased, top_k)
        weights = self.weigh(torch.sigmoid(logits).gather(1, ids))
        return ids, weights, self.cutoff(biased, top_k)

    def route_grouped_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int, num_groups: int, top_groups: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        tokens, experts = logits.shape
        biased = (logits + bias).reshape(tokens, num_groups, experts // num_groups)
        best = biased.topk(2, dim=-1).values.sum(-1).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        closed = torch.ones_like(best, dtype=torch.bool)
        closed = closed.scatter(1, best.topk(top_groups, dim=1).indices, False)
        limited = biased.masked_fill(closed[:, :, None], -torch.inf).reshape(tokens, experts)
        ids = self.choose(limited, top_k)
        return ids, self.weigh(torch.sigmoid(logits).gather(1, ids)), None


class ByThreshold(Router):
    """All above the K-th best, then the last among its ties; slots in another order per token."""

    freedom = "ties to the highest ids; slots in an order that differs by token; int32 ids"

    def choose(self, biased: Tensor, top_k: int) -> Tensor:
        tokens, experts = biased.shape
        held = biased.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        least = held.sort(dim=1).values[:, experts - top_k, None]
        above, tied = held > least, held == least
        room = top_k - above.sum(dim=1, keepdim=True)
        late = tied.flip(1).cumsum(dim=1).flip(1) <= room
        ids = torch.where(above | (tied & late))[1].reshape(tokens, top_k)
        rng = np.random.default_rng(experts)
        order = torch.from_numpy(rng.permuted(np.tile(np.arange(top_k), (tokens, 1)), axis=1))
        return ids.gather(1, order.reshape(tokens, top_k))

    def route_forward(
        self, logits: Tensor, bias: Tensor, *, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ids, weights, cutoff = super().route_forward(logits, bias, top_k=top_k)
        return ids.int(), weights, cutoff
