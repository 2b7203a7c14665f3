"""Routers that select wrongly, each by the smallest change from a correct one.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from properties.protocol import Array, Conventions, Precision, Routing


class Router:
    """Correct, in float64, in the parts that the wrong ones replace one by one."""

    name = "router"
    version = "1"
    precision = Precision(compute="float64", accumulate="float64", storage="float64")
    conventions = Conventions()

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        scores = self.scores(logits)
        biased = self.biased(scores, bias)
        ids = self.select(biased, top_k)
        weights = self.weigh(scores, bias, ids)
        cutoff = self.cutoff(scores, biased, top_k) if top_k < len(bias) else None
        return Routing(ids, weights, cutoff)

    def scores(self, logits: Array) -> Array:
        tail = np.exp(-np.abs(logits))
        one = logits.dtype.type(1)
        return np.where(logits >= 0, one, tail) / (one + tail)

    def biased(self, scores: Array, bias: Array) -> Array:
        return scores + bias

    def select(self, biased: Array, top_k: int) -> Array:
        return np.argsort(-biased, axis=1, kind="stable")[:, :top_k]

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return normalised(np.take_along_axis(scores, ids, axis=1))

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return -np.sort(-biased, axis=1)[:, top_k]


class Float32Router(Router):
    """Correct, in float32, for mistakes that are roundings."""

    precision = Precision()


def normalised(chosen: Array, epsilon: float = 1e-20) -> Array:
    return chosen / (chosen.sum(axis=1, keepdims=True) + chosen.dtype.type(epsilon))


def one_by_one(
    biased: Array, top_k: int, *, shut_out: float = -np.inf, start: float = -np.inf
) -> Array:
    """K running maxima above ``start``, expert 0 where there is none; a found one is shut out."""
    left, rows = biased.copy(), np.arange(len(biased))
    ids = np.zeros((len(biased), top_k), np.int64)
    for slot in range(top_k):
        best = np.argmax(left, axis=1)
        ids[:, slot] = np.where(left[rows, best] > start, best, 0)
        left[rows, ids[:, slot]] = shut_out
    return ids


def in_bfloat16(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class SelectionWithoutBias(Router):
    """The bias is left out of the selection."""

    killed_by = "RTR-VALID"

    def biased(self, scores: Array, bias: Array) -> Array:
        return scores


class BiasSubtracted(Router):
    """The bias is subtracted, though +1 is the declared sign."""

    killed_by = "RTR-VALID"

    def biased(self, scores: Array, bias: Array) -> Array:
        return scores - bias


class ExcludedFilledWithZero(Router):
    """Scores already taken are filled with 0, which is above every negative biased score."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return one_by_one(biased, top_k, shut_out=0.0)


class MaximumStartsAtMinusOne(Router):
    """The running maximum is seeded with -1, which biased scores may never reach."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return one_by_one(biased, top_k, start=-1.0)


class CandidatesRunOut(Router):
    """Expert 0 is taken again and again when no finite candidate remains."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return one_by_one(biased, top_k)


class ExpertsFrom256NeverChosen(Router):
    """Only the first 256 experts are candidates, as long as they suffice."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return super().select(biased[:, : max(256, top_k)], top_k)


class IdsInEightBits(Router):
    """Ids wrap around at 256."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return super().select(biased, top_k).astype(np.uint8)


class IdsCountFromOne(Router):
    """Ids run from 1 to N."""

    killed_by = "RTR-VALID"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        return routed._replace(expert_ids=routed.expert_ids + 1)


class ZeroIds(Router):
    """Control: every id is 0."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return np.zeros((len(biased), top_k), np.int64)


class RandomIds(Router):
    """Control: K different experts at random."""

    killed_by = "RTR-VALID"

    def select(self, biased: Array, top_k: int) -> Array:
        return super().select(np.random.default_rng(0).random(biased.shape), top_k)


class MutatesLogits(Router):
    """Control: the scores overwrite the logits."""

    killed_by = "RTR-VALID"

    def scores(self, logits: Array) -> Array:
        scores = super().scores(logits)
        logits.setflags(write=True)
        logits[...] = scores
        return scores


class ScoresInBFloat16(Float32Router):
    """Scores are rounded to bfloat16 before the selection."""

    killed_by = "RTR-SCORES"

    def biased(self, scores: Array, bias: Array) -> Array:
        return in_bfloat16(scores) + bias


class BFloat16Routing(Router):
    """Scores and biases are kept in bfloat16, and that is declared."""

    killed_by = "RTR-SCORES"
    precision = Precision(storage="bfloat16", routing="bfloat16")


class SoftmaxSelection(Router):
    """Experts are chosen by softmax scores, and weighed by sigmoids."""

    killed_by = "RTR-SCORES"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        scores, biased = self.scores(logits), softmax(logits) + bias
        ids = self.select(biased, top_k)
        return Routing(ids, self.weigh(scores, bias, ids), None)


class SigmoidByTanh(Float32Router):
    """The sigmoid is (1 + tanh(z / 2)) / 2, whose small values are multiples of 2^-25."""

    killed_by = "RTR-SCORES"

    def scores(self, logits: Array) -> Array:
        half = logits.dtype.type(0.5)
        return half + half * np.tanh(half * logits)


class Float32Selection(Router):
    """Experts are chosen in float32, though float64 is declared."""

    killed_by = "RTR-SCORES"

    def biased(self, scores: Array, bias: Array) -> Array:
        return (scores.astype(np.float32) + bias.astype(np.float32)).astype(np.float64)


class BiasInBFloat16(Float32Router):
    """The bias is stored in bfloat16, whose steps are 1/4 at 34.5."""

    killed_by = "RTR-SHIFT"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return super().route(logits, in_bfloat16(bias), top_k=top_k)


class BiasLimited(Router):
    """The bias is limited to ±10, where balancing alone would never take it."""

    killed_by = "RTR-SHIFT"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        return super().route(logits, np.clip(bias, -10.0, 10.0), top_k=top_k)


class RowsAfterTheSixteenth(Router):
    """One block of 16 tokens is routed, and the rows after it stay as they were allocated."""

    killed_by = "RTR-TOKEN"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        for part in routed:
            if part is not None:
                part[16:] = 0
        return routed


class LastTokenIsItsNeighbour(Router):
    """The last token of an odd batch is given the routing of the one before it."""

    killed_by = "RTR-TOKEN"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        if len(logits) > 1 and len(logits) % 2:
            for part in routed:
                if part is not None:
                    part[-1] = part[-2]
        return routed


class ScoresOfTheBatch(Router):
    """Scores are taken relative to the batch's largest logit, as a softmax kernel would."""

    killed_by = "RTR-TOKEN"

    def scores(self, logits: Array) -> Array:
        return super().scores(logits - np.max(logits, initial=-1e9) if len(logits) > 1 else logits)


class IdsByValue(Router):
    """The K largest values are looked up by equality, so that ties give one expert twice."""

    killed_by = "RTR-TIES"

    def select(self, biased: Array, top_k: int) -> Array:
        largest = -np.sort(-biased, axis=1)[:, :top_k]
        return np.argmax(biased[:, None, :] == largest[:, :, None], axis=2)


class HighestIndex(Router):
    """Ties fall to the highest id, though the lowest is declared."""

    killed_by = "RTR-TIES"
    conventions = Conventions(ties="lowest_index")

    def select(self, biased: Array, top_k: int) -> Array:
        return biased.shape[1] - 1 - super().select(biased[:, ::-1], top_k)
