"""How SiTU-GLU takes its arguments: from any memory, gate first, and with caps that make sense."""

from __future__ import annotations

from properties.checks import within
from properties.judgement.activation_arguments import (
    Readings,
    in_memory,
    refused_or_off,
    told_apart,
)
from properties.registry import specification
from properties.strategies import activation_arguments
from properties.strategies.activation_arguments import MemoryInputs, OrderInputs, RejectInputs
from properties.subject import Subject


@specification(
    "ACT-LAYOUT",
    source="Eq. 12",
    needs=("situ_glu",),
    examples=64,
    inputs=activation_arguments.memory_inputs(),
)
def test_act_layout(subject: Subject, inputs: MemoryInputs) -> None:
    """Where the numbers lie in memory does not matter: views give what their copies give.

    Both results lie within the same radius, so they differ by at most twice that. Where the VJP is
    offered, the same holds for both gradients, also with the cotangent of a sum or a mean, which
    autograd hands over as a single number, a row or a column behind strides of 0.

    Hypotheses: gate, up and cotangent of one shape with one axis or more, 0 elements included, as
    views of any strides (0 and negative ones too) on aligned memory: halves of one tensor, by
    columns or by rows, interleaved, the same array twice, overlapping, at an odd offset, with gaps
    of NaN, transposed, and repeated along an axis; caps whose product storage can hold.

    Proof: the operation is elementwise.

    Legal freedoms: vector and scalar instructions, or different kernels for different strides,
    need not agree in the last bits.

    If it fails: a kernel takes the first address and the shape and ignores the strides; it assumes
    alignment, or that gate and up are separate tensors; or it cannot be called on no elements,
    as for an expert without tokens.
    """
    for name, found, expected in in_memory(subject, inputs):
        within(subject, found, expected, f"{name} on views: {inputs.memory}")


@specification(
    "ACT-ORDER",
    source="Eq. 12",
    needs=("situ_glu",),
    examples=40,
    inputs=activation_arguments.order_inputs(),
)
def test_act_order(subject: Subject, inputs: OrderInputs) -> None:
    """The first argument is the gate and the second up, each element beside its own.

    The result lies within the radius of that reading, and outside the radius of each wrong one
    that public code has: exchanged, columns interleaved where they are concatenated, the reverse,
    and the whole tensor cut in halves where each row should be.

    Hypotheses: rows of an even number of columns, numbers of the order of their caps, all
    different, so that no wrong reading is a right one by chance: somewhere the balls are disjoint.

    Proof: Eq. 12 is not symmetric, since only the gate passes through the sigmoid.

    Legal freedoms: those of ACT-VALUE.

    If it fails: the message says which reading was found. A checkpoint whose gate and up
    projections are fused into one matrix is loaded in the wrong order; the layer still trains.
    """
    told_apart(subject, Readings.of(subject, inputs))


@specification(
    "ACT-REJECT",
    source="Eq. 18",
    needs=("situ_glu",),
    examples=40,
    inputs=activation_arguments.reject_inputs(),
)
def test_act_reject(subject: Subject, inputs: RejectInputs) -> None:
    """A cap that is 0, negative, infinite or NaN is refused, or it switches its softcap off.

    Off is legal where ``Conventions.beta_off`` names the cap; where that is 0 or less, any cap up
    to 0 may mean it too. The softcap is then the identity, judged within the radius. Nothing else
    is: no result with NaN, and none as if the cap were some other number. The VJP refuses what
    the forward pass refuses.

    Hypotheses: one cap is one of 0, -0, -1, -4, -1e30, ±inf and NaN, the other one ordinary; finite
    gate and up.

    Proof: b tanh(z/b) is undefined at b = 0 and at NaN; at inf it is inf * 0, though its limit
    is z; for b < 0 it is the softcap of -b, so a sign error would go unseen.

    Legal freedoms: the kind of error and its words; it has to be raised on purpose: with a
    message, and not as a ZeroDivisionError, KeyError, AttributeError or another by-product.

    If it fails: a configuration that leaves a cap at 0 or None-like "off" trains on NaN from the
    first step, or, with a negative cap, on another activation than the one it names.
    """
    refused_or_off(subject, inputs)
