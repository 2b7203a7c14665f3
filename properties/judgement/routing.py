"""Is a routing legal, and what follows from it? The judgement that the routing properties share.

A correct router may round its biased scores either way inside their radius, so near-ties have
several right answers and expert ids are never compared. A selection is legal if it is *a* top-k:

    min over chosen of (value + radius)  >=  max over the others of (value - radius).

Weights and cutoffs are then computed from the implementation's own ids.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import reference_numpy as reference
from properties.checks import note_ratio, unknown, within
from properties.errors import ViolationError
from properties.protocol import Array
from properties.rounding import Arithmetic, Ball
from properties.strategies.arrays import laid_out
from properties.strategies.routing import Margin, Parting, RoutingInputs
from properties.subject import Routed, Subject

__all__ = [
    "Scored",
    "computed_exactly",
    "cutoff_ball",
    "float32_or_better",
    "on_grid",
    "renormalised",
    "require_agreement",
    "require_ids",
    "require_margin",
    "require_same_cutoff",
    "require_same_routing",
    "require_selection",
    "require_weights",
    "same_experts",
    "scored",
    "tokens",
    "total_ball",
    "weighed",
    "weights_ball",
]


class Scored(NamedTuple):
    """Scores (M, N) and what experts are chosen by, the biased scores (M, N), with their radii."""

    scores: Any
    biased: Any


def on_grid(subject: Subject, inputs: RoutingInputs) -> tuple[Array, Array]:
    """Logits in the storage format and the bias in the routing format, as float64, laid out.

    Formats that end below a drawn number are given half their largest one instead; infinities stay.
    """
    formats = (subject.arithmetic.stored, subject.routing_arithmetic().computed)
    largest = min(number.largest for number in formats) / 2
    logits, bias = (
        np.where(np.isfinite(drawn), np.clip(drawn, -largest, largest), drawn)
        for drawn in (inputs.logits, inputs.bias)
    )
    logits = subject.round_to_routing(subject.round_to_storage(logits))
    if inputs.level is not None and len(logits):
        bias = bias + (inputs.level - _choosing(subject, logits[0], reference.scores(logits[0])))
    bias = subject.round_to_routing(bias)
    if inputs.parting is not None:
        bias = _parted(subject, logits, bias, inputs.parting)
    return laid_out(logits, inputs.layout), laid_out(bias, inputs.layout)


def _parted(subject: Subject, logits: Array, bias: Array, parting: Parting) -> Array:
    """The bias that puts ``left`` as far below ``kept`` as the margin asks, at every token.

    Both have the same logit at a token, so their biased scores differ as their biases do.
    """
    level = bias[parting.kept]
    lower = bias.copy()
    lower[parting.left] = level
    if parting.margin != "exact":
        nearest = lower[parting.left] = _next_below(subject, level)
        biased = scored(subject, logits, lower).biased
        reach = biased.radius[:, parting.kept] + biased.radius[:, parting.left]
        gap = 0.75 * reach.min()
        if parting.margin == "clear":
            gap = max(2.0 * reach.max(), min(parting.factor * reach.max(), 4.0))
        lower[parting.left] = min(float(subject.round_to_routing(level - gap)), nearest)
    return lower


def _next_below(subject: Subject, value: float) -> float:
    """A neighbour of the value in the routing format, below it."""
    step = max(abs(value), 1.0) * subject.routing_arithmetic().computed.roundoff
    below = subject.round_to_routing(np.array([value - step, value - 2.0 * step]))
    return float(below[below < value][0])


def require_margin(subject: Subject, biased_MN: Any, top_k: int, margin: Margin) -> None:
    """Mark the case as undecided unless all tokens have that margin at their cutoff."""
    order = reference.top_k_ids(biased_MN.value, top_k + 1)[:, -2:]
    value = np.take_along_axis(biased_MN.value, order, axis=1)
    reach = np.take_along_axis(biased_MN.radius, order, axis=1).sum(axis=1)
    gap = value[:, 0] - value[:, 1]
    found = np.where(gap == 0.0, "exact", np.where(gap > reach, "clear", "inside"))
    if (found != margin).any():
        unknown(subject, f"no margin of the class {margin!r} in these formats")


def scored(
    subject: Subject,
    logits_MN: Array,
    bias_N: Array | Any,
    *,
    stored: str | None = None,
    arithmetic: Arithmetic | None = None,
) -> Scored:
    """What any implementation of the declared formats may have computed before it chooses.

    ``bias_N`` is an array or a Ball. ``stored`` is the format that results came in.
    """
    arithmetic = arithmetic or subject.routing_arithmetic(stored)
    logits = Ball.exact(logits_MN, arithmetic)
    bias = bias_N if isinstance(bias_N, Ball) else Ball.exact(bias_N, arithmetic)
    scores: Any = reference.scores(logits)  # type: ignore[arg-type]
    return Scored(scores, _choosing(subject, logits, scores) + bias)


def _choosing(subject: Subject, logits: Any, scores: Any) -> Any:
    return scores if subject.conventions.score_domain == "sigmoid" else logits


def float32_or_better(arithmetic: Arithmetic) -> Arithmetic:
    """The declared formats of routing, but float32 in place of coarser ones."""
    float32 = Arithmetic("float32", "float32", "float32")
    coarser = arithmetic.computed.roundoff > float32.computed.roundoff
    return float32 if coarser else arithmetic


def renormalised(subject: Subject, top_k: int) -> bool:
    """Whether the implementation's weights are divided by their sum at this top_k."""
    return top_k > 1 or subject.conventions.top1_renormalised


