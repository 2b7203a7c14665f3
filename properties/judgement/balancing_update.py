"""What one update of Quantile Balancing has in common with another, and how far both are known.

An update is b = b̂ - mean(b̂), with b̂_j a statistic of fixed ranks of expert j's required biases.
What comes back is b̂_j + c, for one constant c, up to three uncertainties per expert:

* ``rounding``: of scores, cutoff, statistic and centring;
* ``free``: how far apart two points are that the declared rule may stop at. Two experts may differ
  by it. Two updates may, too, if the rule ``wanders``: if no rank is declared, its point need not
  be the same one each time;
* ``width``: a histogram's bin width w, by which an estimate may be off on either side.

Every theorem about b̂ is thus one about differences of b, with these allowances.

Legend: M tokens, N routed experts; k = top_k, m = M, n = N, q = m k / n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

import reference_numpy as reference
from properties.checks import note_ratio, require
from properties.errors import NotOfferedError, UnknownError, ViolationError
from properties.judgement.balancing import (
    Allowed,
    Bins,
    allowed,
    interpolation_rounding,
    one_rounding,
    rank_rounding,
    readings,
    required_biases,
)
from properties.judgement.balancing_runs import (
    fresh_balancer,
    histogram_rule,
    rounded,
    updated,
    valid_rows,
)
from properties.protocol import Array
from properties.rounding import Arithmetic
from properties.strategies.balancing import BatchInputs
from properties.strategies.balancing_update import UpdateInputs
from properties.subject import Subject
from reference_numpy.balancing import Statistic

FLOAT64 = Arithmetic("float64", "float64", "float64")

__all__ = [
    "Landing",
    "Path",
    "judged",
    "paths",
    "prepared",
    "require_common_order",
    "require_growth",
    "require_ordered",
    "require_same",
    "require_span",
    "tokens_and_load",
]


@dataclass(frozen=True, eq=False)
class Landing:
    """Where an update landed: b (N,), centred, and how far b_j + c is known (see above)."""

    what: str
    bias: Array
    rounding: Array
    free: Array
    wanders: bool
    width: float = 0.0
    num_bins: int = 0

    @property
    def doubt(self) -> Array:
        """How far b_j + c may be from the point of the interval that is read, (N,)."""
        return self.rounding + self.width

    def apart_from(self, other: Landing) -> Array:
        """How far, beyond what was read, both may be apart, (N,)."""
        apart: Array = self.doubt + other.doubt + self.wandering(other)
        return apart

    def wandering(self, other: Landing) -> Array:
        """How far the points that are read may be apart where the interval is the same, (N,)."""
        return np.minimum(self.free, other.free) * float(self.wanders)

    def relabelled(self, order_N: Array) -> Landing:
        """The same with the experts in that order."""
        return replace(
            self,
            bias=self.bias[order_N],
            rounding=self.rounding[order_N],
            free=self.free[order_N],
        )


# Running -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Path:
    """One way in which the subject updates: the exact one, or a histogram of so many bins.

    ``known`` holds the required biases of the batches of a case, and the batches with them.
    """

    subject: Subject
    rule: str
    num_bins: int | None
    known: dict[int, tuple[BatchInputs, Any]]

    def required(self, batch: BatchInputs) -> Any:
        """r, a ball (M, N), of the valid tokens; kept, as all paths and questions share it."""
        if id(batch) not in self.known:
            r_MN = required_biases(self.subject, valid_rows(batch), batch.bias, batch.top_k)
            self.known[id(batch)] = batch, r_MN
        return self.known[id(batch)][1]

    def __call__(self, batch: BatchInputs) -> Landing:
        """The update of a batch in the subject's formats. Raises ViolationError unless finite."""
        if self.num_bins is None:
            what, bias, bins = "quantile_update", updated(self.subject, batch), 0
        else:
            what = "the balancer's update"
            balancer = fresh_balancer(self.subject, batch, self.num_bins)
            balancer.observe(batch.logits, mask=batch.mask)
            counts = balancer.histogram
            bins = self.num_bins if counts is None else int(counts.shape[1])
            balancer.update()
            bias = balancer.bias
        if not np.isfinite(bias).all():
            raise ViolationError(f"{what} is not finite: {bias}")
        return self._known(batch, what, bias, bins)

    def crossings(self, batch: BatchInputs, landing: Landing) -> Array:
        """How far two estimates may be apart as rounding carries a value into the next bin, (N,).

        0 for an exact update, and for experts all of whose values lie off every edge.
        """
        if not landing.num_bins:
            return np.zeros(batch.bias.shape)
        r_MN = self.required(batch)
        bins = Bins.of(batch.bias, landing.num_bins, self.subject.routing_arithmetic())
        place_MN = (r_MN.value - bins.low) / bins.width
        away_MN = np.abs(place_MN - np.rint(place_MN)) * bins.width
        clear_N = (away_MN > r_MN.radius + bins.slip).all(axis=0)
        return np.where(clear_N, 0.0, 2.0 * bins.width)

    def rank_slip(self, tokens: int, times: int, top_k: int, free_N: Array) -> Array:
        """How far b̂ may move as the linear rank is rounded at m tokens and at ``times`` m, (N,).

        An interior rule keeps at most half of min(k, n - k)/n from each end of the interval.
        """
        arithmetic, n = self.subject.routing_arithmetic(), free_N.shape[0]
        slips = [rank_rounding(m, top_k, n, arithmetic) for m in (tokens, times * tokens)]
        slip_N: Array = free_N * (sum(slips) / (1.0 - min(top_k, n - top_k) / n))
        return slip_N

    def _known(self, batch: BatchInputs, what: str, bias: Array, num_bins: int) -> Landing:
        arithmetic = self.subject.routing_arithmetic()
        r_MN = self.required(batch)
        sizes_N = (np.abs(r_MN.value) + r_MN.radius).max(axis=0)
        rounding_N = r_MN.radius.max(axis=0) + interpolation_rounding(sizes_N, arithmetic)
        rounding_N = rounding_N + one_rounding(bias, arithmetic)
        width = 0.0
        if num_bins:
            bins = Bins.of(batch.bias, num_bins, arithmetic)
            width, rounding_N = bins.width, rounding_N + bins.slip
        if not np.isfinite(rounding_N).all():
            raise UnknownError(f"{what}: no finite radius")
        tokens, num_experts = r_MN.shape
        legal = readings(self.rule, tokens, batch.top_k, num_experts)
        free_N = np.max([_width(allowed(r_MN, reading)) for reading in legal], axis=0)
        return Landing(what, bias, rounding_N, free_N, self.rule == "between", width, num_bins)


