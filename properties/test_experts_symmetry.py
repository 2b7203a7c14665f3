"""What Eq. 11 does not depend on: the order of slots, the names of experts, the rest of the batch.

Each property compares two calls of the implementation, forward and, where it is offered, backward.
The exact results are equal, so those of the implementation differ by at most both radii. Legend: M
tokens, N experts, K top_k, L latent width, H hidden width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.checks import within
from properties.judgement.experts import ExpertCall, Gradients, all_within, near, parts
from properties.protocol import Array, ExpertParameters
from properties.registry import specification
from properties.strategies import experts_seeded as experts
from properties.strategies.experts_seeded import Marked, Reordered, Twice
from properties.subject import Subject


@specification(
    "DSP-SLOTS", source="Eq. 11", needs=("experts",), examples=18, drawn=experts.other_slots()
)
def test_dsp_slots(subject: Subject, drawn: Reordered) -> None:
    """Permuting the K slots of a token, ids and weights together, changes nothing.

    Every token has a permutation of its own. In the backward pass the gradients of the weights go
    along with their slots; those of x and of the parameters stay.

    Hypotheses: those of DSP-DENSE, K at least 2.

    Proof: the sum of Eq. 11 runs over a set of experts.

    Legal freedoms: those of DSP-DENSE. Bit equality is not asked: the terms may be added in the
    order of the slots.

    If it fails: a slot is special. The last one or those beyond the eighth are dropped, the first
    one's weight serves all, or slots are taken to come in the order of descending weights or of
    ascending ids, which routers happen to give them.
    """
    inputs, order = drawn
    call = ExpertCall.of(subject, inputs)
    moved = call.slots(order)
    expected = near(call.result(), call.expected(), call.expected())
    within(subject, moved.result(), expected, "experts with permuted slots")
    if "experts_vjp" in subject.offered:
        first, balls = call.gradients(), call.expected_gradients()
        back = np.argsort(order, axis=1)
        second = moved.gradients()
        second = second._replace(weights=np.take_along_axis(second.weights, back, axis=1))
        all_within(subject, second, _near_all(first, balls, balls), " with permuted slots")


@specification(
    "DSP-RELABEL", source="Eq. 11", needs=("experts",), examples=18, drawn=experts.other_labels()
)
def test_dsp_relabel(subject: Subject, drawn: Reordered) -> None:
    """Renaming the experts, in the ids and in the stacks of parameters alike, changes nothing.

    In the backward pass the gradients of the parameters move to the new places.

    Hypotheses: those of DSP-DENSE, N at least 2; any permutation of the N experts.

    Proof: Eq. 11 uses ids for nothing but to look the experts up.

    Legal freedoms: those of DSP-DENSE. Experts come in another order, so a token's terms may be
    added in another order, too.

    If it fails: an id has a meaning of its own. The first or the last expert is never computed, an
    id is cut to a byte, 0 or N - 1 stands for "none", or offsets of the groups are wrong for some
    orders only, as after an expert without tokens.
    """
    inputs, name = drawn
    call = ExpertCall.of(subject, inputs)
    renamed = call.relabelled(name)
    expected = near(call.result(), call.expected(), call.expected())
    within(subject, renamed.result(), expected, "experts with other names")
    if "experts_vjp" in subject.offered:
        first, balls, second = call.gradients(), call.expected_gradients(), renamed.gradients()
        second = Gradients(second.x, second.weights, *(part[name] for part in second[2:]))
        all_within(subject, second, _near_all(first, balls, balls), " with other names")


@specification(
    "DSP-LINEAR", source="Eq. 11", needs=("experts",), examples=15, drawn=experts.two_weightings()
)
def test_dsp_linear(subject: Subject, drawn: Twice) -> None:
    """The result is linear in the weights: those of p + p' are those of p and of p' together.

    The weights' own gradients do not depend on the weights at all.

    Hypotheses: those of DSP-DENSE; both sets of weights are quarters up to 1, zeros included, so
    that their sum is exact in every format. They need not add up to 1.

    Proof: Eq. 11 is a sum of p_j E_j(x), and E_j(x) does not contain p. Hence u(p) + u(p') =
    u(p + p'), and du/dp_j = E_j(x).

    Legal freedoms: those of DSP-DENSE; slots of weight 0 may be skipped in the forward pass. In
    the backward pass they may not: the gradient of their weight is that of any other slot.

    If it fails: weights are normalised again, squared (applied before and after), clipped to 1 or
    applied before the activation; or a slot of weight 0 gets no gradient, so that its router logit
    never comes back.
    """
    inputs, others = drawn
    first = ExpertCall.of(subject, inputs)
    second = replace(first, weights=others)
    both = replace(first, weights=first.weights + others)
    balls = [call.expected() for call in (first, second, both)]
    added = first.result() + second.result()
    within(subject, both.result(), near(added, *balls), "experts of the sum of two weightings")
    if "experts_vjp" in subject.offered:
        ball = first.expected_gradients().weights  # which contains no weight
        expected = near(first.gradients().weights, ball, ball)
        within(subject, both.gradients().weights, expected, "d_weights at other weights")


@specification(
    "DSP-ROWS", source="Eq. 11", needs=("experts",), examples=20, drawn=experts.marked_rows()
)
def test_dsp_rows(subject: Subject, drawn: Marked) -> None:
    """A row depends on its own token and on its own experts, on nothing else in the batch.

    Some tokens are taken out of the batch and called alone. The parameters of every expert that
    none of them chose are replaced by others. Their rows, and the rows of their gradients, stay.

    Hypotheses: those of DSP-DENSE, M at least 2.

    Proof: row i of Eq. 11 contains x_i, p_i and the parameters of the K experts of T_i.

    Legal freedoms: those of DSP-DENSE. Bit equality is not asked: a smaller group may meet another
    kernel. (Serving stacks that promise batch invariance promise more than this.)

    If it fails: a capacity is shared, a tile's tail is computed from the neighbours' rows, rows are
    scaled by a common factor, statistics are taken over the batch, or an expert that was not
    chosen leaks in, as with a mask that is small instead of 0.
    """
    inputs, marked = drawn
    call = ExpertCall.of(subject, inputs)
    rows = np.flatnonzero(marked)
    alone = call.rows(rows)
    idle = alone.idle
    alone = replace(alone, parameters=_exchanged(subject, call.parameters, idle))
    expected = near(call.result()[rows], call.expected()[rows], alone.expected())
    within(subject, alone.result(), expected, "rows called alone")
    if "experts_vjp" in subject.offered:
        whole, balls = call.gradients(), call.expected_gradients()
        own, own_balls = alone.gradients(), alone.expected_gradients()
        for name in ("x", "weights"):
            first, ball = getattr(whole, name)[rows], getattr(balls, name)[rows]
            expected = near(first, ball, getattr(own_balls, name))
            within(subject, getattr(own, name), expected, f"d_{name} of rows called alone")


@specification(
    "DSP-NAN", source="Eq. 11", needs=("experts",), examples=18, drawn=experts.marked_rows()
)
def test_dsp_nan(subject: Subject, drawn: Marked) -> None:
    """A token that is not a number, or infinite, leaves every other token as it is.

    The marked rows of x (and of the cotangent, in the backward pass) are filled with NaN, +inf or
    -inf. All other rows of the result, of d_x and of d_weights are those of a batch without the
    marked rows.

    Hypotheses: those of DSP-DENSE, M at least 2; finite parameters and weights.

    Proof: see DSP-ROWS.

    Legal freedoms: whatever becomes of the marked rows themselves: NaN, an infinity, or a number
    from a kernel whose maximum drops NaN. Parameters' gradients, which are sums over tokens: a
    kernel that works on all tokens and masks afterwards may spread the NaN to experts which the
    marked tokens did not choose. A weight of 0 times an infinite expert output is not judged
    anywhere: it may be NaN or skipped.

    If it fails: rows are gathered by a product with a 0/1 matrix, in which 0 times NaN spreads to
    all; or a tile is masked after a sum over its rows. One bad token, as a corrupt sample or an
    overflow, then takes the answers of all other requests of its batch with it.
    """
    inputs, marked = drawn
    call = ExpertCall.of(subject, inputs)
    clean = call.rows(np.flatnonzero(~marked))
    broken = replace(
        call,
        x=_spoilt(subject, call.x, marked),
        cotangent=_spoilt(subject, call.cotangent, marked),
    )
    within(subject, broken.result()[~marked], clean.expected(), "rows beside a NaN")
    if "experts_vjp" in subject.offered:
        found, balls = broken.gradients(), clean.expected_gradients()
        within(subject, found.x[~marked], balls.x, "d_x beside a NaN")
        within(subject, found.weights[~marked], balls.weights, "d_weights beside a NaN")


def _near_all(first: Gradients, *balls: Gradients) -> Gradients:
    return Gradients(*(near(*columns) for columns in zip(first, *balls, strict=True)))


def _exchanged(subject: Subject, parameters: ExpertParameters, which: Array) -> ExpertParameters:
    """Half of their negatives, rounded to storage, for the parameters of some experts."""
    new = [part.copy() for part in parts(parameters)]
    for part in new:
        part[which] = subject.round_to_storage(-0.5 * part[which])  # halves of subnormals round
    return ExpertParameters(*new)


def _spoilt(subject: Subject, values: Array, rows: Array) -> Array:
    """NaN and, where storage has them, infinities of both signs in turn along the marked rows."""
    infinities = () if subject.arithmetic.stored.overflow_is_nan else (np.inf, -np.inf)
    bad = np.resize(np.array([np.nan, *infinities]), values.shape[1])
    return np.where(rows[:, None], bad, values)
