"""Group-limited routing, as DeepSeek-V3 has it, where an implementation offers it.

Legend: M tokens, N routed experts, K top_k, G groups, T groups that a token may choose from;
s = sigmoid(logits), b the selection bias.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require
from properties.judgement.routing import (
    on_grid,
    require_same_routing,
    require_weights,
    scored,
    tokens,
    weighed,
)
from properties.judgement.routing_groups import require_grouped
from properties.protocol import Array
from properties.registry import specification
from properties.strategies import routing_groups, routing_sizes
from properties.strategies.arrays import laid_out
from properties.strategies.routing import RoutingInputs
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
    examples=120,
    inputs=routing_groups.grouped(),
)
def test_rtr_groups(subject: Subject, inputs: GroupedInputs) -> None:
    """Each token chooses the K best experts of its T best groups, by biased scores alone.

    A group is N / G consecutive experts and scores the sum of its two best s + b. The T best groups
    are open; the K best experts in them are chosen, weighed by their raw scores as in RTR-WEIGHTS.
    A cutoff, where one comes, is the best candidate left out.

    Hypotheses: finite logits behind any strides; a finite bias, down to -1e30, or -inf for all but
    two experts of each group and K no more than twice T; M from 0 to 131, and to 269 with many
    experts; N a multiple of 2 up to 896, in up to 448 groups of two experts or more, of 32 among
    them; K at most the number of experts in T groups. Groups tie, or have equal best experts, in a
    quarter of the cases. Source: the report sums the best K / M experts of a group, M the number of
    groups allowed, and its public code the best two, which is the same at K = 8, M = 4; the two are
    what libraries do and what is judged here.

    Legal freedoms: between groups whose scores tie or lie within their radii, either; between
    experts likewise, but that ``ties="lowest_index"`` holds among the experts of open groups where
    these are certain. Cutoffs are judged at tokens whose groups are certain.

    How it is checked: by scores; the implementation's ids tell which groups it opened, and these
    have to be possible, at most T, and no expert of a certainly open group may be better than a
    chosen one.

    If it fails: experts outside the open groups filled with 0 instead of -inf are chosen as soon as
    biased scores are negative, which centred biases make half of them, and filled with -1e9 as soon
    as a lower bias shuts experts out; a group scored by its best expert alone, or by unbiased
    scores, opens other groups; so do groups of every G-th expert.
    """
    logits, bias = on_grid(subject, inputs.routing)
    routed = _route(subject, inputs, logits, bias)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    groups = inputs.num_groups, inputs.top_groups
    require_grouped(subject, routed, logits, known, groups, "in groups")


@specification(
    "RTR-GROUP-FAR",
    source="Eq. 13",
    needs=("route_grouped",),
    examples=50,
    far=routing_groups.far(),
    poisoned=routing_groups.poisoned(),
)
def test_rtr_group_far(subject: Subject, far: GroupedInputs, poisoned: GroupedInputs) -> None:
    """RTR-INFINITE and RTR-NAN hold for groups, too, whether all of them are open or some.

    Logits of any size, ±inf included, give the experts and weights that RTR-GROUPS asks for, finite
    ones. A row with NaN keeps its ids in [0, N) and leaves every other row as it was.

    Hypotheses: those of RTR-INFINITE and of RTR-NAN with a finite bias, N >= 2; any number of
    groups of two experts or more, any number of them open, in a third of the cases all. Proof: a
    score is finite, whatever its logit, and so are the sums of two.

    Legal freedoms: those of both, and of RTR-GROUPS. Where the bias is added to logits: any groups
    if a total is the sum of inf and -inf, and any experts where candidates above -inf may run out.

    If it fails: closed groups are found by comparing their scores with a threshold, which fails for
    NaN, or masked by a product with 0; and the padding of one sequence takes all others with it.
    """
    logits, bias = on_grid(subject, far.routing)
    routed = _route(subject, far, logits, bias)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_grouped(
        subject, routed, logits, known, (far.num_groups, far.top_groups), "of infinite logits"
    )
    rows = weighed(subject, known.scores, routed)
    require(np.isfinite(routed.weights[rows]), "a weight of logits without NaN is not finite")

    logits, bias = on_grid(subject, poisoned.routing)
    nan = np.zeros(logits.shape, bool) if poisoned.nan is None else poisoned.nan
    spoilt = laid_out(np.where(nan, np.nan, logits), poisoned.routing.layout)
    routed = _route(subject, poisoned, spoilt, bias)
    inside = (routed.expert_ids >= 0) & (routed.expert_ids < len(bias))
    require(inside, f"an id beside a NaN lies outside of 0 … {len(bias) - 1}")
    healthy = np.flatnonzero(~nan.any(axis=1))
    kept, logits = tokens(routed, healthy), logits[healthy]
    known = scored(subject, logits, bias, stored=kept.weights_format)
    groups = poisoned.num_groups, poisoned.top_groups
    require_grouped(subject, kept, logits, known, groups, "beside a row with NaN")


def _route(subject: Subject, inputs: GroupedInputs, logits: Array, bias: Array) -> Routed:
    """``route_grouped`` with the groups of the inputs."""
    return subject.route_grouped(
        logits,
        bias,
        top_k=inputs.routing.top_k,
        num_groups=inputs.num_groups,
        top_groups=inputs.top_groups,
    )
