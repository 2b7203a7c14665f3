"""Calls of a router: the same one again, others in between, and results that stay as they are.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from properties.checks import require
from properties.errors import NotOfferedError
from properties.judgement.routing_calls import Memory, RouterCall, Sequence, same_bits
from properties.registry import specification
from properties.strategies import routing_calls
from properties.strategies.routing_calls import CallInputs
from properties.subject import Subject

METHODS = ("route", "route_grouped", "route_vjp")


@specification(
    "RTR-REPEAT",
    source="reproducible training and inference",
    any_of=METHODS,
    examples=36,
    inputs=routing_calls.repeated(),
)
def test_rtr_repeat(subject: Subject, inputs: CallInputs) -> None:
    """The same call gives the same bits again, slot by slot, with another call in between.

    Ids, weights and cutoff of ``route`` and ``route_grouped``, and both gradients of ``route_vjp``,
    whichever are offered. Not offered where the implementation declares ``deterministic=False``.

    Hypotheses: finite logits and bias, N and K as for RTR-RELABEL, M up to 65,537 in some cases; in
    two fifths of the cases the scores have so few values that most experts tie. The arguments lie
    in the same memory each time; one machine, one process. The call in between has the tokens in
    reverse order.

    Why: with ties that fall now this way and now that, activations that are recomputed for the
    backward pass have other experts than those that the gradient arrives for, and ranks that share
    tokens disagree on who serves them.

    Legal freedoms: any bits, as long as they are the same ones: any choice among ties, any order of
    the slots. The sign of a zero counts.

    If it fails: ties, or slots, fall to whichever thread comes first (a compaction by an atomic
    counter); sums are added up in the order of arrival; or an uninitialised value takes part.
    """
    if not subject.conventions.deterministic:
        raise NotOfferedError("declares deterministic=False")
    call = RouterCall.of(subject, inputs)
    memory = Memory(call)
    memory.hold(call)
    found = {name: method() for name, method in memory.methods().items()}
    memory.hold(call.backwards())
    for method in memory.methods().values():
        method()
    memory.hold(call)
    for name, method in memory.methods().items():
        same = same_bits(found[name], method())
        require(same, f"{name} gives other bits when it is called again")


@specification(
    "RTR-CALLS", source="Eq. 13", any_of=METHODS, examples=14, drawn=routing_calls.in_a_row()
)
def test_rtr_calls(subject: Subject, drawn: tuple[CallInputs, CallInputs, CallInputs]) -> None:
    """Calls know nothing of each other: each is right, and its result stays as it was returned.

    Two batches of one size are routed, with and without groups, one after the other in the same
    memory, as a bias is updated in place; then comes the backward pass of the first and that of the
    second; then the second once more, both ways, and a batch of another size. Every array that was
    returned still has its bits at the end. Memory is poisoned with NaN before the last
    calls of one method, now of this and now of that one, where ``poison`` is offered.

    Hypotheses: those of RTR-VALID, RTR-GROUPS and RTR-GRAD with a finite bias, for whichever
    methods are offered. Proof: Eq. 13 is a function of its arguments.

    Legal freedoms: those of these three.

    If it fails: ids or weights are the implementation's own buffer, which the next call (the next
    layer, the next micro-batch) overwrites, perhaps that of another method; something is cached by
    address or shape while the bias has been updated; gradients of experts that were not chosen are
    never written, and 0 in fresh memory only; or the backward pass takes the latest forward
    pass for its own, as pipelines of micro-batches do not.
    """
    first, second, other = (RouterCall.of(subject, inputs) for inputs in drawn)
    memory, elsewhere = Memory(first), Memory(other)
    sequence = Sequence()
    for backward in (False, True):
        for call in (first, second):
            sequence.make(call, memory, backward=backward)
    poisoned = METHODS[second.top_k % len(METHODS)]
    for call, lies, before in ((second, memory, poisoned), (other, elsewhere, poisoned)):
        for backward in (False, True):
            sequence.make(call, lies, backward=backward, poisoned=before)
    for returned in sequence.kept:
        returned.require_unchanged()
