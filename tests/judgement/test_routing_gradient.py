"""Correct routers that differ in how they differentiate, order slots or form groups all pass."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from impl_torch.adapter import TorchImplementation
from properties.errors import ViolationError
from properties.execution import judge
from properties.judgement.routing_gradient import (
    complement,
    require_gradient,
    require_no_gradient,
)
from properties.judgement.routing_groups import open_groups, require_grouped_selection
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Array, Conventions, Precision, Routing
from properties.registry import catalogue
from properties.rounding import Arithmetic, Ball
from properties.subject import Routed
from tests.mutants.routing_gradient import Float32TrainedRouter, TrainedRouter
from tests.mutants.routing_symmetry import GroupedRouter


class PlainTorch(TorchImplementation):
    """Stock operations under autograd: the derivative of a sigmoid comes from its output."""

    name, version = "plain torch", "1"

    def route_forward(self, logits: Tensor, bias: Tensor, *, top_k: int) -> Any:
        scores = torch.sigmoid(logits)
        ids = (scores + bias).topk(top_k, dim=-1).indices
        chosen = scores.gather(-1, ids)
        return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20), None


class SlotsById(PlainTorch):
    """The experts of a token in the order of their ids, as a view of K + 1 columns."""

    def route_forward(self, logits: Tensor, bias: Tensor, *, top_k: int) -> Any:
        scores = torch.sigmoid(logits)
        ids = (scores + bias).topk(top_k, dim=-1, sorted=False).indices.sort(-1).values
        wide = torch.cat((ids, ids[:, :1]), dim=1)[:, :top_k]
        chosen = scores.gather(-1, wide)
        return wide, chosen / (chosen.sum(-1, keepdim=True) + 1e-20), None


class BFloat16Logits(PlainTorch):
    """Casts the logits to storage, and so the gradient, too."""

    precision = Precision(storage="bfloat16")

    def route_forward(self, logits: Tensor, bias: Tensor, *, top_k: int) -> Any:
        return super().route_forward(logits.bfloat16().float(), bias, top_k=top_k)


class ScoreAlone(PlainTorch):
    """A single expert weighs its score."""

    conventions = Conventions(top1_renormalised=False)

    def route_forward(self, logits: Tensor, bias: Tensor, *, top_k: int) -> Any:
        if top_k > 1:
            return super().route_forward(logits, bias, top_k=top_k)
        scores = torch.sigmoid(logits)
        ids = (scores + bias).topk(1, dim=-1).indices
        return ids, scores.gather(-1, ids), None


class NoBiasGradient(Float32TrainedRouter):
    """Slopes that keep their relative accuracy, and None for the bias, which is no parameter."""

    def slopes(self, logits: Array, scores: Array) -> Array:
        return scores * self.scores(-logits)

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Any]:
        return d_logits, None


class SubtractsTheBias(Float32TrainedRouter):
    """Chooses by s - b and says so."""

    conventions = Conventions(bias_sign=-1)

    def biased(self, scores: Array, bias: Array) -> Array:
        return scores - bias


class StoredGradient(Float32TrainedRouter):
    """Returns the gradient in the storage format."""

    precision = Precision(storage="bfloat16")

    def finished(self, logits: Array, bias: Array, d_logits: Array) -> tuple[Array, Array]:
        return d_logits.astype(ml_dtypes.bfloat16), np.zeros_like(bias)


class GroupsWithCutoff(GroupedRouter):
    """Returns the best candidate left out, and -inf where there is none."""

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        limits = {"num_groups": num_groups, "top_groups": top_groups}
        routed = super().route_grouped(logits, bias, top_k=top_k, **limits)
        if top_k == len(bias):
            return routed._replace(cutoff=np.full(len(logits), -np.inf))
        more = super().route_grouped(logits, bias, top_k=top_k + 1, **limits)
        last = more.expert_ids[:, -1]
        open_groups = len(bias) // num_groups * top_groups
        cutoff = (self.scores(logits) + bias)[np.arange(len(logits)), last]
        return routed._replace(cutoff=np.where(top_k < open_groups, cutoff, -np.inf))


GRADIENTS = [
    TrainedRouter,
    PlainTorch,
    SlotsById,
    BFloat16Logits,
    ScoreAlone,
    NoBiasGradient,
    SubtractsTheBias,
    StoredGradient,
]


def require_passes(implementation: Any, needed: str) -> None:
    subject = subject_of(implementation)
    judged = [entry for entry in catalogue().values() if needed in entry.needs]
    assert judged
    for entry in judged:
        outcome = judge(entry, subject, LANES["quick"])
        assert outcome.verdict == "passed", f"{entry.id}: {outcome.message}"


@pytest.mark.parametrize("router", GRADIENTS)
def test_correct_gradients_pass(router: Any) -> None:
    require_passes(router(), "route_vjp")


@pytest.mark.parametrize("router", [GroupedRouter, GroupsWithCutoff])
def test_correct_groups_pass(router: Any) -> None:
    require_passes(router(), "route_grouped")


def test_the_smallest_gradient_elsewhere_is_told() -> None:
    routed = Routed(np.array([[2, 0]]), np.full((1, 2), 0.5), None, "float64")
    require_no_gradient(routed, np.array([[1.0, 0.0, -1.0]]), "d_logits")
    with pytest.raises(ViolationError, match="not sent to expert 1, but its logit there has"):
        require_no_gradient(routed, np.array([[1.0, 5e-324, -1.0]]), "d_logits")


def test_groups_that_nearly_tie_may_both_be_open() -> None:
    arithmetic = subject_of(TrainedRouter()).routing_arithmetic()
    totals = Ball(np.array([[3.0, 1.0, 1.25, 0.0]]), 0.2, arithmetic)
    opened = open_groups(totals, 2)
    np.testing.assert_array_equal(opened.certain, [[True, False, False, False]])
    np.testing.assert_array_equal(opened.possible, [[True, True, True, False]])
    tied = open_groups(Ball(np.ones((1, 3)), 0.0, arithmetic), 1)
    assert not tied.certain.any()
    assert tied.possible.all()


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([4, 5], "token 0 is sent to group 2, which 2 others surpass"),
        ([0, 2], None),
        ([0, 1], "token 0 took expert 1 at 1.0 ± 0 and left expert 2"),
        ([2, 3], "token 0 took expert 3 at 2.0 ± 0 and left expert 0"),
        ([2, 2], "sent to expert 2 twice"),
    ],
)
def test_illegal_choices_of_groups_are_told_apart(ids: list[int], told: str | None) -> None:
    # Groups (4, 1), (3, 2) and (9, -9): the last has the best expert, but the least total.
    subject = subject_of(TrainedRouter())
    biased = Ball(np.array([[4.0, 1.0, 3.0, 2.0, 9.0, -9.0]]), 0.0, subject.routing_arithmetic())
    routed = Routed(np.array([ids]), np.zeros((1, 2)), None, "float64")
    totals = Ball(np.array([[5.0, 5.0, 0.0]]), 0.0, subject.routing_arithmetic())
    opened = open_groups(totals, 2)
    if told is None:
        require_grouped_selection(subject, routed, biased, opened, 2)
    else:
        with pytest.raises(ViolationError, match=told):
            require_grouped_selection(subject, routed, biased, opened, 2)


@pytest.mark.parametrize(("epsilon", "excused"), [(0.0, True), (1e-20, False)])
def test_a_cotangent_over_s_that_overflows_is_excused_without_an_epsilon(
    epsilon: float, excused: bool
) -> None:
    """Logits of -87: S = 3e-38, and 40 / S is beyond float32."""

    class Plain(PlainTorch):
        conventions = Conventions(weight_epsilon=epsilon)

    subject = subject_of(Plain())
    logits, cotangent = np.full((1, 2), -87.0), np.array([[10.0, 30.0]])
    routed = subject.route(logits, np.zeros(2), top_k=2)
    lost = np.full((1, 2), np.nan)
    if excused:
        require_gradient(subject, logits, routed, cotangent, lost, "d_logits")
    else:
        with pytest.raises(ViolationError):
            require_gradient(subject, logits, routed, cotangent, lost, "d_logits")


def test_a_logit_that_may_be_anything_leaves_its_gradient_open() -> None:
    arithmetic = Arithmetic("float16", "float16", "float32")
    ball = complement(Ball(np.array([np.nan, 0.0]), np.array([np.inf, 0.0]), arithmetic))
    assert ball.radius[0] == np.inf
    assert ball.radius[1] < 1e-2
