"""The layer called in every way that callers do: at size, far off, in turn, and from any memory.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, S shared experts.
"""

from __future__ import annotations

from properties.judgement.layer_repeats import (
    Judged,
    Rewritten,
    digits_left,
    expanded,
    laid_out_in,
    sequences,
    shortened,
)
from properties.judgement.memory import Kept
from properties.registry import specification
from properties.strategies import layer_calls
from properties.strategies.arrays import LAYOUTS
from properties.strategies.layer_calls import EverySize, LongGradients, SizedInputs
from properties.subject import Subject

# Of the calls of LAY-CALLS, so many are of the same sizes, which can lie in the same memory.
SAME_SIZES = 3


@specification(
    "LAY-SIZES",
    source="Eq. 11",
    needs=("layer",),
    examples=1,
    long=True,
    inputs=layer_calls.at_size(),
)
def test_lay_sizes(subject: Subject, inputs: EverySize) -> None:
    """Eq. 11 holds beyond the size of a tile: 2112 tokens, widths to 192, 600 experts, 17 slots.

    ``layer_vjp``, where offered, is judged on the same inputs, as in LAY-GRAD.

    Hypotheses: as in LAY-VALUE; one layer each of 18 sizes, M from 1 to 2112, N to 600, K to 17, S
    to 5, widths from 2 to 192. Most widths are no multiple of 4; of the others three layers have
    widths all multiples of 16, of 64, and of 64 and 128. 64 and 128 experts are among them, and an
    expert with 2112 tokens, which is 33 times 64; amplitudes 0.1, 1 and 10. In an accumulate format
    of less than 13 bits, and in float8, no projection is dense and no width above 32. The cotangent
    is 0 for tokens with several legal selections.

    Legal freedoms: those of LAY-VALUE and LAY-GRAD.

    If it fails while LAY-VALUE and LAY-GRAD hold: tokens beyond an expert's capacity, beyond a
    chunk or after the last full tile are left out, or the last tile where all are full; a tile
    forgets its offset where it is second both ways; gradients of several shared experts that were
    computed as one are taken apart wrongly; a width is cut down to a multiple of 8, 16 or 128; the
    path for aligned widths or powers of two is another function; ids end at 255 or 511; the
    backward pass has a table of eight or sixteen slots; or only the gradient of the first chunk is
    kept.
    """
    for one in inputs.layers(digits_left(subject)):
        judged = Judged.of(subject, one)
        judged.require_output(subject, f" at size {one!r}")
        judged.require_gradients(subject, f" at size {one!r}")


@specification(
    "LAY-FAR", source="Eq. 11", needs=("layer",), examples=11, inputs=layer_calls.far_off()
)
def test_lay_far(subject: Subject, inputs: SizedInputs) -> None:
    """Eq. 11 holds for tokens of amplitude 1e-8 to 1e-6 and 1e4 to 1e6, and so do its gradients.

    Hypotheses: as in LAY-VALUE; the router's weight is scaled so that large tokens do not saturate
    it. Where storage, compute or accumulate is float16, tokens are at most a 64th of its largest
    number.

    Legal freedoms: those of LAY-VALUE and LAY-GRAD; subnormal numbers read as 0.

    If it fails while LAY-VALUE and LAY-TINY hold: hidden states are clipped or quantised with a
    fixed step, small ones are cut off, or a bound guards a square root or a quotient that needs
    none. Hidden states grow with depth and by thousands in single dimensions.
    """
    judged = Judged.of(subject, inputs)
    judged.require_output(subject, " far off")
    judged.require_gradients(subject, " far off")


