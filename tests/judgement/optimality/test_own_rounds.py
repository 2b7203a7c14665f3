"""The report on an implementation's own rounds names the rule that it follows, and where it stops.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import lp_oracle
import reference_numpy as reference
from properties.execution import Outcome, judge
from properties.figures import Spread, percentage
from properties.judgement.optimality.behaviour import (
    EXPERT_NAMES,
    RULES,
    TOKEN_NAMES,
    Behaviour,
    Evidence,
)
from properties.judgement.optimality.fixed_points import JAMMING, Pair
from properties.lanes import LANES, Lane
from properties.loading import subject_of
from properties.protocol import Array, Conventions, Precision
from properties.reference import Reference
from properties.registry import find

SHORT = Lane("short", 0.15, random=False)


class HandMade(Reference):
    """Any of the sixteen pairs of rules, in plain NumPy, under any declaration."""

    def __init__(self, pair: Pair, rank: Any = "between") -> None:
        super().__init__()
        self.pair = pair
        self.conventions = Conventions(expert_rank=rank)

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        s_MN, top_k = reference.scores(logits), options["top_k"]
        falling = -np.sort(-(s_MN + bias), axis=1)
        share = top_k / bias.shape[0]
        alpha_M = self.between(falling[:, top_k], falling[:, top_k - 1], self.pair[0], share)
        rising = np.sort(alpha_M[:, None] - s_MN, axis=0)
        load = len(s_MN) * top_k // bias.shape[0]
        return self.centred(self.between(rising[load - 1], rising[load], self.pair[1], 1 - share))

    def between(self, low: Array, high: Array, rule: str, share: float) -> Array:
        """The lower end "k+1" or "q", the upper one "k" or "q+1", or a point between."""
        shares = {"k+1": 0.0, "q": 0.0, "k": 1.0, "q+1": 1.0, "midpoint": 0.5, "linear": share}
        return np.asarray(low + shares[rule] * (high - low))

    def centred(self, estimate: Array) -> Array:
        return np.asarray(estimate - estimate.mean())


class Float32(HandMade):
    """The same in float32."""

    precision = Precision()

    def centred(self, estimate: Array) -> Array:
        return super().centred(estimate).astype(np.float32)


class AnyPointInside(HandMade):
    """Another point of the interval each time: legal, and no rule."""

    def __init__(self) -> None:
        super().__init__(("k+1", "q"))
        self.rng = np.random.default_rng(1)

    def between(self, low: Array, high: Array, rule: str, share: float) -> Array:
        here = self.rng.random(low.shape) if rule == "q" else 0.0
        return np.asarray(low + here * (high - low))


class RankByParity(HandMade):
    """The q-th statistic where m is even, else the (q+1)-th: as a rank rounded in float32 flips."""

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        self.pair = ("k+1", "q" if len(logits) % 2 == 0 else "q+1")
        return super().quantile_update(logits, bias, **options)


class Coarse(HandMade):
    """Differences of the bias are multiples of 1/16, off the interval more often than not."""

    def centred(self, estimate: Array) -> Array:
        return super().centred(np.round(16.0 * estimate) / 16.0)


def judged(implementation: Any, lane: Lane = SHORT) -> Outcome:
    return judge(find("OPT-IMPL"), subject_of(implementation), lane)


def name_of(pair: Pair) -> str:
    return f"{EXPERT_NAMES[pair[1]]} (cutoff: {TOKEN_NAMES[pair[0]]})"


@pytest.mark.parametrize("pair", RULES, ids="/".join)
def test_each_of_the_sixteen_rules_is_named(pair: Pair) -> None:
    outcome = judged(HandMade(pair))
    assert outcome.verdict == "passed", outcome.message
    told, _, fate = outcome.figures["rule"].rpartition(": ")
    corner = ", a corner that can jam" if pair in JAMMING else ""
    assert told == f"reads {name_of(pair)}{corner}"
    assert ("jams on" in fate) == (pair in JAMMING)
    assert ("reaches LP*" in fate) == (pair not in JAMMING)


def test_a_corner_is_reported_with_how_often_it_jams_its_gap_and_its_loads() -> None:
    figures = judged(HandMade(("k+1", "q+1")), LANES["gate"]).figures
    reached = figures["dual reaches LP*"]
    jams = reached["cases"] - reached["sum"]
    assert reached["cases"] == 100
    assert f"jams on {jams:.0f} % of 100 generic batches" in figures["rule"]
    assert 50 <= jams <= 90
    assert f"; 0 on {100 - jams:.0f} %" in figures["relative gap to LP*"]
    assert float(figures["relative gap to LP*"].split("worst ")[1].split(";")[0]) > 1e-3
    assert float(figures["largest |load - q|"].split("worst ")[1].split(";")[0]) >= 1.0


def test_an_interior_rule_is_reported_to_balance_exactly() -> None:
    figures = judged(HandMade(("k+1", "linear"), "interior")).figures
    assert figures["relative gap to LP*"] == "median 0, worst 0; 0 on 100 %"
    assert figures["largest |load - q|"] == "median 0, worst 0; 0 on 100 %"
    assert figures["largest load / q"] == "median 1, worst 1; 1 on 100 %"


@pytest.mark.parametrize("pair", [("k+1", "q"), ("k+1", "q+1"), ("k+1", "linear")], ids="/".join)
def test_rules_are_told_apart_in_float32(pair: Pair) -> None:
    assert f"reads {name_of(pair)}" in judged(Float32(pair)).figures["rule"]


@pytest.mark.parametrize(
    ("pair", "rank"),
    [
        (("k+1", "q+1"), "interior"),
        (("k+1", "q+1"), "q"),
        (("k", "q"), "interior"),
        (("k", "q"), "q"),
    ],
)
def test_a_corner_that_jams_fails_under_a_rank_that_cannot(pair: Pair, rank: str) -> None:
    outcome = judged(HandMade(pair, rank))
    assert outcome.verdict == "failed"
    assert "at rest after" in outcome.message
    assert f"declared {rank!r}" in outcome.message


def test_another_statistic_than_the_declared_one_is_pointed_out() -> None:
    rule = judged(HandMade(("k+1", "q"), "q+1")).figures["rule"]
    assert rule.startswith(f"declares 'q+1', but reads {name_of(('k+1', 'q'))}")


def test_a_rule_without_a_name_is_described() -> None:
    rule = judged(AnyPointInside()).figures["rule"]
    assert rule.startswith("matches none of the known statistics")
    assert "inside the interval on 100 % of updates" in rule


def test_a_rank_that_flips_is_described_by_its_two_statistics() -> None:
    rule = judged(RankByParity(("k+1", "q"))).figures["rule"]
    assert rule.startswith("matches none of the known statistics every time (nearest: ")
    nearest = rule.split("nearest: ")[1].split(")); ")[0]
    assert EXPERT_NAMES["q"] in nearest
    assert EXPERT_NAMES["q+1"] in nearest


def test_an_update_off_the_interval_raises_the_dual() -> None:
    outcome = judged(Coarse(("k+1", "midpoint")))
    assert outcome.verdict == "failed"
    assert "raised the dual" in outcome.message


# The parts -------------------------------------------------------------------------------------


def test_every_pair_of_rules_of_the_oracle_has_names() -> None:
    assert set(RULES) == set(itertools.product(TOKEN_NAMES, EXPERT_NAMES))
    assert set(TOKEN_NAMES) == set(lp_oracle.TOKEN_RULES)
    assert set(EXPERT_NAMES) == set(lp_oracle.EXPERT_RULES)


def test_evidence_keeps_what_agrees_every_time() -> None:
    first = Evidence(frozenset({("k+1", "q"), ("k", "q")}), 1, 1)
    second = Evidence(frozenset({("k+1", "q"), ("k+1", "q+1")}), 1, 0)
    both = second.joined(first)
    assert both == Evidence(frozenset({("k+1", "q")}), 2, 1)
    assert first.joined(None) is first


def test_rules_that_no_batch_tells_apart_are_all_named() -> None:
    pairs: frozenset[Pair] = frozenset({("k+1", "linear"), ("k+1", "midpoint")})
    behaviour = Behaviour.of(Evidence(pairs, 3, 3), "at LP*", "interior")
    told = behaviour.joined(behaviour).told()
    assert f"{name_of(('k+1', 'midpoint'))} or {name_of(('k+1', 'linear'))}" in told
    assert told.endswith("reaches LP* on all 2 generic batches")


def test_jams_and_unfinished_rounds_are_told_apart() -> None:
    told = Behaviour(
        10,
        Counter[Pair]({("k+1", "q+1"): 10}),
        30,
        30,
        Counter({"at LP*": 4, "at rest above": 5, "moving above": 1}),
    ).told()
    assert told.endswith("jams on 50 % and is still above LP* on 10 % of 10 generic batches")


def test_a_spread_tells_median_worst_and_how_often_nothing_is_lost() -> None:
    spread = Spread((0.0,)).joined(Spread((3.0, 0.0))).joined(Spread((0.5,)))
    assert spread.told() == "median 0.25, worst 3; 0 on 50 %"


def test_a_percentage_is_all_or_none_only_where_it_is() -> None:
    shares = [percentage(count, 1000) for count in (0, 1, 500, 999, 1000)]
    assert shares == ["0 %", "under 1 %", "50 %", "over 99 %", "100 %"]
