"""Running Quantile Balancing on an implementation: batches in its formats, updates, histograms.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.balancer import SubjectBalancer
from properties.checks import within
from properties.errors import NotOfferedError, ViolationError
from properties.judgement.balancing import (
    Allowed,
    allowed,
    mean_rounding,
    one_rounding,
    readings,
    required_biases,
)
from properties.judgement.routing import require_selection, scored
from properties.protocol import Array
from properties.rounding import Ball
from properties.strategies.arrays import laid_out
from properties.strategies.balancing import BatchInputs, HistogramInputs
from properties.strategies.balancing_layouts import layout_for, mask_laid_out
from properties.subject import Subject

__all__ = [
    "ascending",
    "choices_for",
    "fresh_balancer",
    "histogram_of",
    "histogram_rule",
    "micro_batches",
    "number_of_bins",
    "observed",
    "require_centred",
    "require_range",
    "require_routed_by",
    "require_totals",
    "rounded",
    "updated",
    "valid_rows",
]


def rounded(subject: Subject, batch: BatchInputs) -> BatchInputs:
    """The batch in the subject's formats; without its mask, unless masked rows are left out.

    All three lie in memory in ways that follow from their shapes, so that every way occurs.
    """
    logits = subject.round_to_routing(subject.round_to_storage(batch.logits))
    bias = subject.round_to_routing(batch.bias)
    masked = subject.conventions.padding == "masked"
    return replace(
        batch,
        logits=laid_out(logits, layout_for(logits)),
        bias=laid_out(bias, layout_for(bias, more=len(logits))),
        mask=mask_laid_out(batch.mask, more=2 * bias.shape[0]) if masked else None,
    )


def valid_rows(batch: BatchInputs) -> Array:
    """The logits of the valid tokens."""
    return batch.logits if batch.mask is None else batch.logits[batch.mask]


def updated(subject: Subject, batch: BatchInputs) -> Array:
    """The subject's exact update (N,) of a batch."""
    return subject.quantile_update(batch.logits, batch.bias, top_k=batch.top_k, mask=batch.mask)


def fresh_balancer(subject: Subject, batch: BatchInputs, num_bins: int) -> SubjectBalancer:
    """A balancer that starts from the batch's bias."""
    num_experts = batch.bias.shape[0]
    return subject.balancer(
        num_experts=num_experts, top_k=batch.top_k, num_bins=num_bins, bias=batch.bias
    )


def micro_batches(batch: BatchInputs, cuts: tuple[int, ...]) -> list[BatchInputs]:
    """The rows between the cuts, with their part of the mask."""
    starts, ends = (0, *cuts), (*cuts, batch.logits.shape[0])
    return [
        replace(
            batch,
            logits=batch.logits[start:end],
            mask=None if batch.mask is None else batch.mask[start:end],
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def observed(subject: Subject, inputs: HistogramInputs) -> tuple[BatchInputs, SubjectBalancer]:
    """The batch in the subject's formats, and a balancer that has counted all of it."""
    batch = rounded(subject, inputs.batch)
    balancer = fresh_balancer(subject, batch, inputs.num_bins)
    for part in micro_batches(batch, inputs.cuts):
        balancer.observe(part.logits, mask=part.mask)
    return batch, balancer


def histogram_of(balancer: SubjectBalancer) -> Array:
    """The pending counts (N, B).

    Raises NotOfferedError where none are kept.
    """
    counts = balancer.histogram
    if counts is None:
        raise NotOfferedError("the balancer keeps no histogram")
    return counts


def number_of_bins(balancer: SubjectBalancer, inputs: HistogramInputs) -> int:
    """The bins kept, or asked for where none are shown."""
    counts = balancer.histogram
    return inputs.num_bins if counts is None else int(counts.shape[1])


def ascending(subject: Subject, counts_NB: Array) -> Array:
    """Counts over r from counts over the bias as it is stored, or the reverse.

    Where the stored bias is subtracted, it is -b, and the histogram runs over -r.
    """
    return counts_NB if subject.conventions.bias_sign == 1 else counts_NB[:, ::-1]


def histogram_rule(subject: Subject) -> str:
    """The statistic that the balancer reads: its own declaration, or that of the exact update."""
    conventions = subject.conventions
    if conventions.histogram_rank is not None:
        return conventions.histogram_rank
    return conventions.expert_rank if conventions.expert_rank in ("q", "q+1") else "between"


def require_range(subject: Subject) -> None:
    """Raise NotOfferedError for scores that App. D's range does not hold."""
    if subject.conventions.score_domain != "sigmoid":
        raise NotOfferedError("App. D gives a histogram's range for sigmoid scores only")


def require_totals(balancer: SubjectBalancer, tokens: int, when: str) -> None:
    """Require that each expert's bins sum to that number of tokens."""
    totals = histogram_of(balancer).sum(axis=1)
    if (totals != tokens).any():
        raise ViolationError(f"{when} the experts' bins sum to {totals}, not to {tokens}")


def require_routed_by(
    subject: Subject, balancer: SubjectBalancer, part: BatchInputs, bias_N: Array
) -> None:
    """Observe a micro-batch; require that ``bias_N`` routed it and is still in force.

    What an implementation returns for rows that are masked out is its own affair.
    """
    routed = balancer.observe(part.logits, mask=part.mask)
    if not np.array_equal(balancer.bias, bias_N):
        raise ViolationError(f"observing changed the bias from {bias_N} to {balancer.bias}")
    rows = slice(None) if part.mask is None else part.mask
    cutoff = None if routed.cutoff is None else routed.cutoff[rows]
    valid = routed._replace(
        expert_ids=routed.expert_ids[rows], weights=routed.weights[rows], cutoff=cutoff
    )
    biased = scored(subject, part.logits[rows], bias_N).biased
    require_selection(subject, valid, biased, "the selection of balancer.observe")


def choices_for(subject: Subject, batch: BatchInputs, rule: str) -> list[Allowed]:
    """Where the rule may find each expert's statistic, one entry per legal reading."""
    r_MN = required_biases(subject, valid_rows(batch), batch.bias, batch.top_k)
    tokens, num_experts = r_MN.shape
    return [allowed(r_MN, r) for r in readings(rule, tokens, batch.top_k, num_experts)]


def require_centred(subject: Subject, actual: Array, choices: list[Allowed], what: str) -> None:
    """The mean of an updated bias is 0, up to the rounding of the mean and of its subtraction."""
    arithmetic = subject.routing_arithmetic()
    size_N = np.max([choice.size for choice in choices], axis=0)
    radius = mean_rounding(size_N, arithmetic) + np.mean(one_rounding(actual, arithmetic))
    within(subject, np.array(actual.mean()), Ball(0.0, radius, arithmetic), f"the mean of {what}")
