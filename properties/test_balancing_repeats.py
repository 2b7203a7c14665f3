"""Quantile Balancing: the same calls give the same bits again.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, n = N.
"""

from __future__ import annotations

from dataclasses import replace

from properties.checks import require
from properties.errors import NotOfferedError
from properties.judgement.balancing_runs import fresh_balancer, rounded, updated
from properties.protocol import Array
from properties.registry import specification
from properties.strategies import balancing_sizes
from properties.strategies.balancing import BatchInputs
from properties.strategies.balancing_sizes import SizedBatch
from properties.subject import Subject

TIMES = 3


@specification(
    "QB-REPEAT",
    source="reproducible training and inference",
    any_of=("quantile_update", "balancer"),
    examples=8,
    inputs=balancing_sizes.batches(),
)
def test_qb_repeat(subject: Subject, inputs: SizedBatch) -> None:
    """The same calls give the same bits again: the exact update, routing, counts and next bias.

    The exact update is called three times, with one of other tokens in between. Three balancers
    that start alike observe the batch, update, and observe it again: ids slot by slot, weights,
    cutoffs, counts and the new bias are compared. Not offered where the implementation declares
    ``deterministic=False``.

    Hypotheses: k < n, finite logits and bias, n from 34 to 256 and up to 200 tokens: large enough
    for several threads and for sums that depend on their order. One machine, one process, the same
    memory layout of the arguments.

    Why: a run that cannot be repeated cannot be debugged. The mean that centres a bias is added up
    over experts, and its last bits decide ties of the next step.

    Legal freedoms: any bits, as long as they are the same ones. Ties may fall to any expert, but to
    the same one for the same call; ``route`` and ``observe`` may part there.

    If it fails: sums are added up, or slots are filled, in the order in which threads arrive.
    """
    if not subject.conventions.deterministic:
        raise NotOfferedError("declares deterministic=False")
    batch = rounded(subject, BatchInputs(inputs.logits, inputs.bias, inputs.top_k, inputs.mask))
    if "quantile_update" in subject.offered:
        half = None if batch.mask is None else batch.mask[::2]
        other = replace(batch, logits=batch.logits[::2], mask=half)
        first = updated(subject, batch)
        for _ in range(TIMES - 1):
            updated(subject, other)
            _require_same("quantile_update", [first], [updated(subject, batch)])
    if "balancer" in subject.offered:
        first_life = _life(subject, batch, inputs.num_bins)
        for _ in range(TIMES - 1):
            again = _life(subject, batch, inputs.num_bins)
            for (name, one), (_, other_one) in zip(first_life, again, strict=True):
                _require_same(name, one, other_one)


def _life(
    subject: Subject, batch: BatchInputs, num_bins: int
) -> list[tuple[str, list[Array | None]]]:
    """What a balancer shows as it observes, updates and observes again.

    Rows that are masked out may be routed anywhere, each time.
    """
    balancer = fresh_balancer(subject, batch, num_bins)
    rows = slice(None) if batch.mask is None else batch.mask
    seen: list[tuple[str, list[Array | None]]] = []
    for when in ("", " after an update"):
        routed = balancer.observe(batch.logits, mask=batch.mask)
        cutoff = None if routed.cutoff is None else routed.cutoff[rows]
        parts = [routed.expert_ids[rows], routed.weights[rows], cutoff]
        seen.append((f"balancer.observe{when}", parts))
        seen.append((f"balancer.histogram{when}", [balancer.histogram]))
        balancer.update()
        seen.append((f"balancer.update{when}", [balancer.bias]))
    return seen


def _require_same(name: str, first: list[Array | None], second: list[Array | None]) -> None:
    for one, other in zip(first, second, strict=True):
        same = (one is None) == (other is None)
        if one is not None and other is not None:
            same = one.tobytes() == other.tobytes()
        require(same, f"{name} gives other bits when the same is done again")
