"""RMSNorm at every size, behind any leading axes, and one call after another.

Legend: B batches, S positions, L the normalised width.
"""

from __future__ import annotations

from properties.checks import within
from properties.judgement.norm import within_range
from properties.judgement.norm_calls import NormCalls, expected_norm
from properties.registry import specification
from properties.strategies import norm_sizes
from properties.strategies.apart import APART
from properties.strategies.norm import NormInputs
from properties.subject import Subject


@specification(
    "NRM-SIZES", source="Eq. 11", needs=("rms_norm",), examples=1, drawn=norm_sizes.at_sizes()
)
def test_nrm_sizes(subject: Subject, drawn: tuple[NormInputs, ...]) -> None:
    """NRM-VALUE holds at every size that a kernel may have a path of its own for.

    Hypotheses: L every power of two from 32 to 4096, and wider than 1,030 without being one, with
    two rows and more; both dimensions long; rows that fill a grid of programs, and a prime number
    of them (331 to 2,129), which leaves a remainder in any; 65,537 rows; up to three leading axes.
    Rows of a third to three times sqrt(eps), where a wrong eps shows in every format.

    Legal freedoms: those of NRM-VALUE.

    If it fails: a template for widths that fill their block, or a loop for rows longer than one,
    adds eps at another place, or keeps its running sum from row to row; persistent programs divide
    the rows among them and leave the rest as it was allocated; a tile forgets its offset where it
    is second both ways.
    """
    for inputs in drawn:
        inputs = within_range(subject, inputs)
        x, weight = (subject.round_to_storage(part) for part in (inputs.x, inputs.weight))
        found = subject.rms_norm(x, weight, eps=inputs.eps)
        ball = expected_norm(subject, x, weight, inputs.eps)
        within(subject, found, ball, f"rms_norm of {x.shape}")


@specification(
    "NRM-AXES", source="Eq. 11", needs=("rms_norm",), examples=6, drawn=norm_sizes.behind_axes()
)
def test_nrm_axes(subject: Subject, drawn: tuple[tuple[str, NormInputs], ...]) -> None:
    """Every row is normalised where it lies, though the axes before it do not merge into one.

    Hypotheses: views of three and four axes: the beginnings or ends of longer sequences, every
    other position or batch, a corner of longer and wider sequences, positions before batches,
    backwards, and one position or batch for all by a stride of 0.

    Legal freedoms: those of NRM-VALUE; a copy first.

    If it fails: all rows are walked by one stride, that of the axis before the last. x[:, :S] of a
    longer buffer, as prompts in a cache, then reads the padding from the second batch on.
    """
    for name, drawn_inputs in drawn:
        inputs = within_range(subject, drawn_inputs)
        x = APART[name](subject.round_to_storage(inputs.x))
        weight = subject.round_to_storage(inputs.weight)
        found = subject.rms_norm(x, weight, eps=inputs.eps)
        ball = expected_norm(subject, x, weight, inputs.eps)
        within(subject, found, ball, f"rms_norm of {name}")


@specification(
    "NRM-CALLS", source="Eq. 11", needs=("rms_norm",), examples=4, drawn=norm_sizes.in_a_row()
)
def test_nrm_calls(subject: Subject, drawn: tuple[NormInputs, NormInputs, NormInputs]) -> None:
    """Calls know nothing of each other: each is right, and its result stays as it was returned.

    Rows are normalised in the same memory: with one weight; with another that was written over it,
    as an optimiser changes parameters in place; other rows and another eps with that one; these
    once more; then rows of another shape, and the first ones again. Every array that was returned
    still has its bits at the end. Memory is poisoned with NaN before one call, where ``poison`` is
    offered.

    Hypotheses: those of NRM-VALUE. Proof: Eq. 11 is a function of its arguments.

    Legal freedoms: those of NRM-VALUE.

    If it fails: a working copy of the weight, or a mean square, is kept by address or by object
    while its values have changed, and the model trains with the norm it began with; eps is kept
    from the first call; or the result is the implementation's own buffer.
    """
    first, second, other = drawn
    calls = NormCalls(subject)
    calls.make(first, first)
    calls.make(first, second)
    calls.make(second, second, poisoned=True)
    calls.make(second, second)
    calls.make(other, other)
    calls.make(first, first)
    calls.require_unchanged()
