"""Quantile Balancing: the life of a balancer, as sequences of calls.

Legend: M tokens, N routed experts, K top_k, B histogram bins. k = top_k, n = N, b the bias in
force, r_ij = alpha_i - s_ij the required bias, alpha_i the cutoff of token i.
"""

from __future__ import annotations

from properties.judgement.balancing_state_machine import BalancerMachine
from properties.registry import specification
from properties.subject import Subject


@specification(
    "QB-HIST-MODEL",
    source="Eq. 13, Eq. 14, App. D",
    needs=("balancer",),
    examples=32,
    steps=(30, 50),
)
def test_qb_hist_model(subject: Subject) -> BalancerMachine:
    """After any sequence of calls a balancer is what the reference balancer has become.

    A case is a sequence of calls, in any order: observe (in training, in evaluation, masked, with
    padding only, without tokens, with 300), update, save, load into the same balancer or a fresh
    one, load a state with counts beyond 2^8, 2^11, 2^15, 2^16 or 2^24 and another bias, cast to
    bfloat16 or float16 and back, switch off and on, observe under activation checkpointing. After
    each:

    * what it returned is a legal routing by the bias in force (QB-OBSERVE);
    * only ``update`` and ``load_state_dict`` have changed the bias, bit for bit, and no other call
      than a training micro-batch while enabled has changed a count;
    * each valid token of that micro-batch is one count for every expert, in its bin of
      [min b - 1, max b + 1];
    * an update has read the declared statistic of the pending counts, has centred it, has written
      it into the bias' own storage and has cleared the counts; with none, or while disabled, it has
      changed nothing;
    * a loaded state is all there is: bias and counts are its own, also if the state's arrays, which
      may be parts of others, or transposed, are overwritten;
    * what the last observations returned is what they had returned.

    Hypotheses: sigmoid scores, finite logits and bias, K = N included (nothing is counted then, or
    the balancer refuses with a ValueError or NotImplementedError that says why), counts within
    m k < 2^31. Optional methods that a balancer lacks are left out; the figures name them.

    Source and proof: App. D defines the state and these transitions, which compose. Where rounding
    leaves a choice, it is judged as in QB-HIST-BINS and QB-HIST-ERROR, and the reference goes on
    from what was chosen, so that no legal choice becomes a difference later.

    Legal freedoms: those of QB-OBSERVE, QB-HIST-BINS, QB-HIST-ERROR and QB-STATE. Without a
    histogram, updates are judged by the tokens seen, and a state may or may not hold them.

    If it fails: what is printed is the shortest sequence of calls found to go wrong. Each mistake
    here shows in no single call: evaluation between two training steps, a checkpoint between
    observing and updating, an empty step after a real one.
    """
    return BalancerMachine(subject)
