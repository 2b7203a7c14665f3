"""Pinned instances on which a tempting statement about the dual descent is false: the jams.

All scores are integers, so that every value can be checked exactly; all descents start from
beta = 0. The complement s -> c - s, k -> n - k turns each rule into its mirror, and so the jams of
("k+1", "q+1") into those of ("k", "q").

*Smaller* means fewer entries M N, then fewer tokens, then a smaller top_k, then a smaller largest
score, then a smaller sum of scores, then the rows that come first. Compared are instances in normal
form: rows ascend, each has a least score of 0, and column sums ascend. That loses nothing: the
order of tokens and experts does not matter, and a constant added to a row moves its alpha alone.
Names that end in LEAST, and those that begin with TIES or FRACTION but end in no JAM, are the
smallest of their kind; docs/counterexamples.md tells how that is known. ``behaviours`` pins what is
not a jam.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from lp_oracle.descent import ExpertRule, Outcome, TokenRule
from lp_oracle.problem import Array

Pair: TypeAlias = tuple[TokenRule, ExpertRule]


@dataclass(frozen=True)
class PinnedInstance:
    """Scores and top_k, two rules, how their descent ends, the optimum, and the dual it ends at.

    ``fact`` says in one sentence what the instance shows. ``others`` are further pairs of rules
    with the same outcome, at the same dual value.
    """

    rows: tuple[tuple[int, ...], ...]
    top_k: int
    token_rule: TokenRule
    expert_rule: ExpertRule
    outcome: Outcome
    optimum: Fraction
    dual_value: Fraction
    fact: str
    others: tuple[Pair, ...] = ()

    @property
    def scores(self) -> Array:
        """The scores as a new int64 array (M, N)."""
        return np.array(self.rows, dtype=np.int64)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs of rules that it is pinned for."""
        return ((self.token_rule, self.expert_rule), *self.others)


