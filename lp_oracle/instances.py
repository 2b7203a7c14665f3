"""Pinned instances on which a tempting statement about the dual descent is false.

All scores are integers, so that every value can be checked exactly; all descents start from
beta = 0. The complement s -> c - s, k -> n - k turns each rule into its mirror, and so the jams of
("k+1", "q+1") into those of ("k", "q").

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lp_oracle.descent import ExpertRule, Outcome, TokenRule
from lp_oracle.problem import Array


@dataclass(frozen=True)
class PinnedInstance:
    """Scores and top_k, two rules, how their descent ends, the optimum, and the dual it ends at.

    ``fact`` says in one sentence what the instance shows.
    """

    rows: tuple[tuple[int, ...], ...]
    top_k: int
    token_rule: TokenRule
    expert_rule: ExpertRule
    outcome: Outcome
    optimum: Fraction
    dual_value: Fraction
    fact: str

    @property
    def scores(self) -> Array:
        """The scores as a new int64 array (M, N)."""
        return np.array(self.rows, dtype=np.int64)


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

INSTANCES = {
    "CORNER_JAM_TOP1": CORNER_JAM_TOP1,
    "CORNER_JAM_TOP2": CORNER_JAM_TOP2,
    "MIRROR_JAM_TOP1": MIRROR_JAM_TOP1,
    "MIRROR_JAM_TOP2": MIRROR_JAM_TOP2,
    "TIES_JAM": TIES_JAM,
    "FRACTION_JAM": FRACTION_JAM,
    "FRACTION_CORNER_JAM": FRACTION_CORNER_JAM,
    "ALTERNATING": ALTERNATING,
}
