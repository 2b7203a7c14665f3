"""Group-limited routing, as DeepSeek-V3 has it, where an implementation offers it.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from;
s = sigmoid(logits), b the selection bias.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require, within
from properties.judgement.routing import (
    cutoff_ball,
    on_grid,
    require_ids,
    require_same_routing,
    require_selection,
    require_weights,
    scored,
    tokens,
    weighed,
)
from properties.judgement.routing_groups import (
    group_totals,
    open_groups,
    require_grouped_selection,
)
from properties.protocol import Array
from properties.registry import specification
from properties.strategies import routing_extremes, routing_groups, routing_sizes
from properties.strategies.arrays import laid_out
from properties.strategies.routing import RoutingInputs
from properties.strategies.routing_extremes import PoisonedInputs
from properties.strategies.routing_groups import GroupedInputs
from properties.subject import Routed, Subject


@specification(
    "RTR-GROUP1",
    source="Eq. 13",
    needs=("route", "route_grouped"),
    examples=60,
    inputs=routing_sizes.laid_out_anyhow(),
)
def test_rtr_group1(subject: Subject, inputs: RoutingInputs) -> None:
    """Routing limited to one of one group is routing: the same experts, weights and cutoff.

    Hypotheses: as for RTR-RELABEL; N >= 2, since a group scores by its two best experts. Proof:
    every expert is a candidate.

    Legal freedoms: another choice among ties; weights and cutoffs equal up to both radii; no cutoff
    from either.

    If it fails: the models that have one group, Kimi K3's among them, go through this path in
    libraries that were written for eight, and leave it with other experts.
    """
    logits, bias = on_grid(subject, inputs)
    plain = subject.route(logits, bias, top_k=inputs.top_k)
    grouped = subject.route_grouped(logits, bias, top_k=inputs.top_k, num_groups=1, top_groups=1)
    if grouped.cutoff is None or plain.cutoff is None:
        grouped, plain = grouped._replace(cutoff=None), plain._replace(cutoff=None)
    known = scored(subject, logits, bias, stored=plain.weights_format)
    require_same_routing(subject, grouped, plain, known, inputs.top_k, "in one group")
    require_weights(subject, grouped, known.scores, "weights in one group")


@specification(
    "RTR-GROUPS",
    source="DeepSeek-V3, arXiv 2412.19437, 2.1.2",
    needs=("route_grouped",),
    examples=80,
    inputs=routing_groups.grouped(),
)
def test_rtr_groups(subject: Subject, inputs: GroupedInputs) -> None:
    """Each token chooses the K best experts of its T best groups, by biased scores alone.

    A group is N / G consecutive experts and scores the sum of its two best s + b. The T best groups
    are open; the K best experts in them are chosen, weighed by their raw scores as in RTR-WEIGHTS.
    A cutoff, where one comes, is the best candidate left out.

    Hypotheses: finite logits and bias behind any strides; M from 0 to 131; up to 32 groups of two
    experts or more; K at most the number of experts in T groups. Source: the report sums the best
    K / M experts of a group, M the number of groups allowed, and its public code the best two,
    which is the same at K = 8, M = 4; the two are what libraries do and what is judged here.

    Legal freedoms: between groups whose scores tie or lie within their radii, either; between
    experts likewise. Cutoffs are judged at tokens whose groups are certain.

    How it is checked: by scores; the implementation's ids tell which groups it opened, and these
    have to be possible, at most T, and no expert of a certainly open group may be better than a
    chosen one.

    If it fails: experts outside the open groups filled with 0 instead of -inf are chosen as soon as
    biased scores are negative, which centred biases make half of them; a group scored by its
    best expert alone, or by unbiased scores, opens other groups; so do groups of every G-th expert.
    """
    case = inputs.routing
    groups = {"num_groups": inputs.num_groups, "top_groups": inputs.top_groups}
    logits, bias = on_grid(subject, case)
    routed = subject.route_grouped(logits, bias, top_k=case.top_k, **groups)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    opened = open_groups(group_totals(known.biased, inputs.num_groups), inputs.top_groups)
    limited = require_grouped_selection(subject, routed, known.biased, opened, inputs.top_groups)
    require_weights(subject, routed, known.scores, "weights in groups")
    if routed.cutoff is None:
        return
    if case.top_k == len(bias) // inputs.num_groups * inputs.top_groups:
        require(~np.isfinite(routed.cutoff), "a finite cutoff, though no candidate is left out")
        return
    sure = np.all(opened.certain == opened.possible, axis=1)
    within(subject, routed.cutoff[sure], cutoff_ball(limited, case.top_k)[sure], "cutoff in groups")


@specification(
    "RTR-GROUP-FAR",
    source="Eq. 13",
    needs=("route_grouped",),
    examples=40,
    far=routing_extremes.infinite(),
    poisoned=routing_extremes.poisoned(),
)
def test_rtr_group_far(subject: Subject, far: RoutingInputs, poisoned: PoisonedInputs) -> None:
    """RTR-INFINITE and RTR-NAN hold for groups, too, when all of them are open.

    Logits of any size, ±inf included, give experts and weights as in routing without groups. A row
    with NaN keeps its ids in [0, N) and leaves every other row as it was.

    Hypotheses: those of RTR-INFINITE and of RTR-NAN, N >= 2; four groups, or three, two or one,
    whichever N allows; every token may choose from all of them. Proof: then every expert is a
    candidate, whatever the groups score, be it infinite or the sum of inf and -inf.

    Legal freedoms: those of both.

    If it fails: closed groups are found by comparing their scores with a threshold, which fails for
    NaN, or masked by a product with 0; and the padding of one sequence takes all others with it.
    """
    logits, bias = on_grid(subject, far)
    routed = _all_groups_open(subject, logits, bias, far.top_k)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_selection(subject, routed, known.biased, "selection among infinite logits")
    rows = weighed(subject, known.scores, routed)
    require(np.isfinite(routed.weights[rows]), "a weight of logits without NaN is not finite")
    require_weights(subject, routed, known.scores, "weights of infinite logits")

    logits, bias = on_grid(subject, poisoned.routing)
    top_k, lost = poisoned.routing.top_k, poisoned.nan.any(axis=1)
    spoilt = laid_out(np.where(poisoned.nan, np.nan, logits), poisoned.routing.layout)
    routed = _all_groups_open(subject, spoilt, bias, top_k)
    inside = (routed.expert_ids >= 0) & (routed.expert_ids < len(bias))
    require(inside, f"an id beside a NaN lies outside of 0 … {len(bias) - 1}")
    kept = tokens(routed, np.flatnonzero(~lost))
    require_ids(kept, len(bias))
    plain = _all_groups_open(subject, logits[~lost], bias, top_k)
    known = scored(subject, logits[~lost], bias, stored=plain.weights_format)
    require_same_routing(subject, kept, plain, known, top_k, "in groups beside a row with NaN")


def _all_groups_open(subject: Subject, logits: Array, bias: Array, top_k: int) -> Routed:
    """``route_grouped`` with as many groups of two experts or more as divide N, up to four."""
    count = len(bias)
    groups = next(g for g in (4, 3, 2, 1) if count % g == 0 and count // g >= 2)
    open_ = {"num_groups": groups, "top_groups": groups}
    return subject.route_grouped(logits, bias, top_k=top_k, **open_)
