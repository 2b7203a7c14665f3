"""Quantile Balancing at size: numbers of experts, of bins, and of tokens beyond a tile.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = valid tokens, n = N.
"""

from __future__ import annotations

from properties.judgement.balancing import require_some_constant
from properties.judgement.balancing_runs import (
    choices_for,
    require_centred,
    rounded,
    updated,
    valid_rows,
)
from properties.judgement.balancing_state import Followed
from properties.registry import specification
from properties.strategies import balancing_sizes
from properties.strategies.balancing import BatchInputs
from properties.strategies.balancing_sizes import SizedBatch, SizedBatches
from properties.strategies.balancing_state import MicroBatch, Setup
from properties.subject import Subject


@specification(
    "QB-SIZES",
    source="Eq. 13, Eq. 14, App. D",
    any_of=("quantile_update", "balancer"),
    examples=1,
    long=True,
    inputs=balancing_sizes.at_size(2),
)
def test_qb_sizes(subject: Subject, inputs: SizedBatches) -> None:
    """Balancing is right at every number of experts, of tokens, and of bins.

    The exact update is judged as in QB-VALUE and QB-CENTRE; a balancer's routing, counts and update
    as in QB-OBSERVE, QB-HIST-BINS, QB-HIST-ERROR and QB-HIST-CENTRE.

    Hypotheses: k < n, finite logits and bias. Every case has eighteen numbers of experts from 34 to
    256, odd numbers of half warps, of warps and of pairs of warps among them, with up to 33 tokens,
    k = 4 and others; exactly 32, 64, 128, 256 and 512 experts; then 1,030 tokens at 256 experts,
    262 at 896, and 66,000 at 3. Biases may put all biased scores below 0, and the k wanted experts
    may stand side by side, or 32 apart. Five experts have seventeen numbers of bins from 32 to
    4,095: the powers of two, the first beyond each from 256 on, and one in between.

    Source: Eq. 13 and Eq. 14 have no sizes. Kernels do: lanes of a warp, which hold a part of the
    experts each; a template for a power of two, and experts padded to one; a fast path for k = 4; a
    tile of tokens, which is the shorter, the more experts there are; counts of eight bits within a
    tile, numbers of rows in sixteen; a scan over bins, a thread each, and over several blocks.

    Legal freedoms: those of QB-VALUE, QB-OBSERVE, QB-HIST-BINS and QB-HIST-ERROR.

    If it fails: a size that no test has. The message names the tokens and the experts, or shows
    the call with its number of bins.
    """
    for batch in inputs.batches:
        if "quantile_update" in subject.offered:
            _require_exact(subject, batch)
        if "balancer" in subject.offered and subject.conventions.score_domain == "sigmoid":
            _require_balanced(subject, batch)


def _require_exact(subject: Subject, batch: SizedBatch) -> None:
    given = rounded(subject, BatchInputs(batch.logits, batch.bias, batch.top_k, batch.mask))
    if not valid_rows(given).shape[0]:
        return
    choices = choices_for(subject, given, subject.conventions.expert_rank)
    what = f"quantile_update of {given.logits.shape[0]} tokens and {len(given.bias)} experts"
    actual = updated(subject, given)
    require_some_constant(subject, actual, choices, what)
    require_centred(subject, actual, choices, what)


def _require_balanced(subject: Subject, batch: SizedBatch) -> None:
    given = rounded(subject, BatchInputs(batch.logits, batch.bias, batch.top_k, batch.mask))
    num_experts = len(given.bias)
    followed = Followed(subject, Setup(num_experts, batch.top_k, batch.num_bins, given.bias))
    followed.observe(MicroBatch(given.logits, given.mask))
    followed.update()
