"""Routers that are right on ordinary input, and wrong at NaN, infinities, K = 1 and K = N.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from tests.mutants.routing import Float32Router, Router, in_bfloat16, normalised, softmax


class NaNSpreadsOverTheBatch(Router):
    """Scores are centred by the batch's mean and back, so one NaN reaches all tokens."""

    killed_by = "RTR-NAN"

    def biased(self, scores: Array, bias: Array) -> Array:
        mean = scores.mean() if scores.size else 0.0
        return (scores - mean) + bias + mean


class NoIdOnNaN(Router):
    """A search by comparisons finds no expert in a row with NaN and leaves -1."""

    killed_by = "RTR-NAN"

    def select(self, biased: Array, top_k: int) -> Array:
        ids = super().select(biased, top_k)
        return np.where(np.isnan(biased).any(axis=1, keepdims=True), -1, ids)


class IdPastTheLastOnNaN(Router):
    """A search by comparisons ends past the last expert in a row with NaN."""

    killed_by = "RTR-NAN"

    def select(self, biased: Array, top_k: int) -> Array:
        ids = super().select(biased, top_k)
        return np.where(np.isnan(biased).any(axis=1, keepdims=True), biased.shape[1], ids)


class TokenAfterNaN(Router):
    """The token after one with NaN is left out of the kernel's loop, and gets expert 0 on."""

    killed_by = "RTR-NAN"

    def select(self, biased: Array, top_k: int) -> Array:
        ids = super().select(biased, top_k)
        after = np.roll(np.isnan(biased).any(axis=1), 1)
        return np.where(after[:, None], np.arange(top_k), ids)


class InfinityBecomesZero(Router):
    """Biased scores that are not finite are set to 0."""

    killed_by = "RTR-NEGINF"

    def biased(self, scores: Array, bias: Array) -> Array:
        biased = super().biased(scores, bias)
        return np.where(np.isfinite(biased), biased, 0.0)


class InfinityIsALargeNumber(Router):
    """-1e4 stands in for -inf, and other biases may lie below it."""

    killed_by = "RTR-NEGINF"

    def biased(self, scores: Array, bias: Array) -> Array:
        return scores + np.where(bias == -np.inf, -1e4, bias)


class InfinityTimesZero(Router):
    """An expert that is shut out is masked by a product, and gets NaN, which argsort puts first."""

    killed_by = "RTR-NEGINF"

    def select(self, biased: Array, top_k: int) -> Array:
        first = np.where(np.isneginf(biased), np.inf, biased)
        return super().select(first, top_k)


class SigmoidOverflows(Router):
    """The sigmoid is exp(z) / (1 + exp(z)), which is inf / inf for large logits."""

    killed_by = "RTR-INFINITE"

    def scores(self, logits: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.exp(logits) / (1.0 + np.exp(logits))


class RelativeToTheLargestLogit(Router):
    """Logits are taken relative to the row's largest and back, and inf - inf is NaN."""

    killed_by = "RTR-INFINITE"

    def scores(self, logits: Array) -> Array:
        largest = np.max(logits, axis=1, keepdims=True)
        exact = np.where(np.isinf(largest), largest, 0.0)
        with np.errstate(invalid="ignore"):
            return super().scores((logits - exact) + exact)


class ThroughAnIdentityMatrix(Router):
    """Logits pass through a product with the identity, where an infinite one makes its row NaN."""

    killed_by = "RTR-INFINITE"

    def scores(self, logits: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            return super().scores(logits @ np.eye(logits.shape[1]))


class InfiniteLogitsAreLargeNumbers(Router):
    """Infinite logits are taken as ±20, whose scores are not 0 and 1."""

    killed_by = "RTR-INFINITE"

    def scores(self, logits: Array) -> Array:
        return super().scores(np.where(np.isinf(logits), 20.0 * np.sign(logits), logits))


class BiasedScoresInBFloat16(Float32Router):
    """Biased scores are kept in bfloat16, whose steps are 1/4 at 34.5."""

    killed_by = "RTR-SMALLGAP"

    def biased(self, scores: Array, bias: Array) -> Array:
        return in_bfloat16(super().biased(scores, bias))


class BiasedScoresInFloat16(Float32Router):
    """Biased scores are kept in float16, whose steps are 1/32 at 34.5."""

    killed_by = "RTR-SMALLGAP"

    def biased(self, scores: Array, bias: Array) -> Array:
        return super().biased(scores, bias).astype(np.float16).astype(np.float32)


class PackedWithTheId(Float32Router):
    """The last ten bits of a biased score are given to the id that is sorted along with it."""

    killed_by = "RTR-SMALLGAP"

    def biased(self, scores: Array, bias: Array) -> Array:
        bits = super().biased(scores, bias).astype(np.float32).view(np.int32)
        return (bits & ~np.int32(1023)).view(np.float32)


class SingleWeightIsOne(Router):
    """With K = 1 the weight is 1, whatever the score."""

    killed_by = "RTR-ONE"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        weights = super().weigh(scores, bias, ids)
        return np.ones_like(weights) if ids.shape[1] == 1 else weights


class SingleWeightIsTheScore(Router):
    """With K = 1 the weight is the score, and that is not declared."""

    killed_by = "RTR-ONE"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        chosen = np.take_along_axis(scores, ids, axis=1)
        return chosen if ids.shape[1] == 1 else normalised(chosen)


class SoftmaxOverAll(Router):
    """With K = N the router is taken for a dense one: a softmax over all logits."""

    killed_by = "RTR-ALL"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        if top_k < len(bias):
            return routed
        weights = np.take_along_axis(softmax(logits), routed.expert_ids, axis=1)
        return routed._replace(weights=weights)


class KthForTheMissingCutoff(Router):
    """With K = N the K-th score stands in for the (K+1)-th."""

    killed_by = "RTR-ALL"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        if top_k < len(bias):
            return routed
        biased = self.biased(self.scores(logits), bias)
        return routed._replace(cutoff=biased.min(axis=1))


class OneMoreThanThereIs(Router):
    """The K + 1 best are asked for, which N experts do not have when K = N."""

    killed_by = "RTR-ALL"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        biased = self.biased(self.scores(logits), bias)
        np.partition(-biased, top_k, axis=1)
        return super().route(logits, bias, top_k=top_k)


class CentresWhereNothingMoves(Router):
    """With K = N the update only centres the bias."""

    killed_by = "RTR-ALL"

    def quantile_update(self, logits: Array, bias: Array, *, top_k: int, mask: Any = None) -> Array:
        return bias - bias.mean()
