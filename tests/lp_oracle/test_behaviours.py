"""What is pinned besides jams: every value again, by hand or by enumeration.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from lp_oracle import (
    FRACTION_OFF_MINIMISER,
    FRACTION_RISES,
    INSTANCES,
    LOCAL_MEAN,
    PRICE_WAR,
    TOKEN_RULES,
    UNEVEN_LOADS,
    certify_routing,
    coordinate_descent,
    expert_step,
    token_step,
)
from lp_oracle.behaviours import OffMinimiser
from tests.lp_oracle.drawing import best_value, is_generic

OFF = pytest.mark.parametrize(
    "instance", [FRACTION_OFF_MINIMISER, FRACTION_RISES], ids=["ends above", "rises"]
)


@OFF
@pytest.mark.parametrize("token_rule", TOKEN_RULES)
def test_rules_that_do_not_minimise(instance: OffMinimiser, token_rule: str) -> None:
    scores, top_k = instance.scores, instance.top_k
    assert is_generic(scores)
    assert best_value(scores, top_k) == instance.optimum
    for expert_rule, end in instance.ends.items():
        trace = coordinate_descent(
            scores,
            top_k,
            token_rule=token_rule,  # type: ignore[arg-type]
            expert_rule=expert_rule,
        )
        assert not trace.minimises
        assert trace.outcome == "jammed"
        assert trace.dual_values[0] == instance.start
        assert trace.dual_values[-1] == end > instance.optimum
    minimising = coordinate_descent(
        scores,
        top_k,
        token_rule=token_rule,  # type: ignore[arg-type]
        expert_rule="q",
    )
    assert minimising.dual_values[-1] == instance.optimum


def test_one_instance_starts_at_the_optimum_and_leaves_it() -> None:
    assert FRACTION_RISES.start == FRACTION_RISES.optimum < min(FRACTION_RISES.ends.values())


def test_uneven_loads() -> None:
    scores, top_k = UNEVEN_LOADS.scores, UNEVEN_LOADS.top_k
    assert best_value(scores, top_k) == UNEVEN_LOADS.optimum
    trace = coordinate_descent(
        scores,
        top_k,
        token_rule=UNEVEN_LOADS.token_rule,
        expert_rule=UNEVEN_LOADS.expert_rule,
    )
    assert trace.dual_values == UNEVEN_LOADS.dual_values
    assert trace.outcome == "certified"
    before = certify_routing(scores, [0] * 4, top_k)
    after = certify_routing(scores, -trace.increments[0], top_k)
    assert (tuple(before.loads), tuple(after.loads)) == UNEVEN_LOADS.loads
    assert min(before.margin, after.margin) > 0
    assert max(after.loads) / min(after.loads) > max(before.loads) / min(before.loads)


def test_local_mean() -> None:
    """k/n = 1/2: Eq. 14's quantile is the median of s - alpha, and here alpha = 0."""
    scores = LOCAL_MEAN.scores
    assert best_value(scores, LOCAL_MEAN.top_k) == LOCAL_MEAN.optimum
    assert not token_step(scores, [0, 0], LOCAL_MEAN.top_k, rule="k+1").any()
    assert tuple(np.median(scores, axis=0)) == LOCAL_MEAN.pooled
    medians = [np.median(scores[list(part)], axis=0) for part in LOCAL_MEAN.parts]
    assert tuple((medians[0] + medians[1]) / 2) == LOCAL_MEAN.averaged
    for beta, loads, optimal in (
        (LOCAL_MEAN.pooled, LOCAL_MEAN.pooled_loads, True),
        (LOCAL_MEAN.averaged, LOCAL_MEAN.averaged_loads, False),
    ):
        verdict = certify_routing(scores, [-value for value in beta], LOCAL_MEAN.top_k)
        assert tuple(verdict.loads) == loads
        assert verdict.optimal is optimal
        assert verdict.margin > 0


@pytest.mark.parametrize("size", [2, 3, 10, 50])
def test_price_war_takes_one_unit_per_round(size: int) -> None:
    scores = PRICE_WAR.scores(size)
    assert best_value(scores, PRICE_WAR.top_k) == PRICE_WAR.optimum(size)
    values = sorted(
        int(scores[np.arange(4), list(order)].sum()) for order in itertools.permutations(range(4))
    )
    assert values[-1] - values[-2] == 1
    trace = coordinate_descent(
        scores,
        PRICE_WAR.top_k,
        token_rule=PRICE_WAR.token_rule,
        expert_rule=PRICE_WAR.expert_rule,
        rounds=size,
    )
    excess = [value - PRICE_WAR.optimum(size) for value in trace.dual_values]
    assert excess == list(range(size, -1, -1))


def test_price_war_needs_near_ties() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        PRICE_WAR.scores(1)


def test_interior_rules_end_the_price_war_at_once() -> None:
    trace = coordinate_descent(
        PRICE_WAR.scores(1000), 1, token_rule="midpoint", expert_rule="midpoint", rounds=2
    )
    assert trace.outcome == "certified"


def test_half_a_step_ends_the_alternation() -> None:
    scores = INSTANCES["ALTERNATING_LEAST"].scores
    alpha = token_step(scores, [0, 0], 1, rule="k+1")
    beta = expert_step(scores, alpha, 1, rule="q")
    assert not certify_routing(scores, -beta, 1).optimal
    assert certify_routing(scores, -beta * Fraction(1, 2), 1).optimal
