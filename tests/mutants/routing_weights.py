"""Routers with wrong weights or cutoffs, each by the smallest change from a correct one.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from tests.mutants.routing import Float32Router, Router, in_bfloat16, normalised, softmax


class WeightsFromBiased(Router):
    """The biased scores weigh."""

    killed_by = "RTR-STEER"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return normalised(np.take_along_axis(self.biased(scores, bias), ids, axis=1))


class RecoveredWeights(Float32Router):
    """Scores are recovered as (s + b) - b, without the digits that b pushed out."""

    killed_by = "RTR-WEIGHTS"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        finite = np.where(np.isfinite(bias), bias, 0.0).astype(bias.dtype)
        recovered = (scores + finite) - finite
        return normalised(np.take_along_axis(recovered, ids, axis=1))


class RecoveredInBFloat16(Float32Router):
    """Scores are recovered as (s + b) - b in bfloat16."""

    killed_by = "RTR-STEER"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        finite = np.where(np.isfinite(bias), bias, 0.0).astype(bias.dtype)
        recovered = in_bfloat16(in_bfloat16(scores + finite) - finite)
        return normalised(np.take_along_axis(recovered, ids, axis=1))


class SoftmaxWeights(Router):
    """Softmax over the chosen logits weighs, as in earlier mixtures of experts."""

    killed_by = "RTR-WEIGHTS"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        chosen = np.take_along_axis(logits, routed.expert_ids, axis=1)
        return routed._replace(weights=softmax(chosen))


class UniformWeights(Router):
    """Control: each of the K experts weighs 1/K."""

    killed_by = "RTR-WEIGHTS"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return np.full(ids.shape, 1.0 / ids.shape[1])


class RandomWeights(Router):
    """Control: normalised random weights."""

    killed_by = "RTR-WEIGHTS"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return normalised(np.random.default_rng(0).random(ids.shape))


class LogitsAsWeights(Router):
    """Control: the input comes back as the output."""

    killed_by = "RTR-WEIGHTS"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        return routed._replace(weights=np.take_along_axis(logits, routed.expert_ids, axis=1))


class RenormalisedOverAll(Router):
    """Weights are divided by the sum of all N scores."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return np.take_along_axis(normalised(scores), ids, axis=1)


class NotRenormalised(Router):
    """The chosen scores weigh as they are."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return np.take_along_axis(scores, ids, axis=1)


class RoutedScaleTwice(Router):
    """A scale that belongs to the combine is in the weights already: they sum to 2."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return 2.0 * super().weigh(scores, bias, ids)


class SumInBFloat16(Float32Router):
    """The sum that normalises is accumulated in bfloat16."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        chosen = np.take_along_axis(scores, ids, axis=1)
        return chosen / (in_bfloat16(chosen.sum(axis=1, keepdims=True)) + np.float32(1e-20))


class EpsilonTooLarge(Router):
    """The normaliser's epsilon is 1e-2."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return normalised(np.take_along_axis(scores, ids, axis=1), 1e-2)


class EpsilonOfTheNorm(Float32Router):
    """The normaliser's epsilon is 1e-12, which only scores near it can tell from 1e-20."""

    killed_by = "RTR-WEIGHTS"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return normalised(np.take_along_axis(scores, ids, axis=1), 1e-12)


class EpsilonForgotten(Float32Router):
    """Nothing is added to the sum, so scores that underflow give 0/0."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return normalised(np.take_along_axis(scores, ids, axis=1), 0.0)


class ZeroWeights(Router):
    """Control: all weights are 0."""

    killed_by = "RTR-SUM"

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return np.zeros(ids.shape)


# The cutoff ----------------------------------------------------------------------------------


class CutoffIsTheKth(Router):
    """The cutoff is the K-th largest: the worst expert chosen, instead of the best left out."""

    killed_by = "RTR-CUTOFF"

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return super().cutoff(scores, biased, top_k - 1)


class CutoffOfUnbiasedScores(Router):
    """The cutoff is the (K+1)-th largest score, without the bias."""

    killed_by = "RTR-CUTOFF"

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return super().cutoff(scores, scores, top_k)


class CutoffInBFloat16(Float32Router):
    """The cutoff is rounded to bfloat16, on its way through the hidden states' format."""

    killed_by = "RTR-CUTOFF"

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return in_bfloat16(super().cutoff(scores, biased, top_k))


class ZeroCutoff(Router):
    """Control: every cutoff is 0."""

    killed_by = "RTR-CUTOFF"

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return np.zeros(len(scores))


class NoCutoff(Router):
    """Not wrong: a router that returns no cutoff has not passed what is asked of cutoffs."""

    killed_by = "RTR-CUTOFF"
    verdict = "not offered"

    def cutoff(self, scores: Array, biased: Array, top_k: int) -> Any:
        return None