def _width(choice: Allowed) -> Array:
    width: Array = choice.high - choice.low
    return width


def paths(subject: Subject, num_bins: int) -> Iterator[Path]:
    """The ways to update that the subject offers. Raises NotOfferedError if there is none.

    App. D gives a histogram's range for sigmoid scores only.
    """
    histogram = "balancer" in subject.offered and subject.conventions.score_domain == "sigmoid"
    if "quantile_update" not in subject.offered and not histogram:
        raise NotOfferedError("needs quantile_update, or a balancer on sigmoid scores")
    known: dict[int, tuple[BatchInputs, Any]] = {}
    if "quantile_update" in subject.offered:
        yield Path(subject, subject.conventions.expert_rank, None, known)
    if histogram:
        yield Path(subject, histogram_rule(subject), num_bins, known)


def prepared(subject: Subject, inputs: UpdateInputs) -> tuple[BatchInputs, Array]:
    """The batch in the subject's formats, and an order of its rows.

    Masked rows are dropped for a subject that does not leave them out itself.
    """
    batch, order_M = inputs.batch, inputs.token_order
    if batch.mask is not None and subject.conventions.padding != "masked":
        batch = replace(batch, logits=batch.logits[batch.mask], mask=None)
        order_M = np.argsort(order_M[inputs.batch.mask])
    return rounded(subject, batch), order_M


def tokens_and_load(batch: BatchInputs) -> tuple[int, bool]:
    """The number m of valid tokens, and whether q = m k / n is an integer."""
    tokens = valid_rows(batch).shape[0]
    return tokens, tokens * batch.top_k % batch.bias.shape[0] == 0


# Verdicts on differences ---------------------------------------------------------------------


def require_growth(
    subject: Subject, change_N: Array, apart_N: Array, most: float, what: str
) -> None:
    """Require max - min of a change to be at most ``most``, each of its entries known so far."""
    high, low = int(np.argmax(change_N - apart_N)), int(np.argmin(change_N + apart_N))
    excess = float(change_N[high] - change_N[low]) - most
    radius = float(apart_N[high] + apart_N[low])
    judged(
        subject,
        excess,
        radius,
        what,
        f"experts {high} and {low} differ by {excess + most!s}, more than {most!s}",
    )


