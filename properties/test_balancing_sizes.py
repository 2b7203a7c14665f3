"""Quantile Balancing at size: numbers of experts between powers of two, and tokens beyond a tile.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, m = valid tokens, n = N.
"""

from __future__ import annotations

from properties.judgement.balancing import require_some_constant
from properties.judgement.balancing_runs import choices_for, rounded, updated, valid_rows
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
    examples=2,
    inputs=balancing_sizes.at_size(2),
)
def test_qb_sizes(subject: Subject, inputs: SizedBatches) -> None:
    """Balancing is right at every number of experts, and at every number of tokens.

    The exact update is judged as in QB-VALUE; a balancer's routing, counts and update as in
    QB-OBSERVE, QB-HIST-BINS and QB-HIST-ERROR.

    Hypotheses: k < n, finite logits and bias. Every case has eighteen numbers of experts from 34 to
    256, odd numbers of half warps, of warps and of pairs of warps among them, with up to 33 tokens,
    k = 4 and others; then 1,030 tokens at 256 experts and 262 at 896. Biases may put all biased
    scores below 0, and the k wanted experts may stand side by side, or 32 apart.

    Source: Eq. 13 and Eq. 14 have no sizes. Kernels do: lanes of a warp, which hold a part of the
    experts each; experts padded to a power of two; a fast path for k = 4; a tile of tokens, which
    is the shorter, the more experts there are; counts of eight bits within a tile.

    Legal freedoms: those of QB-VALUE, QB-OBSERVE, QB-HIST-BINS and QB-HIST-ERROR.

    If it fails: a size that no test has. The message names the tokens and the experts.
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
    require_some_constant(subject, updated(subject, given), choices, what)


def _require_balanced(subject: Subject, batch: SizedBatch) -> None:
    given = rounded(subject, BatchInputs(batch.logits, batch.bias, batch.top_k, batch.mask))
    num_experts = len(given.bias)
    followed = Followed(subject, Setup(num_experts, batch.top_k, batch.num_bins, given.bias))
    followed.observe(MicroBatch(given.logits, given.mask))
    followed.update()
