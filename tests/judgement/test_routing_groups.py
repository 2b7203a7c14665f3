"""Groups whose totals are infinite or undecided, and candidates that run out."""

from __future__ import annotations

import numpy as np
import pytest

from properties.errors import ViolationError
from properties.judgement.routing import scored
from properties.judgement.routing_groups import group_totals, open_groups, require_grouped
from properties.loading import subject_of
from properties.protocol import Array, Conventions
from properties.reference import Reference
from properties.subject import Routed
from reference_numpy.routing import combine_weights, scores

INF = np.inf


class OnLogits(Reference):
    """Adds the bias to logits."""

    conventions = Conventions(score_domain="logit")


def judge(logits: Array, ids: list[int], num_groups: int, router: type = OnLogits) -> None:
    """One token, one open group, no bias, and no cutoff."""
    subject, bias = subject_of(router()), np.zeros(logits.shape[1])
    weights = combine_weights(scores(logits), np.array([ids]))
    routed = Routed(np.array([ids]), weights, None, "float64")
    known = scored(subject, logits, bias)
    require_grouped(subject, routed, logits, known, (num_groups, 1), "in groups")


@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 1, 4]])
def test_any_expert_fills_up_where_an_open_group_has_too_few_above_minus_infinity(ids) -> None:
    judge(np.array([[3.0, 2.0, -INF, 1.0, 0.0, 0.5]]), ids, 2)


@pytest.mark.parametrize("ids", [[0], [2]])
def test_a_total_of_opposite_infinities_leaves_the_group_open_to_choice(ids) -> None:
    judge(np.array([[INF, -INF, 1.0, 0.0]]), ids, 2)


@pytest.mark.parametrize("router", [OnLogits, Reference])
def test_other_groups_are_as_certain_as_ever(router) -> None:
    logits = np.array([[3.0, 2.0, 1.0, 0.0]])
    judge(logits, [1, 0], 2, router)
    with pytest.raises(ViolationError, match="group 1, which 1 others surpass"):
        judge(logits, [2, 3], 2, router)


def test_scores_of_infinite_logits_have_finite_totals() -> None:
    judge(np.array([[INF, -INF, 1.0, 2.0]]), [2, 3], 2, Reference)
    with pytest.raises(ViolationError, match="group 0, which 1 others surpass"):
        judge(np.array([[INF, -INF, 1.0, 2.0]]), [0, 1], 2, Reference)


def test_experts_shut_out_for_good_leave_certain_totals() -> None:
    subject = subject_of(Reference())
    bias = np.array([0.0, 0.5, -INF, 0.0, 0.0, -INF])
    totals = group_totals(scored(subject, np.zeros((1, 6)), bias).biased, 2)
    np.testing.assert_allclose(totals.value, [[1.5, 1.0]])
    assert np.isfinite(totals.radius).all()
    opened = open_groups(totals, 1)
    assert opened.certain.tolist() == opened.possible.tolist() == [[True, False]]


def test_ties_among_certain_groups_fall_to_the_lowest_ids_where_that_is_declared() -> None:
    logits = np.array([[0.0, 0.0, 0.0, -1e8, -1e8, -1e8]])
    judge(logits, [1, 0], 2, Reference)
    judge(logits, [2, 1], 2, OnLogits)
    with pytest.raises(ViolationError, match="lowest ids"):
        judge(logits, [2, 1], 2, Reference)