def require_same(
    subject: Subject, first: Landing, second: Landing, apart_N: Array, when: str
) -> None:
    """Require two biases to be the same, up to a constant and ``apart_N``."""
    require_growth(
        subject, second.bias - first.bias, apart_N, 0.0, f"the change of {first.what} {when}"
    )


def require_span(subject: Subject, landing: Landing, most: float) -> None:
    """Require b_j - b_l <= most for all pairs, where both may be read at different points."""
    up_N, down_N = landing.bias - landing.doubt, landing.bias + landing.doubt
    excess_NN = up_N[:, None] - down_N - np.minimum(landing.free[:, None], landing.free) - most
    np.fill_diagonal(excess_NN, -np.inf)
    high, low = np.unravel_index(int(np.argmax(excess_NN)), excess_NN.shape)
    radius = float(landing.doubt[high] + landing.doubt[low])
    judged(
        subject,
        float(excess_NN[high, low]) + radius,
        radius,
        f"the span of {landing.what}",
        f"b[{high}] - b[{low}] = {landing.bias[high] - landing.bias[low]!s}, more than {most!s}",
    )


def require_ordered(
    below_N: Array, above_N: Array, logits_MN: Array, top_k: int, statistic: Statistic
) -> None:
    """Require G(below) <= G(above) of the reference, up to the rounding of an interpolation.

    Sums, differences and order statistics keep the order when they are rounded.
    """
    s_MN = reference.scores(logits_MN)
    low_MN, high_MN = (
        reference.required_bias(s_MN, reference.cutoff(s_MN + bias_N, top_k))
        for bias_N in (below_N, above_N)
    )
    low_N, high_N = (reference.expert_statistic(r, top_k, statistic) for r in (low_MN, high_MN))
    slip_N = np.zeros(low_N.shape)
    if statistic in ("midpoint", "linear"):
        slip_N = 2.0 * interpolation_rounding(np.abs([low_MN, high_MN]).max(axis=(0, 1)), FLOAT64)
    worst = int(np.argmax(low_N - high_N - slip_N))
    require(
        low_N[worst] <= high_N[worst] + slip_N[worst],
        f"the statistic {statistic} of expert {worst} falls from {low_N[worst]!s} to "
        f"{high_N[worst]!s} as the bias rises",
    )


def require_common_order(
    subject: Subject, biases: Sequence[Array], landings: Sequence[Landing]
) -> None:
    """Require that *some* constants c_t make b̂^t = b^t + c_t an order-preserving map.

    That is b̂^t - b̂^u <= max(bias^t - bias^u) for every pair, so c_t - c_u is at most a weight
    w_tu; such c exist if and only if no cycle of weights sums to less than 0.
    """
    every = range(len(biases))
    for size in range(2, len(biases) + 1):
        for chosen in combinations(every, size):
            for rest in permutations(chosen[1:]):
                cycle = (chosen[0], *rest)
                edges = [(t, cycle[i - 1]) for i, t in enumerate(cycle)]
                _require_cycle(subject, biases, landings, edges)


def _require_cycle(
    subject: Subject,
    biases: Sequence[Array],
    landings: Sequence[Landing],
    edges: Sequence[tuple[int, int]],
) -> None:
    excess = radius = 0.0
    for t, u in edges:
        after_N = landings[t].bias - landings[u].bias
        apart_N = landings[t].apart_from(landings[u])
        expert = int(np.argmax(after_N - apart_N))
        excess += float(after_N[expert]) - float(np.max(biases[t] - biases[u]))
        radius += float(apart_N[expert])
    order = " -> ".join(str(t) for t, _ in edges)
    judged(
        subject,
        excess,
        radius,
        f"the order of {landings[0].what}",
        f"along the biases {order} the largest changes sum to {excess!s} more than before it, so "
        "no constants added to the results make them keep the order of the biases",
    )


def judged(subject: Subject, excess: float, radius: float, what: str, told: str) -> None:
    """Require ``excess <= radius``, and remember their ratio. Raises ViolationError saying why."""
    ratio = 0.0
    if excess > 0.0:
        ratio = excess / radius if radius > 0.0 else np.inf
    note_ratio(subject, ratio, what)
    if ratio > 1.0:
        raise ViolationError(f"{what}: {told} (excess / radius = {ratio:.4g})")
