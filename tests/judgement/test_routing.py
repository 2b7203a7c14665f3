"""What is a legal routing: near-ties have several right answers, and conventions are respected."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from properties.errors import ViolationError
from properties.execution import judge
from properties.judgement.routing import cutoff_ball, require_selection
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Array, Conventions, Precision, Routing
from properties.registry import catalogue, find
from properties.rounding import Ball
from properties.subject import Routed
from tests.mutants.routing import Float32Router, Router, normalised


class BiasSubtracts(Float32Router):
    """Chooses by s - b and says so."""

    conventions = Conventions(bias_sign=-1)

    def biased(self, scores: Array, bias: Array) -> Array:
        return scores - bias


class BiasedLogits(Float32Router):
    """Adds the bias to logits; ties fall to the lowest id."""

    conventions = Conventions(score_domain="logit", ties="lowest_index")

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        scores, biased = self.scores(logits), logits + bias
        ids = self.select(biased, top_k)
        cutoff = self.cutoff(scores, biased, top_k) if top_k < len(bias) else None
        return Routing(ids, self.weigh(scores, bias, ids), cutoff)


class ScoreAlone(Float32Router):
    """A single expert weighs its score, and epsilon is 1e-9."""

    conventions = Conventions(top1_renormalised=False, weight_epsilon=1e-9)

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        chosen = np.take_along_axis(scores, ids, axis=1)
        return chosen if ids.shape[1] == 1 else normalised(chosen, 1e-9)


class NoEpsilon(Float32Router):
    """Divides by the bare sum, which may be 0."""

    conventions = Conventions(weight_epsilon=0.0)

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return normalised(np.take_along_axis(scores, ids, axis=1), 0.0)


class AnyOrder(Router):
    """Slots in the order of the ids, ties to the highest id, 16-bit ids."""

    def select(self, biased: Array, top_k: int) -> Array:
        ids = biased.shape[1] - 1 - super().select(biased[:, ::-1], top_k)
        return np.sort(ids, axis=1).astype(np.uint16)


class BFloat16Weights(Float32Router):
    """Routes in float32 and rounds the weights to the storage format."""

    precision = Precision(storage="bfloat16")

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        return super().weigh(scores, bias, ids).astype(ml_dtypes.bfloat16)


class ByExp2(Float32Router):
    """exp2 instead of exp, a product with a reciprocal instead of quotients, sums slot by slot."""

    def scores(self, logits: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.float32(1) / (np.float32(1) + np.exp2(-logits * np.float32(np.log2(np.e))))

    def weigh(self, scores: Array, bias: Array, ids: Array) -> Array:
        chosen = np.take_along_axis(scores, ids, axis=1)
        total = np.full(len(chosen), 1e-20, np.float32)
        for slot in range(ids.shape[1]):
            total += chosen[:, slot]
        return chosen * (np.float32(1) / total)[:, None]


GOOD = [
    BiasSubtracts,
    BiasedLogits,
    ScoreAlone,
    NoEpsilon,
    AnyOrder,
    BFloat16Weights,
    ByExp2,
]


@pytest.mark.parametrize("router", GOOD)
def test_correct_routers_of_every_convention_pass(router: Any) -> None:
    subject = subject_of(router())
    for entry in catalogue().values():
        if entry.id.startswith("RTR-") and entry.needs == ("route",):
            outcome = judge(entry, subject, LANES["quick"])
            assert outcome.verdict == "passed", f"{entry.id}: {outcome.message}"


class RefusesAllExperts(Float32Router):
    """Has nothing to balance with K = N, and says so."""

    error: Exception = ValueError("top_k = N leaves no cutoff; there is nothing to balance")

    def quantile_update(self, logits: Array, bias: Array, *, top_k: int, mask: Any = None) -> Array:
        raise self.error


class FailsAllExperts(RefusesAllExperts):
    """Runs into an index that is not there."""

    error = IndexError("index 3 is out of bounds for axis 1 with size 3")


class RefusesWithoutAWord(RefusesAllExperts):
    """Refuses, and does not say why."""

    error = ValueError("")


@pytest.mark.parametrize(
    ("router", "verdict"),
    [
        (RefusesAllExperts, "passed"),
        (FailsAllExperts, "failed"),
        (RefusesWithoutAWord, "failed"),
    ],
)
def test_an_update_of_all_experts_may_be_refused_in_words(router: Any, verdict: str) -> None:
    outcome = judge(find("RTR-ALL"), subject_of(router()), LANES["quick"])
    assert outcome.verdict == verdict, outcome.message


def judged(ids: list[int], value: list[float], radius: float) -> None:
    subject = subject_of(Router())
    biased = Ball(np.array([value]), radius, subject.routing_arithmetic())
    weights = np.zeros((1, len(ids)))
    require_selection(subject, Routed(np.array([ids]), weights, None, "float64"), biased)


@pytest.mark.parametrize("ids", [[0, 1], [1, 0], [0, 2]])
def test_either_of_two_near_ties_is_legal(ids: list[int]) -> None:
    judged(ids, [3.0, 1.0, 1.15, 0.0], 0.1)


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([0, 1], "token 0 took expert 1 at 1.0 ± 0.1 and left expert 2 at 1.25 ± 0.1"),
        ([2, 2], "token 0 is sent to expert 2 twice"),
        ([0, 4], r"token 0 is sent to expert 4 \(slot 1\), but ids lie in 0 … 3"),
        ([0, -1], "sent to expert -1"),
    ],
)
def test_illegal_selections_are_told_apart(ids: list[int], told: str) -> None:
    with pytest.raises(ViolationError, match=told):
        judged(ids, [3.0, 1.0, 1.25, 0.0], 0.1)


SHUT_OUT = [0.5, -np.inf, 0.25, -np.inf]


@pytest.mark.parametrize("ids", [[0, 2], [0, 1, 2], [0, 2, 3], [1, 0, 2, 3]])
def test_shut_out_experts_fill_up_where_candidates_run_out(ids: list[int]) -> None:
    judged(ids, SHUT_OUT, 0.0)


@pytest.mark.parametrize("ids", [[1], [0, 1], [1, 3], [0, 1, 3]])
def test_shut_out_experts_are_not_chosen_before_that(ids: list[int]) -> None:
    with pytest.raises(ViolationError, match=r"took expert 1 at -inf ± 0 and left expert"):
        judged(ids, SHUT_OUT, 0.0)


def test_the_cutoff_reaches_from_the_lower_ends_to_the_upper_ends() -> None:
    subject = subject_of(Router())
    value = np.array([[0.0, 3.0, 2.0, 1.5], [1.0, -np.inf, -np.inf, -np.inf]])
    radius = np.array([[0.0, 0.0, 0.25, 1.0], [0.1, 0.0, 0.0, 0.0]])
    expected = cutoff_ball(Ball(value, radius, subject.routing_arithmetic()), 1)
    # The second largest of (0, 3, 1.75, 0.5) is 1.75, that of (0, 3, 2.25, 2.5) is 2.5.
    np.testing.assert_array_equal(expected.value, [2.0, -np.inf])
    np.testing.assert_array_equal(expected.radius, [0.5, 0.0])
