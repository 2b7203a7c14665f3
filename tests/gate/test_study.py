"""What the study measures: each statistic by hand, and wrong descents that show."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lp_oracle
from lp_oracle import coordinate_descent, descent
from properties.judgement.optimality.optimum import bracket
from properties.study import exponent, rounds, rules
from properties.study.gaps import Known, descent_rounding, gaps_of, known_from
from properties.study.instances import CLASSES, Instance, draw
from properties.study.statistics import Share, power_law
from properties.study.tables import Table
from properties.study.workers import Workers

ALONE = Workers(None)
# OPT-JAM's instance: the optimum is the diagonal, 3 + 6 + 7 = 16.
JAM = np.array([[3, 0, 4], [8, 6, 5], [2, 1, 7]])


# Statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "of", "low", "high", "told"),
    [
        # (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.959964
        (9, 10, 0.59585, 0.98212, "90% [60%, 98%]"),
        (0, 10, 0.0, 0.27753, "0% [0%, 28%]"),
        (5, 10, 0.23659, 0.76341, "50% [24%, 76%]"),
    ],
)
def test_a_share_has_its_wilson_interval(
    hits: int, of: int, low: float, high: float, told: str
) -> None:
    share = Share.count(hits, of)
    assert (share.low, share.high) == pytest.approx((low, high), abs=1e-5)
    assert str(share) == told


def test_nothing_decided_says_nothing() -> None:
    assert Share.count(0, 0) == Share(0, 0, 0.0, 1.0)
    assert str(Share.count(0, 0)) == "none decided"


def test_a_power_law_is_found_with_its_interval() -> None:
    exact = power_law([2, 4, 8, 16], [3 * x**-2.0 for x in (2, 4, 8, 16)], 2, 16)
    assert exact is not None
    assert (exact.exponent, exact.factor) == pytest.approx((-2.0, 3.0))
    assert exact.high - exact.low < 1e-6
    # log2 y = 0, -1, -1 at log2 x = 0, 1, 2: slope -1/2, squares 1/6, so error √(1/12), and
    # Student's factor for one degree of freedom is 12.7062.
    bent = power_law([1, 2, 4], [1.0, 0.5, 0.5], 1, 4)
    assert bent is not None
    assert bent.exponent == pytest.approx(-0.5)
    assert bent.high - bent.exponent == pytest.approx(12.7062 * math.sqrt(1 / 12), rel=1e-5)


def test_a_power_law_counts_what_it_leaves_out() -> None:
    xs, ys = [1, 2, 4, 8, 16], [9.0, 0.5, 0.25, 0.125, 0.0]
    fit = power_law(xs, ys, 2, 16)
    assert fit is not None
    assert (fit.exponent, fit.points, fit.left_out) == (pytest.approx(-1.0), 3, 1)
    assert power_law([1, 2], [1.0, 0.5], 1, 2) is None
    assert power_law([2, 2, 2], [1.0, 0.5, 0.2], 1, 2) is None


def test_a_row_counts_descents() -> None:
    found = [
        rules.Descent(reached=0, certified=None, falling=False, gap=0.0, allowed=1e-12),
        rules.Descent(reached=5, certified=7, falling=False, gap=0.0, allowed=1e-12),
        rules.Descent(reached=None, certified=None, falling=False, gap=0.25, allowed=1e-12),
        rules.Descent(reached=None, certified=None, falling=True, gap=0.5, allowed=1e-12),
    ]
    row = rules.row(("k+1", "q"), found)
    assert (row.dual.hits, row.routing.hits, row.dual.of) == (2, 1, 4)
    assert (row.worst_gap, row.median_gap, row.falling) == (0.5, 0.125, 1)
    assert (row.median_rounds, row.most_rounds) == (2.5, 5)
    nothing = rules.row(("k+1", "q"), found[2:])
    assert (nothing.median_rounds, nothing.most_rounds) == (None, None)


# Gaps ----------------------------------------------------------------------------------------


def jammed(**how: Any) -> lp_oracle.DescentTrace:
    return coordinate_descent(JAM.astype(np.float64), 1, rounds=50, **how)


def test_gaps_of_the_pinned_jam() -> None:
    known = known_from(bracket(JAM, 1))
    assert known == Known(16.0, 0.0)
    # At b = 0 alpha is 3, 6, 2 and the hinges 1, 2, 5: D = 19. It jams at 17.
    found = gaps_of(jammed(), known)
    assert found.relative[0] == 3 / 16
    assert found.relative[-1] == found.best == 1 / 16
    assert found.reached is None
    assert found.allowed < 1e-11
    assert not found.falling
    arrived = gaps_of(jammed(token_rule="midpoint", expert_rule="midpoint"), known)
    assert arrived.best == 0.0
    assert arrived.relative[arrived.reached - 1] > 0.0


def test_a_descent_stopped_on_its_way_is_still_falling() -> None:
    stopped = coordinate_descent(JAM.astype(np.float64), 1, rounds=1)
    assert stopped.dual_values == (19.0, 17.0)
    assert gaps_of(stopped, Known(16.0, 0.0)).falling
    assert not gaps_of(jammed(), Known(16.0, 0.0)).falling
    # Increments (2, 0) and (0, 2) alternate for ever at D = 4: nothing falls.
    turning = np.array([[0.0, 3.0], [1.0, 2.0]])
    trace = coordinate_descent(turning, 1, token_rule="k+1", expert_rule="q", rounds=10)
    assert trace.outcome == "unfinished"
    assert gaps_of(trace, Known(4.0, 0.0)).reached == 1
    above = gaps_of(trace, Known(3.0, 0.0))
    assert above.reached is None
    assert not above.falling


def test_only_rounding_and_the_bracket_are_forgiven() -> None:
    trace = jammed()
    rounding = descent_rounding(trace)
    assert 0.0 < rounding < 1e-10
    assert gaps_of(trace, Known(17.0, 0.0)).best == 0.0
    assert gaps_of(trace, Known(17.0 - rounding / 2, 0.0)).best == 0.0
    assert gaps_of(trace, Known(17.0 - 2 * rounding, 0.0)).best > 0.0
    assert gaps_of(trace, Known(16.0, 1.0)).best == 0.0


def test_rounding_of_a_float_descent_is_within_what_is_forgiven() -> None:
    """The exact descent, in rationals, on the same numbers."""
    for index in range(6):
        instance = draw(0, 5, index)
        for pair in (("k+1", "q"), ("midpoint", "midpoint")):
            how: Any = {"token_rule": pair[0], "expert_rule": pair[1], "rounds": 8}
            floats = coordinate_descent(instance.scores, instance.top_k, **how)
            exact = coordinate_descent(lp_oracle.exact(instance.scores), instance.top_k, **how)
            allowed = descent_rounding(floats)
            for told, true in zip(floats.dual_values, exact.dual_values, strict=False):
                assert abs(Fraction(told) - true) <= allowed


# Instances and sections ----------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(CLASSES)))
def test_instances_are_of_their_class(number: int) -> None:
    for index in range(40):
        instance = draw(number, 0, index)
        m, n = instance.scores.shape
        assert 1 <= instance.top_k < n <= 12
        assert 3 <= m <= 24
        assert (m * instance.top_k % n == 0) == CLASSES[number].integral
        tied = np.unique(instance.scores).size < instance.scores.size
        assert tied == CLASSES[number].ties
    again = draw(number, 0, 39)
    assert np.array_equal(instance.scores, again.scores)
    assert not np.array_equal(instance.scores, draw(number, 1, 39).scores)


def test_descents_of_the_pinned_jam() -> None:
    found = dict(zip(rules.PAIRS, rules.descents(Instance(JAM, 1)), strict=True))
    assert len(rules.PAIRS) == 16
    assert found["k+1", "q+1"].gap == 1 / 16
    assert found["k+1", "q+1"].reached is None
    for pair, entry in found.items():
        if pair not in (("k+1", "q+1"), ("k", "q")):
            assert entry.gap == 0.0
        if "midpoint" in pair:
            assert entry.certified is not None


def dual_hits() -> dict[tuple[str, str], int]:
    generic = rules.measure(0, 6, ALONE)[0]
    return {(row.token_rule, row.expert_rule): row.dual.hits for row in generic.rows}


def test_a_rule_that_reads_a_wrong_rank_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CLASSES", CLASSES[:1])
    right = dual_hits()
    assert right["k+1", "q"] == right["k+1", "midpoint"] == 6
    assert right["k+1", "q+1"] < 6
    ranks = {**descent.EXPERT_RULES, "q": descent.EXPERT_RULES["q+1"]}
    monkeypatch.setattr(descent, "EXPERT_RULES", ranks)
    wrong = dual_hits()
    assert wrong["k+1", "q"] == right["k+1", "q+1"]
    assert wrong["k+1", "midpoint"] == 6


def test_the_linear_quantile_takes_as_many_rounds_as_eq_14() -> None:
    written, linear = exponent.measure(0, (2, 4), 3, ALONE)
    assert (written.token_rule, written.expert_rule) == exponent.AS_WRITTEN
    assert [size.m for size in written.sizes] == [32, 64]
    assert all(len(size.gaps) == 3 for size in (*written.sizes, *linear.sizes))
    assert linear.fits == written.fits == []
    size = exponent.Size(32, [0.5, 0.0, 0.25, 0.25], jammed=2)
    assert size.mean == 0.25


def test_a_curve_ends_at_rest_or_at_the_optimum() -> None:
    for curve in rounds.measure(0, ((16, 4, 1),), ALONE):
        assert curve.gaps[0] > 0.1
        steps = zip(curve.gaps[1:], curve.gaps, strict=False)
        assert all(after <= before + curve.allowed for after, before in steps)
        assert (curve.gaps[-1] == 0.0) == (curve.reached is not None)
        assert curve.outcome != "certified" or curve.reached is not None


def test_tables_are_aligned_and_piped() -> None:
    table = Table(("a", "bb"), [("ccc", "d"), ("e", "ff")])
    assert table.text() == "a    bb\nccc  d\ne    ff"
    assert table.markdown() == "| a | bb |\n| --- | --- |\n| ccc | d |\n| e | ff |"
