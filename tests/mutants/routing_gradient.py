"""Routers with a wrong gradient, each by the smallest change from a correct one.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Precision
from tests.mutants.routing import Router, in_bfloat16, normalised, softmax


class TrainedRouter(Router):
    """Correct, in float64, in the parts of the backward pass that the wrong ones replace."""

    def route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        ids = self.route(logits, bias, top_k=top_k).expert_ids
        scores = np.take_along_axis(self.scores(logits), ids, axis=1)
        d_scores = self.d_scores(scores, self.in_slots(ids, weights_cotangent))
        slopes = self.slopes(np.take_along_axis(logits, ids, axis=1), scores)
        d_logits = np.zeros(logits.shape, logits.dtype)
        np.put_along_axis(d_logits, ids, d_scores * slopes, axis=1)
        return self.finished(logits, bias, d_logits)

    def in_slots(self, ids: Array, cotangent: Array) -> Array:
        return cotangent

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        total = scores.sum(axis=1, keepdims=True) + scores.dtype.type(1e-20)
        return (cotangent - (cotangent * (scores / total)).sum(axis=1, keepdims=True)) / total

    def slopes(self, logits: Array, scores: Array) -> Array:
        return scores * (scores.dtype.type(1) - scores)

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        return d_logits, np.zeros_like(bias)


class Float32TrainedRouter(TrainedRouter):
    """Correct, in float32, for mistakes that are roundings."""

    precision = Precision()


class GradientThroughTheBias(TrainedRouter):
    """The bias gets the gradient of the score that it is added to."""

    killed_by = "RTR-GRAD"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        return d_logits, d_logits.sum(axis=0)


class GradientOfTheBareScore(TrainedRouter):
    """The division by the sum is left out of the backward pass."""

    killed_by = "RTR-GRAD"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        return cotangent


class StraightThrough(TrainedRouter):
    """Experts that were not chosen get a gradient, too, as if their weight had been 0 by chance."""

    killed_by = "RTR-GRAD"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        chosen = d_logits != 0.0
        return np.where(chosen, d_logits, -1e-3 * self.scores(logits)), np.zeros_like(bias)


class SigmoidForgotten(TrainedRouter):
    """The gradient of the scores is returned as that of the logits."""

    killed_by = "RTR-GRAD"

    def slopes(self, logits: Array, scores: Array) -> Array:
        return np.ones_like(scores)


class SlopeOfTheSoftmax(TrainedRouter):
    """The slope of a score is taken as that of a softmax over the chosen logits."""

    killed_by = "RTR-GRAD"

    def slopes(self, logits: Array, scores: Array) -> Array:
        weights = softmax(logits)
        return weights * (1.0 - weights)


class SlotsBackwards(TrainedRouter):
    """The backward pass reads the cotangent from the last slot to the first."""

    killed_by = "RTR-GRAD"

    def in_slots(self, ids: Array, cotangent: Array) -> Array:
        return cotangent[:, ::-1]


class BackwardInBFloat16(Float32TrainedRouter):
    """The cotangent is rounded to bfloat16 on its way back, though storage is float32."""

    killed_by = "RTR-GRAD"

    def in_slots(self, ids: Array, cotangent: Array) -> Array:
        return in_bfloat16(cotangent)


class ReciprocalSquared(Float32TrainedRouter):
    """The sum's part is a product with the square of 1 / S, infinite in float32 for S near epsilon.

    Automatic differentiation of s * (1 / S) does this, and not that of s / S.
    """

    killed_by = "RTR-GRAD"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        one = scores.dtype.type(1)
        inverse = one / (scores.sum(axis=1, keepdims=True) + scores.dtype.type(1e-20))
        with np.errstate(over="ignore", invalid="ignore"):
            pull = (cotangent * scores).sum(axis=1, keepdims=True) * (inverse * inverse)
            return cotangent * inverse - pull


class ZeroGradient(TrainedRouter):
    """Control: no gradient at all."""

    killed_by = "RTR-GRAD"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        return np.zeros_like(cotangent)


class LogitsAsGradient(TrainedRouter):
    """Control: the input comes back as the output."""

    killed_by = "RTR-GRAD"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        return np.array(logits), np.zeros_like(bias)


class CotangentAsGradient(TrainedRouter):
    """Control: each chosen logit gets its cotangent."""

    killed_by = "RTR-GRAD"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        return cotangent

    def slopes(self, logits: Array, scores: Array) -> Array:
        return np.ones_like(scores)


class DetachedSum(TrainedRouter):
    """The sum that normalises is a constant in the backward pass."""

    killed_by = "RTR-GRAD-FLAT"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        return cotangent / (scores.sum(axis=1, keepdims=True) + 1e-20)


class OtherEpsilonBackwards(TrainedRouter):
    """Epsilon is 1e-6 in the backward pass, 1e-20 in the forward pass."""

    killed_by = "RTR-GRAD-FLAT"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        total = scores.sum(axis=1, keepdims=True) + 1e-20
        weights = normalised(scores, 1e-6)
        return (cotangent - (cotangent * weights).sum(axis=1, keepdims=True)) / total


class MeanInPlaceOfTheSum(TrainedRouter):
    """The part of the sum is divided by K once too often."""

    killed_by = "RTR-GRAD-FLAT"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        total = scores.sum(axis=1, keepdims=True) + 1e-20
        return (cotangent - (cotangent * scores / total).mean(axis=1, keepdims=True)) / total


class ClippedCotangent(TrainedRouter):
    """The cotangent is limited to ±1."""

    killed_by = "RTR-GRAD-LINEAR"

    def in_slots(self, ids: Array, cotangent: Array) -> Array:
        return np.clip(cotangent, -1.0, 1.0)


class NormalisedCotangent(TrainedRouter):
    """Each token's cotangent is scaled to length 1."""

    killed_by = "RTR-GRAD-LINEAR"

    def in_slots(self, ids: Array, cotangent: Array) -> Array:
        length = np.sqrt(np.square(cotangent).sum(axis=1, keepdims=True))
        return cotangent / np.maximum(length, 1e-12)


