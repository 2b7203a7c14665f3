"""Every token rule with every expert rule: how often they reach the LP optimum, and how fast.

Legend: M tokens, N routed experts; q = M top_k / N is the target load.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import lp_oracle
from properties.errors import UnknownError
from properties.judgement.optimality.optimum import Optimum, bracket
from properties.study.gaps import Known, Pair, gaps_of, known_from
from properties.study.instances import CLASSES, Instance, draw
from properties.study.statistics import Share
from properties.study.workers import Workers

ROUNDS = 200
PAIRS: tuple[Pair, ...] = tuple(
    itertools.product(lp_oracle.TOKEN_RULES, lp_oracle.EXPERT_RULES)  # in the order of the ranks
)

__all__ = ["PAIRS", "ROUNDS", "Descent", "RuleClass", "RuleRow", "descents", "measure", "row"]


@dataclass(frozen=True)
class Descent:
    """One descent from b = 0: the round that reached LP* and the one that certified the routing.

    Both are None where none did, and then ``falling`` says whether the last round still lowered D.
    ``gap`` is the smallest of any round, ``allowed`` what counts as 0, both relative to LP*.
    """

    reached: int | None
    certified: int | None
    falling: bool
    gap: float
    allowed: float


@dataclass(frozen=True)
class RuleRow:
    """A pair of rules on all decided instances of a class.

    Rounds are those until the dual reaches LP*, over the descents that do; gaps are over all.
    ``falling`` counts descents that were stopped on their way down.
    """

    token_rule: str
    expert_rule: str
    dual: Share
    routing: Share
    falling: int
    worst_gap: float
    median_gap: float
    median_rounds: float | None
    most_rounds: int | None


@dataclass(frozen=True)
class RuleClass:
    """All pairs on one class. ``undecided`` instances had no certified optimum and do not count.

    ``allowed`` is the largest relative gap that would have counted as reached, ``smallest_gap`` the
    smallest that did not. Where they are far apart, no count depends on the tolerance; with ties
    and fractional loads descents may approach LP* by a factor per round, and the cap stops some.
    """

    name: str
    instances: int
    undecided: int
    allowed: float
    smallest_gap: float | None
    rows: list[RuleRow]


def measure(seed: int, instances: int, workers: Workers) -> list[RuleClass]:
    """The table, class by class."""
    tables = []
    for number, drawn in enumerate(CLASSES):
        items = [(number, seed, index) for index in range(instances)]
        found = workers.map(_descents_of, items, f"rules, {drawn.name}")
        decided = [entry for entry in found if entry is not None]
        tables.append(_table(drawn.name, instances, decided))
    return tables


def _descents_of(item: tuple[int, int, int]) -> list[Descent] | None:
    try:
        return descents(draw(*item))
    except UnknownError:
        return None


def descents(instance: Instance) -> list[Descent]:
    """One descent for each of ``PAIRS``, in float64, against the certified optimum.

    Tied integer scores are descended in float64 too: with exact rationals a rule that halves its
    steps would approach the optimum for ever and reach it never. Raises UnknownError where the
    optimum is not known, ViolationError where a routing is certified that is not the optimum.
    """
    optimum = bracket(instance.scores, instance.top_k)
    solution = optimum.solution
    if not lp_oracle.certify_solution(instance.scores, instance.top_k, solution).certified:
        raise UnknownError("the solution of linprog has no certificate")
    known = known_from(optimum)
    return [_descent(optimum, known, pair) for pair in PAIRS]


def _descent(optimum: Optimum, known: Known, pair: Pair) -> Descent:
    trace = lp_oracle.coordinate_descent(
        optimum.scores.astype(np.float64),
        optimum.top_k,
        token_rule=pair[0],
        expert_rule=pair[1],
        rounds=ROUNDS,
    )
    certified = trace.outcome == "certified"
    if certified:
        optimum.require_attained_by(trace.verdict.assignment)
    gaps = gaps_of(trace, known)
    return Descent(
        reached=gaps.reached,
        certified=trace.rounds if certified else None,
        falling=gaps.falling,
        gap=gaps.best,
        allowed=gaps.allowed,
    )


def _table(name: str, instances: int, decided: Sequence[Sequence[Descent]]) -> RuleClass:
    everything = [descent for entry in decided for descent in entry]
    short = [descent.gap for descent in everything if descent.reached is None]
    return RuleClass(
        name=name,
        instances=instances,
        undecided=instances - len(decided),
        allowed=max((descent.allowed for descent in everything), default=0.0),
        smallest_gap=min(short, default=None),
        rows=[row(pair, [entry[i] for entry in decided]) for i, pair in enumerate(PAIRS)],
    )


def row(pair: Pair, found: Sequence[Descent]) -> RuleRow:
    """The counts of one pair of rules."""
    rounds = [descent.reached for descent in found if descent.reached is not None]
    routings = sum(descent.certified is not None for descent in found)
    gaps = [descent.gap for descent in found]
    return RuleRow(
        token_rule=pair[0],
        expert_rule=pair[1],
        dual=Share.count(len(rounds), len(found)),
        routing=Share.count(routings, len(found)),
        falling=sum(descent.falling for descent in found),
        worst_gap=max(gaps, default=0.0),
        median_gap=statistics.median(gaps) if gaps else 0.0,
        median_rounds=float(statistics.median(rounds)) if rounds else None,
        most_rounds=max(rounds, default=None),
    )
