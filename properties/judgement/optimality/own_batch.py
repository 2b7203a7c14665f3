"""One batch of logits as an implementation sees it, and the assignment problem that it poses.

The scores of the logits, in float64, are s; with beta = -b a bias is a point of the dual.

Legend: M tokens, N routed experts; q = M top_k / N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import lp_oracle
import reference_numpy as reference
from properties.checks import require
from properties.judgement.optimality.optimum import Optimum, bracket, written
from properties.protocol import Array
from properties.rounding import Ball
from properties.subject import Subject

__all__ = ["Batch"]


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of logits as the subject sees it, and the optimum for its scores."""

    subject: Subject
    logits: Array
    top_k: int
    scores: Any
    optimum: Optimum

    @classmethod
    def of(cls, subject: Subject, logits_MN: Array, top_k: int) -> Batch:
        """Raises UnknownError where the optimum is not known."""
        scores: Any = Ball.exact(logits_MN, subject.routing_arithmetic())
        if subject.conventions.score_domain == "sigmoid":
            scores = reference.scores(scores)
        return cls(subject, logits_MN, top_k, scores, bracket(scores.value, top_k))

    @property
    def name(self) -> str:
        """The problem as text."""
        return written(self.scores.value, self.top_k)

    def token_multipliers(self, bias_N: Array) -> Array:
        """alpha (M,): the (k+1)-th largest of s + b."""
        return reference.cutoff(self.scores.value + bias_N, self.top_k)

    def dual(self, bias_N: Array) -> tuple[float, float]:
        """D at this bias, and how far float64 may be from it."""
        point = self.scores.value, self.token_multipliers(bias_N), -bias_N, self.top_k
        return float(lp_oracle.dual_objective(*point)), lp_oracle.dual_radius(*point)

    def verdict(self, bias_N: Array) -> lp_oracle.RoutingVerdict:
        """Whether top-k of s + b is certified for all scores that the subject may have computed."""
        radius = float((self.scores + bias_N).radius.max())
        return lp_oracle.certify_routing(self.scores.value, bias_N, self.top_k, radius=radius)

    def require_own_choice(self, bias_N: Array, assignment_MN: Array) -> None:
        """Require ``route``, where offered, to choose a routing certified beyond rounding."""
        if "route" not in self.subject.offered:
            return
        ids = self.subject.route(self.logits, bias_N, top_k=self.top_k).expert_ids
        in_range = (ids >= 0) & (ids < bias_N.shape[0])
        require(in_range, f"route chooses {ids.tolist()} of {bias_N.shape[0]} experts")
        chosen_MN = np.zeros(self.logits.shape, dtype=np.int64)
        np.put_along_axis(chosen_MN, ids, 1, axis=1)
        require(
            np.array_equal(chosen_MN, assignment_MN),
            f"route chooses {ids.tolist()}, not the optimum, at b = {bias_N.tolist()}: {self.name}",
        )

    def loads(self, bias_N: Array) -> Array:
        """The tokens of each expert (N,): by the subject's own router, where it offers one."""
        biased_MN = self.scores.value + bias_N
        ids = reference.top_k_ids(biased_MN, self.top_k)
        if "route" in self.subject.offered:
            ids = self.subject.route(self.logits, bias_N, top_k=self.top_k).expert_ids
            in_range = (ids >= 0) & (ids < bias_N.shape[0])
            require(in_range, f"route chooses {ids.tolist()} of {bias_N.shape[0]} experts")
        return np.bincount(ids.ravel(), minlength=bias_N.shape[0])

    def update_error(self, bias_N: Array, after_N: Array, alpha_M: Array | None = None) -> Array:
        """How far rounding may put each b_j of an exact update from an interval of minimisers.

        Up to the constant that centring subtracts from all of them. ``alpha_M`` are the cutoffs,
        the (k+1)-th scores if left out. Order statistics enlarge no error: the cutoff errs by at
        most the largest error of its row, b̂_j by the largest of its column. Interpolating rounds a
        difference, its product with the share, and a sum: 2 + 2 + 1 roundings of the column's
        largest number, and of the cutoff, where that is interpolated; centring rounds once.
        Second-order terms are less than what 6 and 2 leave over.
        """
        formats = self.subject.routing_arithmetic()
        biased: Any = self.scores + bias_N
        plain = alpha_M is None
        alpha_M = self.token_multipliers(bias_N) if alpha_M is None else alpha_M
        cutoff: Any = Ball(alpha_M, biased.radius.max(axis=1), formats)
        required: Any = reference.required_bias(self.scores, cutoff)
        rule = formats.rules["add"]
        interpolated = 0.0 if plain else 6.0 * float(np.abs(alpha_M).max())
        sizes_N = interpolated + 6.0 * np.abs(required.value).max(axis=0) + 2.0 * np.abs(after_N)
        error: Array = required.radius.max(axis=0) + rule.share * sizes_N + 4.0 * rule.underflow
        return error
