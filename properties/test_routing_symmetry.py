"""What routing must not depend on: the experts' numbering, memory, and the number of tokens.

Legend: M tokens, N routed experts, K top_k; s = sigmoid(logits), b the selection bias.
"""

from __future__ import annotations

import numpy as np

from properties.checks import within
from properties.errors import SuiteError
from properties.judgement.routing import (
    cutoff_ball,
    on_grid,
    require_margin,
    require_same_routing,
    require_selection,
    require_weights,
    scored,
)
from properties.registry import specification
from properties.strategies import routing_margins, routing_sizes
from properties.strategies.arrays import LAYOUTS, laid_out
from properties.strategies.routing import RoutingInputs
from properties.strategies.routing_sizes import RelabelledInputs
from properties.subject import Subject


@specification(
    "RTR-MARGIN", source="Eq. 13", needs=("route",), examples=70, inputs=routing_margins.margins()
)
def test_rtr_margin(subject: Subject, inputs: RoutingInputs) -> None:
    """A clear margin at the cutoff decides the choice; inside the radius, or tied, either is right.

    Three classes, stated by each case and drawn equally often. "Clear": at every token the K-th
    and the (K+1)-th biased score lie further apart than both radii, so that exactly one set of
    experts is right. "Inside": they differ by less than that. "Exact": they are equal. In all
    three, weights and cutoff are those of the experts that were chosen.

    Hypotheses: finite logits, K < N, one logit for the two experts at each token, and biases that
    keep all others away from the cutoff. Margins are made in units of the radius that the declared
    formats have, so "clear" begins right behind it, at twice the radius.

    Legal freedoms: in the last two classes, either expert. No ids are compared.

    How it is checked: the choice by its scores, never by ids; weights and cutoff from the
    implementation's own ids.

    If it fails: in "clear", routing loses digits that the declared format has (a coarser bias, or
    scores rounded on the way); in the others, ties make a kernel choose one expert twice or none,
    or give it weights that belong to the other choice.
    """
    if inputs.parting is None:
        raise SuiteError("a case of RTR-MARGIN came without its class of margin")
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    margin = inputs.parting.margin
    require_margin(subject, known.biased, inputs.top_k, margin)
    require_selection(subject, routed, known.biased, f"selection, margin {margin}")
    require_weights(subject, routed, known.scores, f"weights, margin {margin}")
    if routed.cutoff is not None:
        expected = cutoff_ball(known.biased, inputs.top_k)
        within(subject, routed.cutoff, expected, f"cutoff, margin {margin}")


@specification(
    "RTR-RELABEL",
    source="Eq. 13",
    needs=("route",),
    examples=130,
    inputs=routing_sizes.relabelled(),
)
def test_rtr_relabel(subject: Subject, inputs: RelabelledInputs) -> None:
    """Relabelling the experts relabels the ids and changes nothing else.

    With the columns of the logits and the entries of the bias permuted alike, each token's experts
    are the same ones under their new ids, with the same weights, and the cutoff is the same.

    Hypotheses: finite logits, a bias that is finite or -inf, N in 2, 3, 5, 8, 17, 32, 48, 64, 80,
    96, 127 to 129, 144, 160, 192, 254 to 257, 320, 384, 512, 896 or any from 33 to 512 (N = 1 has
    no other labels), any permutation, the rotation by one, the reversal, and those that put a
    token's best experts side by side or 32 apart.
    Proof: Eq. 13 has no index but the expert's own; a sum over the chosen set has no order.

    Legal freedoms: another choice among ties and inside the radii, another order of the slots; so
    weights are compared by expert, up to both radii, at tokens with the same set.

    If it fails: some experts are not candidates, or count differently: those past a power of two or
    past 255, where ids end in 8 bits; the last ones of a vector that is no multiple of a lane; the
    second of two that a kernel reads as a pair; those beyond the few that each thread keeps, when
    most of the best are in one thread's share, as they are with experts sorted by popularity.
    """
    case, order = inputs.routing, inputs.order
    logits, bias = on_grid(subject, case)
    plain = subject.route(logits, bias, top_k=case.top_k)
    renamed = subject.route(logits[:, order], bias[order], top_k=case.top_k)
    known = scored(subject, logits, bias, stored=plain.weights_format)
    require_selection(subject, renamed, known.biased[:, order], "selection with other labels")
    back = renamed._replace(expert_ids=order[renamed.expert_ids])
    require_same_routing(subject, back, plain, known, case.top_k, "with other labels")


