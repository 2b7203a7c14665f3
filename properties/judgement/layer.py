"""What a correct layer may return, although nobody sees how it routed.

``layer`` returns y alone. Which experts it chose is decided by biased scores, of which only balls
are known; where the k-th and the next one are further apart than their radii the choice is
*clear*, and where they are not, every selection that rounding can bring about is legal. The layer
is evaluated on each of them, as one more row of the batch, and a token is judged by the nearest.

Legend: M tokens, R rows (a token with one legal selection), N routed experts, K top_k, D model
width, S shared experts, G hidden width of a shared expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import combinations, islice
from typing import Any, TypeVar

import numpy as np

import reference_numpy as reference
from properties.checks import finite_where_due, unknown, within
from properties.judgement.sums import added_in_any_order
from properties.protocol import Array, LayerConfig, LayerParameters, Routing
from properties.rounding import Arithmetic, Ball, ratio
from properties.rounding.arithmetic import REFERENCE_ROUNDOFF
from properties.subject import Subject
from reference_numpy.layer import routed_output, routed_sum, shared_outputs

# A token with more legal selections than are listed, or looked for, is undecided unless one fits.
MOST_LISTED = 32
MOST_TRIED = 1000

Tree = TypeVar("Tree")

__all__ = [
    "LegalLayer",
    "Selections",
    "agree",
    "crossed_outputs",
    "finite_where_clear",
    "legal_layer",
    "legal_selections",
    "logit_ball",
    "on_arrays",
    "score_balls",
    "with_shared_experts",
]


@dataclass(frozen=True)
class Selections:
    """Rows of legal selections: ``token`` (R,) and ``expert_ids`` (R, K), rows of a token together.

    ``first`` (M,) is each token's first row and ``count`` (M,) how many it has; ``complete`` (M,)
    is False where there are more than are listed.
    """

    token: Array
    expert_ids: Array
    first: Array
    count: Array
    complete: Array

    @property
    def clear(self) -> Array:
        """Which tokens (M,) have one legal selection only."""
        clear: Array = self.complete & (self.count == 1)
        return clear


@dataclass(frozen=True)
class LegalLayer:
    """The legal outputs (R, D) of one call, for tokens behind the leading axes of ``shape``."""

    selections: Selections
    outputs: Ball
    shape: tuple[int, ...]

    @property
    def clear(self) -> Array:
        """Which tokens (M,) have one legal selection only."""
        return self.selections.clear

    @property
    def rows(self) -> tuple[int, int]:
        """The shape (M, D) of the flattened tokens."""
        return len(self.selections.first), self.shape[-1]

    def nearest(self, actual: Array) -> Ball:
        """Of each token's legal outputs the one nearest to ``actual``, in the shape of x."""
        chosen = self.selections
        found = actual.reshape(self.rows)
        ratios = ratio(found[chosen.token], self.outputs)
        undecided = np.isnan(ratios)
        worst = np.where(undecided, 0.0, ratios).max(axis=1, initial=0.0)
        rows = [
            first + int(np.argmin(worst[first : first + count]))
            for first, count in zip(chosen.first, chosen.count, strict=True)
        ]
        rows_M = np.array(rows, np.intp)
        radius = self.outputs.radius[rows_M]
        beyond = ~chosen.complete & (worst[rows_M] > 1.0)
        radius = np.where(beyond[:, None], np.inf, radius)
        ball = Ball(self.outputs.value[rows_M], radius, self.outputs.arithmetic)
        return ball.reshape(self.shape)

    def single(self) -> Ball:
        """The output (M, D) for each token's first legal selection: the only one where clear."""
        return self.outputs[self.selections.first]


def legal_layer(
    subject: Subject, x: Array, parameters: LayerParameters, config: LayerConfig
) -> LegalLayer:
    """The reference's outputs for every routing that is legal in the subject's formats.

    x (…, D) and the parameters hold storage values, the selection bias routing values.
    """
    x_MD = x.reshape(-1, x.shape[-1])
    s_MN, biased_MN = score_balls(subject, x_MD, parameters)
    chosen = legal_selections(biased_MN, config.top_k)
    weights_RK: Any = reference.combine_weights(
        s_MN[chosen.token],
        chosen.expert_ids,
        epsilon=subject.conventions.weight_epsilon,
        renormalise=config.top_k > 1 or subject.conventions.top1_renormalised,
    )
    # An implementation may keep its combine weights in storage.
    routing = Routing(chosen.expert_ids, np.positive(weights_RK.under(subject.arithmetic)))
    outputs = _outputs(subject.arithmetic, x_MD[chosen.token], parameters, config, routing)
    return LegalLayer(chosen, outputs, x.shape)


