"""Mistakes that a sequence of calls has to show; docs/balancer.md prints the shortest ones."""

from __future__ import annotations

from typing import Any

from properties.protocol import Array, Routing
from tests.mutants import balancing_counts as counts
from tests.mutants import balancing_state as state
from tests.mutants.balancing_state import Keeps, Kept


class EvaluationLeak(Keeps):
    """Tokens of an evaluation are counted."""

    balancer_class = state.EvaluationCounted.balancer_class


class PaddingCounted(Keeps):
    """Tokens that a mask leaves out are counted."""

    balancer_class = counts.PaddingCounted.balancer_class


class DoubleCounting(Keeps):
    """Every token is counted twice, which no quantile shows."""

    class balancer_class(Kept):  # noqa: N801
        def add(self, r_MN: Array) -> None:
            super().add(r_MN)
            super().add(r_MN)


class Float32Counts(Keeps):
    """Counts are kept in float32."""

    balancer_class = counts.CountsInFloat32.balancer_class


class MicroBatchReset(Keeps):
    """Each micro-batch starts the counts anew."""

    balancer_class = counts.ResetByEach.balancer_class


class LostBias(Keeps):
    """Loading a state leaves the bias as it is."""

    balancer_class = state.BiasNotLoaded.balancer_class


class UpdateInsideForward(Keeps):
    """Every training micro-batch ends with an update."""

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, *, training: bool = True, **options: Any) -> Routing:
            routing = super().observe(logits_MN, training=training, **options)
            if training:
                self.update()
            return routing


class StaleRange(Keeps):
    """The range follows updates, but not a bias that is loaded."""

    balancer_class = counts.RangeOfTheLastUpdate.balancer_class


class RecomputationCounted(Keeps):
    """Activation checkpointing counts its tokens twice."""

    balancer_class = counts.RecomputationCounted.balancer_class


class BiasZeroed(Keeps):
    """An update with nothing counted, after a real one, sets the bias to 0."""

    balancer_class = counts.ZeroedByEmptyUpdate.balancer_class


class RefusesAllExperts(Keeps):
    """With K = N the cutoff of a token is looked for, and there is none."""

    class balancer_class(Kept):  # noqa: N801
        def observe(self, logits_MN: Array, **options: Any) -> Routing:
            routing = super().observe(logits_MN, **options)
            if routing.cutoff is None:
                raise IndexError("index is out of bounds for dimension 1")
            return routing


class CastRoundsBias(Keeps):
    """A cast of the module to bfloat16 and back rounds the bias."""

    balancer_class = counts.CastRoundsBias.balancer_class
