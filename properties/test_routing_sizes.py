"""The router where its tokens or its experts fill a block exactly, or are one off.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from properties.judgement.routing_calls import RouterCall
from properties.judgement.routing_full import require_each
from properties.registry import specification
from properties.strategies import routing_full
from properties.strategies.routing_calls import CallInputs
from properties.subject import Subject

METHODS = ("route", "route_grouped", "route_vjp")


@specification(
    "RTR-SIZES", source="Eq. 13", any_of=METHODS, examples=1, drawn=routing_full.at_sizes()
)
def test_rtr_sizes(subject: Subject, drawn: tuple[CallInputs, ...]) -> None:
    """Tokens that fill every block are routed like any others, and so are more than 896 experts.

    Experts, weights, cutoffs and gradients are right, with groups and without.

    Hypotheses: M = 32, 48, 64, 96, 128, 192, 256, 512, 1024 and 2048, and one fewer or more than
    32, 64 and 128; N from 4 on, more than 32 at each M up to 1024; K up to 24, and more than 16 at
    M = 32, 64, 96, 128 and 256; N = 1023, 1024, 1025 and 1100, whose best experts are mostly the
    last. Finite logits and biases.

    Legal freedoms: those of RTR-VALID, RTR-WEIGHTS, RTR-CUTOFF, RTR-GROUPS and RTR-GRAD.

    If it fails: a batch that is a multiple of the tile takes a path without masks, which launches a
    block too few, adds up the weights of half a warp, or overwrites where it should add; with one
    thread to an expert, those after the 1,024th are never chosen.
    """
    for inputs in drawn:
        require_each(RouterCall.of(subject, inputs))