def agree(
    subject: Subject,
    first: tuple[Array, LegalLayer],
    second: tuple[Array, LegalLayer],
    what: str,
    apart: float | Array = 0.0,
) -> None:
    """Require two outputs of equal mathematics to differ by at most both radii, where clear.

    ``apart`` is how far the exact outputs may be from each other. Both outputs are flattened, so
    they may come in different shapes. Each is finite where the reference is: two NaN do not agree.
    Without a clear token the case is unknown.
    """
    (y_first, legal_first), (y_second, legal_second) = first, second
    clear = legal_first.clear & legal_second.clear
    finite_where_clear(first, clear, what)
    finite_where_clear(second, clear, what)
    if clear.size and not clear.any():
        unknown(subject, f"{what}: no token has one legal routing only")
    radius = legal_first.single().radius + legal_second.single().radius + apart
    expected = Ball(y_second.reshape(legal_second.rows), radius, subject.arithmetic)
    within(subject, y_first.reshape(legal_first.rows)[clear], expected[clear], what)


def finite_where_clear(judged: tuple[Array, LegalLayer], clear: Array, what: str) -> None:
    """Require of the clear tokens (M,) that an output is finite where the legal one surely is."""
    output, legal = judged
    finite_where_due(output.reshape(legal.rows)[clear], legal.single()[clear], what)


def crossed_outputs(
    first: tuple[Array, LegalLayer], second: tuple[Array, LegalLayer]
) -> tuple[Array, Array]:
    """y_a y'_b - y_b y'_a (M, D) for each a, b being where y' is largest, and how far from 0 it is.

    If y = v + e and y' = v' + e' with v parallel to v', then y_a y'_b - y_b y'_a equals
    (v_a e'_b + e_a y'_b) - (v_b e'_a + e_b y'_a).
    """
    (y, legal), (y_second, legal_second) = first, second
    y, y_second = y.reshape(legal.rows), y_second.reshape(legal.rows)
    largest = np.argmax(np.abs(y_second), axis=1)[:, None]
    r, r_second = legal.single().radius, legal_second.single().radius

    def at_b(array: Array) -> Array:
        return np.take_along_axis(array, largest, axis=1)

    def size(array: Array) -> Array:
        return np.abs(np.where(np.isfinite(array), array, 0.0))

    one, other = y * at_b(y_second), at_b(y) * y_second
    with np.errstate(invalid="ignore"):
        radius = (size(y) + r) * at_b(r_second) + r * size(at_b(y_second))
        radius += (size(at_b(y)) + at_b(r)) * r_second + at_b(r) * size(y_second)
    radius += 4 * REFERENCE_ROUNDOFF * (size(one) + size(other))
    return one - other, np.where(np.isnan(radius), np.inf, radius)


def on_arrays(function: Callable[[Array], Any], parameters: Tree) -> Tree:
    """The parameters with a function applied to each of their arrays."""
    changed = {}
    for part in fields(parameters):  # type: ignore[arg-type]
        value = getattr(parameters, part.name)
        nested = is_dataclass(value) and not isinstance(value, type)
        changed[part.name] = on_arrays(function, value) if nested else function(value)
    return type(parameters)(**changed)


# Selections --------------------------------------------------------------------------------------


def legal_selections(biased_MN: Ball, top_k: int) -> Selections:
    """Every choice of ``top_k`` experts that numbers within the balls can bring about.

    A set T is one exactly if no expert outside is certain to beat one inside: the least upper end
    in T reaches the greatest lower end outside. The most plausible ones come first. Where an end is
    NaN nothing is known of the token: its one selection is listed as incomplete.
    """
    with np.errstate(invalid="ignore"):
        low_MN = biased_MN.value - biased_MN.radius
        high_MN = biased_MN.value + biased_MN.radius
    tokens, experts = biased_MN.shape
    order_MN = reference.top_k_ids(biased_MN.value, experts)
    found = [[ids] for ids in order_MN[:, :top_k]]
    nan_M: Array = np.any(np.isnan(low_MN) | np.isnan(high_MN), axis=1)
    complete_M = ~nan_M
    open_M = complete_M & ~_clear(low_MN, high_MN, order_MN, top_k)
    for i in np.flatnonzero(open_M):
        found[i], complete_M[i] = _alternatives(low_MN[i], high_MN[i], order_MN[i], top_k)
    count_M = np.array([len(sets) for sets in found], np.intp)
    ids = np.array([ids for sets in found for ids in sets], np.intp).reshape(-1, top_k)
    first_M = np.cumsum(count_M) - count_M
    return Selections(np.repeat(np.arange(tokens), count_M), ids, first_M, count_M, complete_M)