@specification(
    "LAY-GRAD-MIXED",
    source="Eq. 11",
    needs=("layer_vjp",),
    examples=12,
    inputs=layer_calls.long_gradients(),
)
def test_lay_grad_mixed(subject: Subject, inputs: LongGradients) -> None:
    """Gradients, too, are accumulated in the declared format: over tokens, and over each width.

    There are 600 tokens, or one of D, L, H and the shared experts' hidden width is 1024: or 2^p / 8
    in an accumulate format of p < 13 bits, whose radius would be as large as the sum. Every term of
    every sum is positive and of about one size, but for the router, whose terms keep their sign
    from token to token. The gradients equal those of LAY-GRAD within the radius of the declared
    formats.

    Why: a running sum in a format of p bits stops growing at 2^p equal terms (LAY-MIXED). The
    gradient of each parameter is a sum over all tokens, longer than any of the forward pass.

    Hypotheses: bfloat16 or any other storage; N = 3, K = 2, S = 1, an identity norm.

    Legal freedoms: those of LAY-GRAD; blocks and trees of partial sums in the accumulate format.

    If it fails: a gradient is added up over tokens, micro-batches or chunks in storage, as by
    autograd where one parameter is used once per token; or one of the products of the backward pass
    has no wide accumulator, while the forward pass has. The loss falls, more slowly the larger
    the batch is.
    """
    sized = inputs.sized(subject.arithmetic.accumulated.roundoff)
    Judged.of(subject, sized).require_gradients(subject, " of long sums")


@specification(
    "LAY-LAYOUT", source="Eq. 11", needs=("layer",), examples=6, inputs=layer_calls.any_memory()
)
def test_lay_layout(subject: Subject, inputs: SizedInputs) -> None:
    """Values count, not how they lie in memory: x, cotangent and parameters may have any strides.

    Five calls of the same values, so that each array comes contiguous, reversed, as columns of a
    wider array, as every other element of one, and transposed. ``layer_vjp`` and ``router_logits``,
    where offered, are judged on the same arguments. A sixth call has one token in place of all, one
    number for the norm's weight, and a cotangent of one number, row or column, all repeated by
    strides of 0. In a seventh the tokens come as two sequences of 18, which begin longer ones.

    Hypotheses: as in LAY-VALUE, M up to 17 before, N up to 12; widths all different or all equal.

    Proof: the arguments of Eq. 11 are numbers.

    Legal freedoms: those of LAY-VALUE and LAY-GRAD; another layout may mean another kernel, or a
    copy first.

    If it fails: a kernel reads row after row whatever the strides are. Parameters are views where
    projections are fused or tied, or were loaded transposed; where widths are equal, wrong strides
    do not even crash. The cotangent of a sum or a mean is one number, expanded. A batch of prompts
    is cut out of a longer buffer; or sequences are worked on in parts, joined along the wrong axis.
    """
    judged = Judged.of(subject, inputs)
    for way in range(len(LAYOUTS)):
        laid_out_in(judged, way).require(subject, f", layout {way}")
    expanded(subject, judged).require(subject, " of an expanded token and cotangent")
    sequences(subject, judged).require(subject, " of two sequences")


@specification(
    "LAY-CALLS", source="Eq. 11", needs=("layer",), examples=7, drawn=layer_calls.in_a_row()
)
def test_lay_calls(subject: Subject, drawn: tuple[SizedInputs, SizedInputs, SizedInputs]) -> None:
    """Calls know nothing of each other: each is right, and its result stays as it was returned.

    Three layers in a row, forward, backward and the router's logits: the second has the sizes of
    the first and other tokens, parameters, caps, eps and routed_scale, is called twice, and once
    more without its last token; the third has other sizes. The first three calls are given the same
    memory behind the same views, whose values are changed in between, as an optimiser changes
    parameters in place. Every array that was returned still has its bits at the end.

    Hypotheses: as in LAY-VALUE and LAY-GRAD.

    Proof: Eq. 11 is a function of its arguments.

    Legal freedoms: those of LAY-VALUE and LAY-GRAD; plans, buffers and packed parameters may be
    kept, as long as no caller notices.

    If it fails: a module, a graph or packed weights are kept by shape, by address or by object
    while the parameters or a number of the configuration have changed; gradients are added to those
    of the call before; the backward pass works on what another forward pass has saved; or the
    result is the implementation's own buffer, which a later call overwrites; or a buffer that was
    filled up to a multiple of some number still holds the tokens of a longer batch.
    """
    first, second, third = (Judged.of(subject, inputs) for inputs in drawn)
    memory = Rewritten(subject, first)
    kept: list[Kept] = []
    for number, one in enumerate((first, second, second, shortened(subject, second), third), 1):
        judged = memory.holding(one) if number <= SAME_SIZES else one
        before = len(subject.case.calls)
        judged.require(subject, f", call {number}")
        kept += [
            Kept.of(call, f"what {call.method} returned in call {number}")
            for call in subject.case.calls[before:]
        ]
    for returned in kept:
        returned.require_unchanged()