CORNER_JAM_TOP1 = PinnedInstance(
    rows=((3, 0, 4), (8, 6, 5), (2, 1, 7)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q+1",
    outcome="jammed",
    optimum=Fraction(16),
    dual_value=Fraction(17),
    fact="Eq. 14 as written stops above the optimum although no scores tie; two rows never do.",
)

CORNER_JAM_TOP2 = PinnedInstance(
    rows=((6, 0, 3), (5, 4, 8), (1, 7, 2)),
    top_k=2,
    token_rule="k+1",
    expert_rule="q+1",
    outcome="jammed",
    optimum=Fraction(29),
    dual_value=Fraction(30),
    fact="Eq. 14 as written stops above the optimum for top_k = 2 too.",
)

MIRROR_JAM_TOP1 = PinnedInstance(
    rows=((2, 8, 5), (3, 4, 0), (7, 1, 6)),
    top_k=1,
    token_rule="k",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(17),
    dual_value=Fraction(18),
    fact="The other pair of corners stops above the optimum: 8 - s of CORNER_JAM_TOP2.",
)

MIRROR_JAM_TOP2 = PinnedInstance(
    rows=((5, 8, 4), (0, 2, 3), (6, 7, 1)),
    top_k=2,
    token_rule="k",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(28),
    dual_value=Fraction(29),
    fact="The other pair of corners stops above the optimum: 8 - s of CORNER_JAM_TOP1.",
)

CORNER_JAM_TOP1_LEAST = PinnedInstance(
    rows=((0, 0, 3), (0, 1, 1), (1, 3, 0)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q+1",
    outcome="jammed",
    optimum=Fraction(6),
    dual_value=Fraction(7),
    fact="Eq. 14 as written stays at its start, above the optimum: the smallest generic scores.",
)

CORNER_JAM_TOP2_LEAST = PinnedInstance(
    rows=((0, 1, 2), (0, 4, 3), (1, 0, 0)),
    top_k=2,
    token_rule="k+1",
    expert_rule="q+1",
    outcome="jammed",
    optimum=Fraction(10),
    dual_value=Fraction(11),
    fact="Eq. 14 as written stays at its start: the smallest generic scores for top_k = 2.",
)

MIRROR_JAM_TOP1_LEAST = PinnedInstance(
    rows=((0, 0, 3), (0, 2, 4), (1, 0, 0)),
    top_k=1,
    token_rule="k",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(6),
    dual_value=Fraction(7),
    fact="The other pair of corners falls once and stops: the smallest generic scores.",
)

MIRROR_JAM_TOP2_LEAST = PinnedInstance(
    rows=((0, 0, 2), (0, 3, 3), (2, 0, 1)),
    top_k=2,
    token_rule="k",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(10),
    dual_value=Fraction(11),
    fact="The other pair of corners stays at its start: the smallest for top_k = 2.",
)

TIES_JAM = PinnedInstance(
    rows=((1, 1, 0, 0, 0), (1, 1, 0, 0, 0), (1, 1, 0, 0, 0), (0, 0, 1, 1, 1), (0, 0, 1, 1, 1)),
    top_k=1,
    token_rule="midpoint",
    expert_rule="midpoint",
    outcome="jammed",
    optimum=Fraction(4),
    dual_value=Fraction(5),
    fact="With tied scores even the rule that is interior on both sides stops above the optimum.",
)

TIES_CORNER = PinnedInstance(
    rows=((0, 0, 1), (0, 1, 0), (0, 1, 1)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q+1",
    outcome="jammed",
    optimum=Fraction(2),
    dual_value=Fraction(3),
    fact="With ties Eq. 14 as written stops above the optimum at scores of 0 and 1.",
)

TIES_MIRROR = PinnedInstance(
    rows=((0, 0, 0), (0, 0, 1), (0, 0, 1)),
    top_k=1,
    token_rule="k",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(1),
    dual_value=Fraction(2),
    fact="Two tokens that want the same expert stop the upper corners at once.",
)

TIES_TOKEN_K = PinnedInstance(
    rows=((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1)),
    top_k=1,
    token_rule="k",
    expert_rule="midpoint",
    outcome="jammed",
    optimum=Fraction(1),
    dual_value=Fraction(2),
    fact="With ties the k-th score as cutoff spoils interior statistics and the lower corner.",
    others=(
        ("k", "linear"),
        ("k", "q+1"),
    ),
)

TIES_TOKEN_K_1 = PinnedInstance(
    rows=((0, 0, 0, 0), (0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 1, 1)),
    top_k=3,
    token_rule="k+1",
    expert_rule="midpoint",
    outcome="jammed",
    optimum=Fraction(5),
    dual_value=Fraction(6),
    fact="With ties the (k+1)-th score as cutoff spoils every interior statistic.",
    others=(("k+1", "linear"),),
)

TIES_EXPERT_Q_1 = PinnedInstance(
    rows=((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 1, 1), (0, 0, 1, 1)),
    top_k=3,
    token_rule="midpoint",
    expert_rule="q+1",
    outcome="jammed",
    optimum=Fraction(5),
    dual_value=Fraction(6),
    fact="With ties the (q+1)-th statistic spoils every interior cutoff.",
    others=(("linear", "q+1"),),
)

TIES_OPPOSITE = PinnedInstance(
    rows=((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 1, 1), (0, 0, 1, 1)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(2),
    dual_value=Fraction(3),
    fact="With ties the opposite corners, the rank of Appendix D, stop above the optimum too.",
)

TIES_EXPERT_Q = PinnedInstance(
    rows=((0, 0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 1), (0, 1, 1, 0)),
    top_k=1,
    token_rule="midpoint",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(2),
    dual_value=Fraction(5, 2),
    fact="With ties the q-th statistic spoils the midpoint cutoff.",
)

TIES_EXPERT_Q_LINEAR = PinnedInstance(
    rows=((0, 0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 1), (0, 1, 1, 0)),
    top_k=1,
    token_rule="linear",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(2),
    dual_value=Fraction(9, 4),
    fact="With ties the q-th statistic spoils the linear cutoff.",
)

TIES_INTERIOR = PinnedInstance(
    rows=((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), (0, 0, 0, 1, 1), (0, 0, 0, 1, 1), (0, 0, 0, 1, 1)),
    top_k=1,
    token_rule="midpoint",
    expert_rule="midpoint",
    outcome="jammed",
    optimum=Fraction(2),
    dual_value=Fraction(3),
    fact="Three tokens that want two experts stop every interior pair at once.",
    others=(
        ("midpoint", "linear"),
        ("linear", "midpoint"),
        ("linear", "linear"),
    ),
)

FRACTION_JAM = PinnedInstance(
    rows=((1, 3, 5, 8, 9), (7, 4, 0, 2, 6)),
    top_k=1,
    token_rule="midpoint",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(63, 5),
    dual_value=Fraction(64, 5),
    fact="With q = 2/5 exact half steps stop above the optimum, also from an interior token rule.",
)

FRACTION_CORNER_JAM = PinnedInstance(
    rows=((0, 1, 3), (5, 4, 2)),
    top_k=2,
    token_rule="k+1",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(12),
    dual_value=Fraction(37, 3),
    fact="With q = 4/3 and a corner token rule exact half steps jam at 2 x 3 already.",
)

FRACTION_TOKEN_K_1 = PinnedInstance(
    rows=((0, 0, 0), (0, 1, 2)),
    top_k=2,
    token_rule="k+1",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(8, 3),
    dual_value=Fraction(3),
    fact="With q = 4/3 and the (k+1)-th score exact half steps stay at their start.",
)

FRACTION_TOKEN_K = PinnedInstance(
    rows=((0, 0, 0), (0, 1, 2)),
    top_k=1,
    token_rule="k",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(5, 3),
    dual_value=Fraction(2),
    fact="With q = 2/3 and the k-th score exact half steps stay at their start.",
)

FRACTION_MIDPOINT = PinnedInstance(
    rows=((0, 0, 0, 2, 2), (0, 1, 2, 0, 1)),
    top_k=1,
    token_rule="midpoint",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(14, 5),
    dual_value=Fraction(29, 10),
    fact="With q = 2/5 the midpoint cutoff falls once and stops above the optimum.",
)

FRACTION_LINEAR = PinnedInstance(
    rows=((0, 0, 0, 2, 2), (0, 1, 2, 0, 1)),
    top_k=1,
    token_rule="linear",
    expert_rule="q",
    outcome="jammed",
    optimum=Fraction(14, 5),
    dual_value=Fraction(74, 25),
    fact="With q = 2/5 the linear cutoff falls once and stops above the optimum.",
)

ALTERNATING = PinnedInstance(
    rows=((0, 3), (1, 2)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q",
    outcome="unfinished",
    optimum=Fraction(4),
    dual_value=Fraction(4),
    fact="The dual reaches the optimum, but the increments alternate and no routing is certified.",
)

ALTERNATING_LEAST = PinnedInstance(
    rows=((0, 0), (0, 1)),
    top_k=1,
    token_rule="k+1",
    expert_rule="q",
    outcome="unfinished",
    optimum=Fraction(1),
    dual_value=Fraction(1),
    fact="The experts take turns: a round raises one of them, and nothing is ever certified.",
)

INSTANCES = {
    "CORNER_JAM_TOP1": CORNER_JAM_TOP1,
    "CORNER_JAM_TOP2": CORNER_JAM_TOP2,
    "MIRROR_JAM_TOP1": MIRROR_JAM_TOP1,
    "MIRROR_JAM_TOP2": MIRROR_JAM_TOP2,
    "CORNER_JAM_TOP1_LEAST": CORNER_JAM_TOP1_LEAST,
    "CORNER_JAM_TOP2_LEAST": CORNER_JAM_TOP2_LEAST,
    "MIRROR_JAM_TOP1_LEAST": MIRROR_JAM_TOP1_LEAST,
    "MIRROR_JAM_TOP2_LEAST": MIRROR_JAM_TOP2_LEAST,
    "TIES_JAM": TIES_JAM,
    "TIES_CORNER": TIES_CORNER,
    "TIES_MIRROR": TIES_MIRROR,
    "TIES_TOKEN_K": TIES_TOKEN_K,
    "TIES_TOKEN_K_1": TIES_TOKEN_K_1,
    "TIES_EXPERT_Q_1": TIES_EXPERT_Q_1,
    "TIES_OPPOSITE": TIES_OPPOSITE,
    "TIES_EXPERT_Q": TIES_EXPERT_Q,
    "TIES_EXPERT_Q_LINEAR": TIES_EXPERT_Q_LINEAR,
    "TIES_INTERIOR": TIES_INTERIOR,
    "FRACTION_JAM": FRACTION_JAM,
    "FRACTION_CORNER_JAM": FRACTION_CORNER_JAM,
    "FRACTION_TOKEN_K_1": FRACTION_TOKEN_K_1,
    "FRACTION_TOKEN_K": FRACTION_TOKEN_K,
    "FRACTION_MIDPOINT": FRACTION_MIDPOINT,
    "FRACTION_LINEAR": FRACTION_LINEAR,
    "ALTERNATING": ALTERNATING,
    "ALTERNATING_LEAST": ALTERNATING_LEAST,
}
