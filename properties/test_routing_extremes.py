"""The router far out: infinite, NaN and saturated logits, experts shut out, all experts, one.

Legend: M tokens, N routed experts, K top_k; s = sigmoid(logits), b the selection bias.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require, within
from properties.errors import ViolationError
from properties.judgement.routing import (
    Scored,
    cutoff_ball,
    float32_or_better,
    on_grid,
    renormalised,
    require_ids,
    require_same_routing,
    require_selection,
    require_weights,
    scored,
    tokens,
    weighed,
)
from properties.judgement.routing_updates import require_idle_balancer, require_idle_update
from properties.protocol import Array
from properties.registry import specification
from properties.strategies import routing_extremes
from properties.strategies.arrays import laid_out
from properties.strategies.routing import RoutingInputs
from properties.strategies.routing_extremes import PoisonedInputs
from properties.subject import Subject


@specification(
    "RTR-INFINITE",
    source="Eq. 13",
    needs=("route",),
    examples=80,
    inputs=routing_extremes.infinite(),
)
def test_rtr_infinite(subject: Subject, inputs: RoutingInputs) -> None:
    """Logits of any size, ±inf included, give valid experts and finite weights >= 0.

    A logit of -inf has the score 0 and one of +inf the score 1, exactly, and they are selected,
    weighed and cut off like any others: K scores of 0 weigh 0 each, as 0 / (0 + epsilon).

    Hypotheses: each row holds one extreme, a few, or all of 0, ±1, 18, 30, 1e4, 1e30, +inf and -20,
    -46, -87, -88, -100, -104, -110, -745, -1e8, -1e30, -inf; a finite bias, often 0, so that most
    of these rows tie. With a declared epsilon of 0, tokens whose scores are all 0 are exempt.

    Legal freedoms: scores that are subnormal read as 0. A router that can only be reached through
    hidden states cannot be given ±inf by an identity weight (inf times 0 is NaN): its adapter has
    to hand over what the router computes from such logits, by another way.

    If it fails: exp(z) / (1 + exp(z)) is inf / inf = NaN from 89 on in float32; a mask that fills
    logits with -inf gives NaN weights where only such experts are left; weights divide by a sum
    that has underflown.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_selection(subject, routed, known.biased)
    rows = weighed(subject, known.scores, routed)
    require(np.isfinite(routed.weights[rows]), "a weight of logits without NaN is not finite")
    require(routed.weights[rows] >= 0.0, "a weight is negative")
    require_weights(subject, routed, known.scores, "weights")
    if routed.cutoff is not None and inputs.top_k < len(bias):
        within(subject, routed.cutoff, cutoff_ball(known.biased, inputs.top_k), "cutoff")


@specification(
    "RTR-NAN", source="Eq. 13", needs=("route",), examples=80, inputs=routing_extremes.poisoned()
)
def test_rtr_nan(subject: Subject, inputs: PoisonedInputs) -> None:
    """A row with NaN keeps its ids in [0, N) and leaves every other row as it was.

    The other rows are routed as they are in a batch where the poisoned rows hold zeros: the same
    experts up to ties, the same weights and cutoffs up to both radii.

    Hypotheses: rows with NaN everywhere, in one place, at their best expert, or everywhere but in
    one place; the second half of the batch, as padding; a single token; a bias that is finite or
    -inf.

    Legal freedoms: which experts a poisoned row gets, even one twice; its weights and its cutoff,
    NaN or not.

    If it fails: comparisons with NaN are false, so a search for the maximum finds no expert and
    leaves -1, N or memory's garbage as the id, and the dispatch writes out of bounds; or one padded
    token's NaN enters a statistic of the batch and takes all other tokens with it.
    """
    logits, bias = on_grid(subject, inputs.routing)
    poisoned, healthy = (_filled(inputs, logits, value) for value in (np.nan, 0.0))
    routed = subject.route(poisoned, bias, top_k=inputs.routing.top_k)
    outside = (routed.expert_ids < 0) | (routed.expert_ids >= len(bias))
    if outside.any():
        token, slot = np.argwhere(outside)[0]
        raise ViolationError(
            f"token {token} is sent to expert {routed.expert_ids[token, slot]}, "
            f"but ids lie in 0 … {len(bias) - 1}"
        )
    plain = subject.route(healthy, bias, top_k=inputs.routing.top_k)
    known = scored(subject, healthy, bias, stored=plain.weights_format)
    rows: Array = np.logical_not(inputs.nan.any(axis=1))
    require_same_routing(
        subject,
        tokens(routed, rows),
        tokens(plain, rows),
        Scored(known.scores[rows], known.biased[rows]),
        inputs.routing.top_k,
        "beside a row with NaN",
    )
    require_weights(subject, tokens(routed, rows), known.scores[rows], "weights beside NaN")


def _filled(inputs: PoisonedInputs, logits: Array, value: float) -> Array:
    """The logits with NaN, or whole zero rows in its place."""
    where = inputs.nan if np.isnan(value) else inputs.nan.any(axis=1, keepdims=True)
    return laid_out(np.where(where, value, logits), inputs.routing.layout)


