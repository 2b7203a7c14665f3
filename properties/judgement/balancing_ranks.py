"""Which rank a histogram reads: counts around q, put into a balancer's state.

Legend: M tokens, N routed experts, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from properties.checks import note_figure, require
from properties.errors import NotOfferedError
from properties.judgement.balancing import Allowed, Bins, one_rounding, require_some_constant
from properties.judgement.balancing_runs import ascending, histogram_of, histogram_rule
from properties.protocol import Array
from properties.strategies.ranks import LEAST_BINS, CountInputs
from properties.subject import Subject

__all__ = ["require_same_statistic"]


class _Read(NamedTuple):
    """The bias (N,) that counts gave, and the bins that they were put into."""

    bias: Array
    bins: Bins


def require_same_statistic(subject: Subject, inputs: CountInputs) -> None:
    """Require what is read at each of the loads to be legal, and at all of them the same.

    Raises NotOfferedError where no histogram of enough bins is kept.
    """
    surplus, rule = inputs.experts.surplus, histogram_rule(subject)
    arithmetic = subject.routing_arithmetic()
    met = int(np.flatnonzero(surplus == 0)[0])
    more = int(np.flatnonzero(surplus == 1)[0])
    place, first_load = None, inputs.experts.loads[0]
    ratio = f"k/n = {inputs.experts.top_k}/{inputs.experts.num_experts}"
    for load in inputs.experts.loads:
        bias, bins = _read(subject, inputs, load)
        what = f"the update at q = {load}, m = {inputs.experts.tokens(load)}, {ratio},"
        require_some_constant(subject, bias, _bins_read(inputs, bins, rule), what)
        here = bias[met] - bias[more]
        note_figure(subject, "bins from the q-th read", here / bins.width)
        place = here if place is None else place
        reach = 2.0 * (bins.width + bins.slip + one_rounding(bias[[met, more]], arithmetic).sum())
        require(
            abs(here - place) <= reach,
            f"{what} reads {(here - place) / bins.width:.3g} bins from where it reads at "
            f"q = {first_load}: not the same statistic",
        )


def _read(subject: Subject, inputs: CountInputs, load: int) -> _Read:
    """What a fresh balancer of bias 0 makes of the counts around that q."""
    num_experts = inputs.experts.num_experts
    balancer = subject.balancer(
        num_experts=num_experts, top_k=inputs.experts.top_k, num_bins=inputs.asked_bins
    )
    num_bins = histogram_of(balancer).shape[1]
    if num_bins < LEAST_BINS:
        raise NotOfferedError(f"the balancer has {num_bins} bins, fewer than {LEAST_BINS}")
    counts = ascending(subject, inputs.counts(load, num_bins))
    bias = np.zeros(num_experts, dtype=subject.routing_dtype)
    balancer.load_state_dict({"bias": bias, "histogram": np.ascontiguousarray(counts)})
    balancer.update()
    bins = Bins.of(np.zeros(num_experts), num_bins, subject.routing_arithmetic())
    return _Read(balancer.bias, bins)


def _bins_read(inputs: CountInputs, bins: Bins, rule: str) -> list[Allowed]:
    """The bins where a rule may find each expert's statistic: near, far, or one to the other."""
    surplus = inputs.experts.surplus
    first = np.where(surplus > 0, inputs.near, inputs.far)
    last = first.copy()
    met = surplus == 0
    first[met] = inputs.far if rule == "q+1" else inputs.near
    last[met] = inputs.near if rule == "q" else inputs.far
    slip = np.full(surplus.shape, bins.slip)
    return [Allowed(bins.low + first * bins.width, bins.low + (last + 1) * bins.width, slip, slip)]