def _clear(low_MN: Array, high_MN: Array, order_MN: Array, top_k: int) -> Array:
    """Where every one of the top_k is certain to beat every other expert."""
    lowest_in = np.take_along_axis(low_MN, order_MN[:, :top_k], 1).min(axis=1)
    others = np.take_along_axis(high_MN, order_MN[:, top_k:], 1)
    clear: Array = lowest_in > others.max(axis=1, initial=-np.inf)
    return clear


def _alternatives(
    low_N: Array, high_N: Array, order_N: Array, top_k: int
) -> tuple[list[Array], bool]:
    """The legal selections of one token, and whether these are all of them."""
    # An expert counts among those that may beat it, and never among those that surely do.
    may_beat = np.sum(high_N[None, :] >= low_N[:, None], axis=1) - 1
    surely_beat = np.sum(low_N[None, :] > high_N[:, None], axis=1)
    certain = [j for j in order_N if may_beat[j] < top_k]
    open_ = [j for j in order_N if may_beat[j] >= top_k and surely_beat[j] < top_k]
    tried = combinations(open_, top_k - len(certain))
    listed = []
    for some in islice(tried, MOST_TRIED):
        ids = np.array([*certain, *some], np.intp)
        outside = np.ones(len(low_N), np.bool_)
        outside[ids] = False
        if high_N[ids].min() >= low_N[outside].max(initial=-np.inf):
            listed.append(ids)
    complete = next(tried, None) is None and len(listed) <= MOST_LISTED
    return listed[:MOST_LISTED], complete


# Values ------------------------------------------------------------------------------------------


def score_balls(subject: Subject, x_MD: Array, parameters: LayerParameters) -> tuple[Any, Any]:
    """Scores and biased scores (M, N), in the routing format."""
    routing = subject.routing_arithmetic()
    logits = logit_ball(subject, x_MD, parameters).under(routing)
    s_MN = reference.scores(logits)
    bias_N = Ball.exact(parameters.e_score_correction_bias, routing)
    by_logit = subject.conventions.score_domain == "logit"
    return s_MN, (logits if by_logit else s_MN) + bias_N


def logit_ball(subject: Subject, x: Array, parameters: LayerParameters) -> Any:
    """The router's logits (…, N): computed like hidden states, or as coarsely as routing is."""
    arithmetic = subject.arithmetic
    if subject.routing_arithmetic().computed.roundoff > arithmetic.computed.roundoff:
        arithmetic = subject.routing_arithmetic(stored=subject.precision.storage)
    gate_weight: Any = Ball.exact(parameters.gate_weight, arithmetic)
    x_ball: Any = Ball.exact(x, arithmetic)
    return reference.router_logits(x_ball, gate_weight)


def _outputs(
    arithmetic: Arithmetic,
    x_RD: Array,
    parameters: LayerParameters,
    config: LayerConfig,
    routing: Routing,
) -> Ball:
    """Eq. 11 on given routings: (R, D), as wide as either way to evaluate the shared experts asks.

    S shared experts of width G are one of width S G; published layers do it either way, and
    neither rounds less than the other in every case. Routed and shared outputs are added in any
    order.
    """
    x: Any = Ball.exact(x_RD, arithmetic)

    def evaluated(parameters: LayerParameters) -> Ball:
        balls: Any = on_arrays(lambda array: Ball.exact(array, arithmetic), parameters)
        u = routed_sum(x, balls, routing, config=config)
        routed: Any = routed_output(u, balls, config=config)
        terms: Any = np.concatenate([routed[None], shared_outputs(x, balls, config=config)])
        return added_in_any_order(terms)

    apart = evaluated(parameters)
    if len(parameters.shared_experts.gate_proj) <= 1:
        return apart
    together = evaluated(with_shared_experts(parameters, 1))
    with np.errstate(invalid="ignore"):
        reach = together.radius + np.abs(together.value - apart.value)
        radius = np.maximum(apart.radius, reach)
    return Ball(apart.value, np.where(np.isnan(radius), np.inf, radius), arithmetic)


def with_shared_experts(parameters: LayerParameters, count: int) -> LayerParameters:
    """The same layer with the hidden units of its shared experts dealt to ``count`` experts.

    ``count`` divides the number S G of these units.
    """
    shared = parameters.shared_experts
    width = shared.gate_proj.shape[2]
    down_DG = shared.down_proj.transpose(1, 0, 2).reshape(width, -1)
    regrouped = replace(
        shared,
        gate_proj=shared.gate_proj.reshape(count, -1, width),
        up_proj=shared.up_proj.reshape(count, -1, width),
        down_proj=down_DG.reshape(width, count, -1).transpose(1, 0, 2),
    )
    return replace(parameters, shared_experts=regrouped)