@specification(
    "RTR-NEGINF", source="Eq. 13", needs=("route",), examples=70, inputs=routing_extremes.walled()
)
def test_rtr_neginf(subject: Subject, inputs: RoutingInputs) -> None:
    """A bias of -inf shuts an expert out: it is never chosen while K others have a finite one.

    Exact, without a radius. The weights are those of the experts that were chosen.

    Hypotheses: finite logits; K to N - 1 finite biases, from 0 down to about -1e30; the experts
    that are shut out often have the largest logits. Proof: s <= 1, so s - inf = -inf, which is
    below every finite number; with a bias that is added to logits the same holds.

    Legal freedoms: the choice among the others, as in RTR-VALID.

    If it fails: a broken or missing expert gets tokens, as where a mask is built from -inf. Found
    with a "large negative number" (-1e4, -1e9) in place of -inf, which a bias of that size is
    below; with (s + b) - b, which is NaN there; and with non-finite biased scores set to 0.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    require_ids(routed, len(bias))
    shut = bias[routed.expert_ids] == -np.inf
    if shut.any():
        token, slot = np.argwhere(shut)[0]
        raise ViolationError(
            f"token {token} is sent to expert {routed.expert_ids[token, slot]}, whose bias is -inf,"
            f" though {int(np.isfinite(bias).sum())} experts have a finite one"
        )
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_selection(subject, routed, known.biased)
    require_weights(subject, routed, known.scores, "weights beside experts shut out")


@specification(
    "RTR-SMALLGAP",
    source="Eq. 13, 14",
    needs=("route",),
    examples=80,
    inputs=routing_extremes.small_gaps(),
)
def test_rtr_smallgap(subject: Subject, inputs: RoutingInputs) -> None:
    """A bias with a common offset of 34.5 and a spread of 1e-4 still selects as float32 does.

    Two biased scores further apart than their float32 radii (or those of a finer declared format)
    are never swapped: float32 has steps of 4e-6 at 34.5.

    Hypotheses: offsets 34.5, -34.5, 100 and 10; spreads of 1e-4 to 1e-3; equal logits, so that the
    bias alone decides, or scores that differ by as little. A format coarser than float32 for scores
    or bias is no declared freedom here, as in RTR-SCORES.

    Legal freedoms: the choice inside the radii.

    If it fails: the offset, which changes nothing (RTR-SHIFT), hides the balance that the spread
    holds. Biases that are not centred drift there in training. bfloat16 has steps of 1/4 at 34.5,
    float16 of 1/32, and TF32 of 1/32: all experts tie, and the first K serve every token.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    arithmetic = float32_or_better(subject.routing_arithmetic())
    biased = scored(subject, logits, bias, arithmetic=arithmetic).biased
    require_selection(subject, routed, biased, "selection under an offset")


@specification(
    "RTR-ONE", source="Eq. 13", needs=("route",), examples=60, inputs=routing_extremes.one_chosen()
)
def test_rtr_one(subject: Subject, inputs: RoutingInputs) -> None:
    """With K = 1 the single weight is s / (s + epsilon), or s where ``top1_renormalised`` is off.

    Hypotheses: finite logits, scores from 1 down to 1e-26 and further, to where epsilon (1e-20)
    outweighs them.

    Legal freedoms: which of the two, since implementations are split: it has to be declared.

    If it fails: undeclared, the routed part of a layer with K = 1 is off by the factor 1 / s. A
    weight of exactly 1, as a router without epsilon has it, differs where s is near epsilon or 0,
    and its gradient is 0 / 0 there.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=1)
    known = scored(subject, logits, bias, stored=routed.weights_format)
    require_selection(subject, routed, known.biased)
    rule = "s / (s + epsilon)" if renormalised(subject, 1) else "s"
    require_weights(subject, routed, known.scores, f"single weight {rule}")


@specification(
    "RTR-ALL",
    source="Eq. 13, 14",
    needs=("route",),
    examples=50,
    inputs=routing_extremes.all_chosen(),
)
def test_rtr_all(subject: Subject, inputs: RoutingInputs) -> None:
    """With K = N every token goes to every expert, and nothing is left to balance.

    Each token has each id once, the weights are s_j / (sum of all s + epsilon), and there is no
    finite cutoff: none, -inf or NaN. ``quantile_update`` and a balancer, where offered, leave the
    bias exactly as it was, or refuse with a ValueError or NotImplementedError that says why.

    Hypotheses: finite logits, a bias that is finite or -inf for the router, finite for the updates.
    Proof: alpha is the (K+1)-th largest of N = K biased scores, which does not exist, so Eq. 14 has
    no required bias, and every load is M.

    Legal freedoms: the order of the slots. An update that would merely centre the bias moves it
    without a reason; the next one would find it centred, so the bias would depend on the number
    of updates.

    If it fails: top-(K+1) of N experts raises in the middle of a run, as torch.topk does; or the
    K-th score is taken for the missing one, and the bias drifts where no bias matters.
    """
    logits, bias = on_grid(subject, inputs)
    routed = subject.route(logits, bias, top_k=inputs.top_k)
    require_ids(routed, len(bias))
    scores = scored(subject, logits, bias, stored=routed.weights_format).scores
    require_weights(subject, routed, scores, "weights over all experts")
    if routed.cutoff is not None:
        require(~np.isfinite(routed.cutoff), "a finite cutoff, though no expert is left out")
    held = np.where(np.isfinite(bias), bias, 0.0)
    if "quantile_update" in subject.offered:
        require_idle_update(subject, logits, held)
    if "balancer" in subject.offered:
        require_idle_balancer(subject, logits, held)