@specification(
    "RTR-STRIDE",
    source="Eq. 13",
    needs=("route",),
    examples=40,
    inputs=routing_sizes.laid_out_anyhow(),
)
def test_rtr_stride(subject: Subject, inputs: RoutingInputs) -> None:
    """Logits and a bias behind any strides are routed as their contiguous copies are.

    Logits come contiguous, with their columns backwards, as a slice of wider rows, as every other
    number of a buffer, and transposed; the bias as every other number, sliced or backwards. NaN
    lies between the numbers. Strides may be 0: one token stands for all, one number for the bias.

    Hypotheses: as for RTR-RELABEL. Proof: strides are no part of Eq. 13.

    Legal freedoms: another choice among ties and inside the radii, since another memory order may
    take another path through a vector loop; weights and cutoffs equal up to both radii. Ids and
    weights that are themselves columns of a wider array, as after a top-(K+1), go into the experts:
    there (DSP-LAYOUT) it is judged that they are read by their strides.

    If it fails: a kernel takes the address of the first number and the shape, and reads on: the
    logits of a sliced or fused projection are then those of other experts, or of padding.
    """
    logits, bias = on_grid(subject, inputs)
    plain = subject.route(np.ascontiguousarray(logits), bias, top_k=inputs.top_k)
    known = scored(subject, logits, bias, stored=plain.weights_format)
    for layout in LAYOUTS[1:]:
        lying = laid_out(logits, layout), laid_out(bias, layout)
        routed = subject.route(*lying, top_k=inputs.top_k)
        require_same_routing(subject, routed, plain, known, inputs.top_k, f"of {layout} logits")
    logits, bias = np.broadcast_to(logits[:1], logits.shape), np.broadcast_to(0.0, bias.shape)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_selection(subject, routed, known.biased, "selection of expanded arguments")
    require_weights(subject, routed, known.scores, "weights of expanded arguments")


@specification(
    "RTR-LARGE", source="Eq. 13", needs=("route",), examples=48, inputs=routing_sizes.large()
)
def test_rtr_large(subject: Subject, inputs: RoutingInputs) -> None:
    """Thousands of tokens are routed like few: every row gets its experts, weights and cutoff.

    Hypotheses: as for RTR-VALID, M from 513 to 65,537, mostly no multiple of 8, with N = 2, 3, 5,
    8, 16, 24, 32, 64, 128, 256 and K up to 32 (6, 9, 10, 12, 22, 24 among them), so that M, M K and
    M N lie on both sides of 2^15 and 2^16; M from 67 on with N = 512 and 896.

    Legal freedoms: those of RTR-VALID, RTR-WEIGHTS and RTR-CUTOFF, which are what is judged.

    If it fails: rows after the first 512, 1,024 or 65,535 (one dimension of a CUDA grid), or after
    64 where so many experts leave no room for more, stay as they were allocated or are another's;
    the last rows of a batch that is no multiple of the tile do; or an offset of a slot, token times
    K, is kept in 16 bits and meets another token's row.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_selection(subject, routed, known.biased)
    require_weights(subject, routed, known.scores, "weights")
    if routed.cutoff is not None and inputs.top_k < len(bias):
        within(subject, routed.cutoff, cutoff_ball(known.biased, inputs.top_k), "cutoff")