def require_ids(routed: Routed, num_experts: int) -> None:
    """Require ids in [0, N), K different ones per token."""
    ids_MK = routed.expert_ids
    outside = (ids_MK < 0) | (ids_MK >= num_experts)
    if outside.any():
        token, slot = np.argwhere(outside)[0]
        raise ViolationError(
            f"token {token} is sent to expert {ids_MK[token, slot]} (slot {slot}), "
            f"but ids lie in 0 … {num_experts - 1}"
        )
    ordered = np.sort(ids_MK, axis=1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    if twice.any():
        token, slot = np.argwhere(twice)[0]
        raise ViolationError(f"token {token} is sent to expert {ordered[token, slot]} twice")


def require_selection(
    subject: Subject, routed: Routed, biased_MN: Any, what: str = "selection"
) -> None:
    """Require legal ids: K different ones in [0, N) per token, a top-k of the biased scores."""
    require_ids(routed, biased_MN.shape[1])
    value, radius = biased_MN.value, biased_MN.radius
    chosen = np.zeros(value.shape, dtype=bool)
    np.put_along_axis(chosen, routed.expert_ids, True, axis=1)
    if not value.size or chosen.all():
        return
    reach = np.where(chosen, value + radius, np.inf)
    floor = np.where(chosen, -np.inf, value - radius)
    rows = np.arange(len(value))
    worst, best = np.argmin(reach, axis=1), np.argmax(floor, axis=1)
    with np.errstate(invalid="ignore"):  # the gap of equal infinities is NaN, which is not > 0
        gap = value[rows, best] - value[rows, worst]
    ratios = _in_units(gap, radius[rows, best] + radius[rows, worst])
    # Where every left-out floor is -inf, or every chosen reach inf, the index found says nothing.
    ratios = np.where(chosen[rows, worst] & ~chosen[rows, best], ratios, 0.0)
    token = int(np.argmax(ratios))
    note_ratio(subject, float(ratios[token]), what)
    if ratios[token] > 1.0:
        took, left = int(worst[token]), int(best[token])
        raise ViolationError(
            f"{what}: token {token} took expert {took} at {_told(biased_MN, token, took)} "
            f"and left expert {left} at {_told(biased_MN, token, left)}"
        )


def _in_units(gap: Array, radius: Array) -> Array:
    """How many radii a gap is, 0 where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0.0, gap / radius, 0.0)


def _told(biased_MN: Any, token: int, expert: int) -> str:
    return f"{biased_MN.value[token, expert]!s} ± {biased_MN.radius[token, expert]:.3g}"


def weights_ball(subject: Subject, scores_MN: Any, routed: Routed) -> Any:
    """The combine weights (M, K) that follow from the scores and the implementation's own ids.

    They are rounded to the format in which this call returned them; another call's may differ.
    """
    weights: Any = reference.combine_weights(
        scores_MN,
        routed.expert_ids,
        epsilon=subject.conventions.weight_epsilon,
        renormalise=renormalised(subject, routed.expert_ids.shape[1]),
    )
    if routed.weights_format != subject.precision.routing_format:
        arithmetic = subject.routing_arithmetic(routed.weights_format)
        weights = Ball(weights.value, weights.radius, arithmetic)
        weights = reference.stored(weights)
    return weights


def weighed(subject: Subject, scores_MN: Any, routed: Routed) -> Array:
    """The tokens (M,) that have weights: with a declared epsilon of 0, S may be 0, and p 0/0.

    So it is with an epsilon that the format of routing rounds to 0. Where S may be subnormal it may
    be read as 0.
    """
    chosen: Any = np.take_along_axis(scores_MN, routed.expert_ids, axis=1)
    least = 2.0 * subject.routing_arithmetic().computed.smallest_normal
    certain: Array = (chosen.value - chosen.radius).sum(axis=1) > least
    divided = renormalised(subject, routed.expert_ids.shape[1])
    epsilon = subject.round_to_routing(np.array(subject.conventions.weight_epsilon))
    return certain | (not divided or bool(epsilon > 0.0))


def require_weights(subject: Subject, routed: Routed, scores_MN: Any, what: str) -> None:
    """Require the weights that follow from the scores and the implementation's own ids."""
    rows = weighed(subject, scores_MN, routed)
    expected = weights_ball(subject, scores_MN, routed)
    within(subject, routed.weights[rows], expected[rows], what)


def total_ball(subject: Subject, scores_MN: Any, routed: Routed) -> Any:
    """The sum (M,) of each token's combine weights.

    Where they are normalised it is S / (S + epsilon), whatever the scores were rounded to: their
    errors cancel, and only the rounding of the k-term sum and of the quotients stays. That rounding
    is taken at the lower ends of the scores; at any others it is larger by less than the total is.
    """
    weights = weights_ball(subject, scores_MN, routed)
    if not renormalised(subject, routed.expert_ids.shape[1]):
        return np.sum(weights, axis=1)
    value, radius, arithmetic = scores_MN.value, scores_MN.radius, scores_MN.arithmetic
    low, high = (
        weights_ball(subject, Ball.exact(scores, arithmetic), routed)
        for scores in (np.maximum(value - radius, 0.0), value + radius)
    )
    least, most = low.value.sum(axis=1), high.value.sum(axis=1)
    total = weights.value.sum(axis=1)
    reach = np.maximum(total - least, most - total)
    spread = reach + (most - least) + low.radius.sum(axis=1)
    return Ball(total, np.where(np.isnan(spread), np.inf, spread), arithmetic)


def computed_exactly(subject: Subject, logits: Array, biased: Array) -> Array:
    """Tokens (M,) whose biased scores have the same bits in every correct implementation."""
    exact = subject.round_to_routing(biased) == biased
    if subject.conventions.score_domain == "sigmoid":
        exact &= (logits == 0.0) | (logits > 100.0) | (logits < -1000.0)
    rows: Array = np.all(exact, axis=1)
    return rows


def cutoff_ball(biased_MN: Any, top_k: int) -> Any:
    """The (K+1)-th largest biased score (M,). No order statistic moves further than its terms do.

    Its least and largest value are those of all scores at their lower and at their upper ends.
    """
    value, radius = biased_MN.value, biased_MN.radius
    middle, low, high = (
        reference.cutoff(scores, top_k) for scores in (value, value - radius, value + radius)
    )
    with np.errstate(invalid="ignore"):
        spread = np.maximum(high - middle, middle - low)
    spread = np.where((low == middle) & (high == middle), 0.0, spread)
    return Ball(middle, spread, biased_MN.arithmetic)


def same_experts(first: Routed, second: Routed) -> Array:
    """Which tokens (M,) both routings send to the same set of experts, in whatever order."""
    ordered = (np.sort(routed.expert_ids, axis=1) for routed in (first, second))
    same: Array = np.all(np.equal(*ordered), axis=1)
    return same


def require_agreement(
    subject: Subject, first: Routed, second: Routed, scores_MN: Any, what: str
) -> None:
    """Require equal weights by expert, up to both radii, for tokens with the same experts.

    Both routings are of the same tokens, whose scores are given.
    """
    rows = same_experts(first, second) & weighed(subject, scores_MN, first)
    one, other = _by_expert(first, rows), _by_expert(second, rows)
    radius = weights_ball(subject, scores_MN[rows], one).radius
    radius = radius + weights_ball(subject, scores_MN[rows], other).radius
    within(subject, one.weights, Ball(other.weights, radius, scores_MN.arithmetic), what)


def require_same_routing(
    subject: Subject, first: Routed, second: Routed, known: Scored, top_k: int, what: str
) -> None:
    """Require both routings of the same tokens to be legal, and to agree.

    Weights by expert agree up to both radii where the sets are the same, and so do cutoffs.
    ``known`` are the scores of these tokens.
    """
    for routed in (first, second):
        require_selection(subject, routed, known.biased, f"selection {what}")
    require_agreement(subject, first, second, known.scores, f"weight {what}")
    if top_k < known.biased.shape[1]:
        radius = 2.0 * cutoff_ball(known.biased, top_k).radius
        require_same_cutoff(subject, first.cutoff, second.cutoff, radius, f"cutoff {what}")


def tokens(routed: Routed, rows: Array) -> Routed:
    """The routing of some of the tokens, or of all in another order."""
    cutoff = None if routed.cutoff is None else routed.cutoff[rows]
    return routed._replace(
        expert_ids=routed.expert_ids[rows], weights=routed.weights[rows], cutoff=cutoff
    )


def require_same_cutoff(
    subject: Subject, first: Array | None, second: Array | None, radius: Array, what: str
) -> None:
    """Require cutoffs (M,) to be equal within the radius (M,), or to be left out both times.

    A batch without tokens has none, returned or not.
    """
    if (first is None and second is None) or radius.size == 0:
        return
    if first is None or second is None:
        raise ViolationError(f"{what}: a cutoff is returned at one call and not at another")
    within(subject, first, Ball(second, radius, subject.routing_arithmetic()), what)


def _by_expert(routed: Routed, rows: Array) -> Routed:
    """Some tokens' routing with the slots in the order of the expert ids."""
    ids, weights = routed.expert_ids[rows], routed.weights[rows]
    order = np.argsort(ids, axis=1)
    return routed._replace(
        expert_ids=np.take_along_axis(ids, order, axis=1),
        weights=np.take_along_axis(weights, order, axis=1),
    )
