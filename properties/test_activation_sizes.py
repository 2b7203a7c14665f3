"""SiTU-GLU and its gradients at every size, and behind any leading axes.

Legend: B batches, S positions, H hidden units.
"""

from __future__ import annotations

from properties.judgement.activation import GradientCall
from properties.judgement.activation_sizes import behind_axes, require_both_ways
from properties.registry import specification
from properties.strategies import activation_sizes
from properties.strategies.activation_gradient import GradientInputs
from properties.subject import Subject

METHODS = ("situ_glu", "situ_glu_vjp")


@specification(
    "ACT-SIZES", source="Eq. 12", any_of=METHODS, examples=1, drawn=activation_sizes.at_sizes()
)
def test_act_sizes(subject: Subject, drawn: tuple[GradientInputs, ...]) -> None:
    """ACT-VALUE and ACT-VJP hold at every size that a kernel may have a path of its own for.

    Hypotheses: one axis of every power of two from 32 to 4096, and of more than 1,024 elements that
    are none; two axes that fill tiles one way and both, and that reach beyond the first tile both
    ways; three and four axes, all of them longer than 1, the last beyond 32, 64, 128 and 1,024.
    Gates and ups within three caps. Whichever of both methods is offered is judged.

    Proof: the operation is elementwise.

    Legal freedoms: those of ACT-VALUE and ACT-VJP.

    If it fails: a block of 1,024 threads without a loop leaves what comes after it; the path
    without masks, for full tiles, has a block less; the offset of a batch or a row is forgotten in
    every tile but the first, so that (B, S, H) is right for B = 1 and for H up to one tile.
    """
    for inputs in drawn:
        call = GradientCall.of(subject, inputs)
        require_both_ways(subject, call, f"of {call.cotangent.shape}")


@specification(
    "ACT-AXES", source="Eq. 12", any_of=METHODS, examples=1, drawn=activation_sizes.behind_axes()
)
def test_act_axes(subject: Subject, drawn: tuple[tuple[str, GradientInputs], ...]) -> None:
    """Elements are read where they lie, though the axes before the last do not merge into one.

    Hypotheses: gate, up or cotangent alone, or all three, are views of three and four axes: the
    beginnings or ends of longer sequences, every other position or batch, a corner of longer and
    wider sequences, positions before batches, backwards, and one position or batch for all by a
    stride of 0. Whichever of both methods is offered is judged.

    Proof: the operation is elementwise.

    Legal freedoms: those of ACT-VALUE and ACT-VJP; a copy first.

    If it fails: all rows are walked by one stride, that of the axis before the last, or by that of
    another argument. up[:, :S] of a longer buffer then meets the padding from the second batch on.
    """
    for name, inputs in drawn:
        for call, what in behind_axes(GradientCall.of(subject, inputs), name):
            require_both_ways(subject, call, what)
