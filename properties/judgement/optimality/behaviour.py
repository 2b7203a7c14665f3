"""Which rule an update follows: the pair of statistics that agrees with it on every batch.

An update from b reads, for each token, a point of [(k+1)-th, k-th largest of s + b] and, for each
expert, one of [q-th, (q+1)-th smallest required bias]. Sixteen pairs are known by name, those of
``lp_oracle``; each is computed from the same batch and compared up to a constant, within rounding.
Few batches are enough: two pairs agree on all of them only where the intervals have no inside, or
where k/n = 1/2 makes the linear quantile a midpoint.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

import lp_oracle
import reference_numpy as reference
from properties.figures import Tally, percentage
from properties.judgement.optimality.fixed_points import JAMMING, Pair
from properties.judgement.optimality.own_batch import Batch
from properties.protocol import Array

Stopped: TypeAlias = Literal["at LP*", "at rest above", "moving above"]

RULES: tuple[Pair, ...] = tuple(product(lp_oracle.TOKEN_RULES, lp_oracle.EXPERT_RULES))

EXPERT_NAMES: Mapping[str, str] = {
    "q": "the q-th statistic",
    "q+1": "the (q+1)-th statistic",
    "midpoint": "the midpoint of the q-th and (q+1)-th statistics",
    "linear": "the linear quantile between the q-th and (q+1)-th statistics",
}
# What an ``expert_rank`` promises, where it promises anything.
DECLARED: Mapping[str, tuple[str, ...]] = {
    "q": ("q",),
    "q+1": ("q+1",),
    "interior": ("midpoint", "linear"),
}
TOKEN_NAMES: Mapping[str, str] = {
    "k+1": "(k+1)-th score",
    "k": "k-th score",
    "midpoint": "midpoint of the k-th and (k+1)-th scores",
    "linear": "linear quantile between the k-th and (k+1)-th scores",
}

__all__ = [
    "EXPERT_NAMES",
    "RULES",
    "TOKEN_NAMES",
    "Behaviour",
    "Evidence",
    "Stopped",
    "evidence_of",
]


@dataclass(frozen=True)
class Evidence:
    """Some updates of one batch: the rules that agree with all of them, and how many lie inside.

    Inside means between the q-th and the (q+1)-th statistic at cutoffs of the (k+1)-th score.
    """

    agreeing: frozenset[Pair]
    updates: int
    inside: int

    def joined(self, other: Evidence | None) -> Evidence:
        """Both together."""
        if other is None:
            return self
        return Evidence(
            self.agreeing & other.agreeing,
            self.updates + other.updates,
            self.inside + other.inside,
        )


def evidence_of(batch: Batch, bias_N: Array, after_N: Array) -> Evidence:
    """One update, from ``bias_N`` to ``after_N``."""
    agreeing, inside = set(), False
    for token in lp_oracle.TOKEN_RULES:
        alpha_M = lp_oracle.token_step(batch.scores.value, -bias_N, batch.top_k, rule=token)
        r_MN = reference.required_bias(batch.scores.value, alpha_M)
        error_N = batch.update_error(bias_N, after_N, alpha_M)
        lower_N, upper_N = reference.quantile_interval(r_MN, batch.top_k)
        if token == "k+1":
            inside = _some_constant(after_N, lower_N, upper_N, error_N)
        points = {
            "q": lower_N,
            "q+1": upper_N,
            "midpoint": lower_N + (upper_N - lower_N) / 2,
            "linear": lower_N + (upper_N - lower_N) * (1.0 - batch.top_k / bias_N.shape[0]),
        }
        for pair in RULES:
            if pair[0] == token:
                at_N = points[pair[1]]
                if _some_constant(after_N, at_N, at_N, error_N):
                    agreeing.add(pair)
    return Evidence(frozenset(agreeing), 1, int(inside))


def _some_constant(after_N: Array, low_N: Array, high_N: Array, error_N: Array) -> bool:
    """Whether one constant puts every entry between these, up to the errors."""
    return bool((low_N - error_N - after_N).max() <= (high_N + error_N - after_N).min())


@dataclass(frozen=True)
class Behaviour(Tally):
    """Batches on which each rule agreed with all updates seen, and where the rounds stopped."""

    batches: int
    agreeing: Counter[Pair]
    updates: int
    inside: int
    stopped: Counter[Stopped]
    declared: str = "between"

    @classmethod
    def of(cls, evidence: Evidence, stopped: Stopped, declared: str) -> Behaviour:
        """One batch of a subject with that ``expert_rank``."""
        agreeing = Counter(evidence.agreeing)
        return cls(1, agreeing, evidence.updates, evidence.inside, Counter([stopped]), declared)

    def joined(self, other: Behaviour) -> Behaviour:
        """The batches of both."""
        return Behaviour(
            self.batches + other.batches,
            self.agreeing + other.agreeing,
            self.updates + other.updates,
            self.inside + other.inside,
            self.stopped + other.stopped,
            self.declared,
        )

    def told(self) -> str:
        """The rule in words, and where it stops."""
        return f"{self._rule()}: {self._fate()}"

    @property
    def always(self) -> tuple[Pair, ...]:
        """The rules that agree on every batch."""
        return tuple(pair for pair in RULES if self.agreeing[pair] == self.batches)

    def _rule(self) -> str:
        always = self.always
        if not always:
            return self._unnamed()
        told = " or ".join(
            f"{EXPERT_NAMES[expert]} (cutoff: {TOKEN_NAMES[token]})" for token, expert in always
        )
        corner = ", a corner that can jam" if set(always) <= set(JAMMING) else ""
        legal = DECLARED.get(self.declared, EXPERT_NAMES)
        kept = any(expert in legal for _, expert in always)
        return f"{'' if kept else f'declares {self.declared!r}, but '}reads {told}{corner}"

    def _unnamed(self) -> str:
        told = "matches none of the known statistics"
        near = [(pair, count) for pair, count in self.agreeing.most_common(2) if count]
        if near:
            shares = ", ".join(
                f"{EXPERT_NAMES[pair[1]]} (cutoff: {TOKEN_NAMES[pair[0]]}) on "
                f"{percentage(count, self.batches)}"
                for pair, count in near
            )
            told += f" every time (nearest: {shares})"
        return f"{told}; inside the interval on {percentage(self.inside, self.updates)} of updates"

    def _fate(self) -> str:
        jams, moving = self.stopped["at rest above"], self.stopped["moving above"]
        parts = []
        if jams:
            parts.append(f"jams on {percentage(jams, self.batches)}")
        if moving:
            parts.append(f"is still above LP* on {percentage(moving, self.batches)}")
        if not parts:
            return f"reaches LP* on all {self.batches} generic batches"
        return f"{' and '.join(parts)} of {self.batches} generic batches"