class AddsToTheCallBefore(TrainedRouter):
    """Gradients pile up from call to call, as where nobody clears them."""

    killed_by = "RTR-GRAD-LINEAR"

    def __init__(self) -> None:
        self.kept: Any = 0.0

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        same = np.shape(self.kept) == d_logits.shape
        self.kept = d_logits + (self.kept if same else 0.0)
        return self.kept, np.zeros_like(bias)


class SlotsInTheOrderOfIds(TrainedRouter):
    """The backward pass takes the slots to be in the order of the experts' ids."""

    killed_by = "RTR-GRAD-SLOTS"

    def in_slots(self, ids: Array, cotangent: Array) -> Array:
        rank = np.argsort(np.argsort(ids, axis=1), axis=1)
        return np.take_along_axis(cotangent, rank, axis=1)


class EvenExpertsOnly(TrainedRouter):
    """Experts with an odd id get no gradient: half of each pair is written."""

    killed_by = "RTR-GRAD-SLOTS"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        d_logits[:, 1::2] = 0.0
        return d_logits, np.zeros_like(bias)


class SlopeOverflows(TrainedRouter):
    """The slope is exp(z) / (1 + exp(z))^2, which is inf / inf for large logits."""

    killed_by = "RTR-GRAD-FAR"

    def slopes(self, logits: Array, scores: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.exp(logits) / np.square(1.0 + np.exp(logits))


class ThroughLogarithms(TrainedRouter):
    """The weights are differentiated as a softmax of log s, which is -inf where s is 0."""

    killed_by = "RTR-GRAD-FAR"

    def d_scores(self, scores: Array, cotangent: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = softmax(np.log(scores))
            pull = cotangent - (cotangent * weights).sum(axis=1, keepdims=True)
            return weights * pull / scores


class MaskedByAProduct(TrainedRouter):
    """Logits that were not chosen are multiplied by 0, which makes an infinite one NaN."""

    killed_by = "RTR-GRAD-FAR"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        with np.errstate(invalid="ignore"):
            return d_logits + 0.0 * logits, np.zeros_like(bias)


class NaNSpreads(TrainedRouter):
    """A term of the batch that is 0 times a sum over all tokens joins every gradient."""

    killed_by = "RTR-GRAD-NAN"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        return np.where(d_logits != 0.0, d_logits + 0.0 * d_logits.sum(), 0.0), np.zeros_like(bias)


class BiasGradientTimesZero(TrainedRouter):
    """The bias's gradient is its sum over tokens times 0, which is NaN beside padding."""

    killed_by = "RTR-GRAD-NAN"

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        return d_logits, 0.0 * d_logits.sum(axis=0)
