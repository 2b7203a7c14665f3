"""The ledger: what the latent width buys, counted in integers.

Legend: N routed experts, K top_k, D model width, L = D / a latent width, H hidden width.
"""

from __future__ import annotations

import numpy as np

from properties.checks import require
from properties.judgement import ledger
from properties.registry import specification
from properties.strategies.ledger import LedgerInputs, sizes
from properties.subject import Subject


@specification("LED-COMBOS", source="Eq. 11", examples=60, inputs=sizes())
def test_led_combos(subject: Subject, inputs: LedgerInputs) -> None:
    """At the same traffic and parameters, a latent width D / a raises the choices to a power >= a.

    A token's K of N experts of width D become a K of a N experts of width D / a. Then

    1. C(a N, a K) >= C(N, K)^a, with equality exactly for a = 1, K = 0 or K = N;
    2. what a token sends to its experts and gets back, 2 K D numbers, stays the same: traffic is
       proportional to K times the width;
    3. so do the parameters of the routed experts, 3 N D H.

    Hypotheses: integers a >= 1, 0 <= K <= N, a divides D.

    Proof of 1: divide the a N experts into a groups of N. The sets with K members in each group are
    C(N, K)^a of all C(a N, a K). If a >= 2 and 0 < K < N, a set with K + 1 members in one group and
    K - 1 in another is one more. Where a N <= 12 all sets are listed and counted.

    K3 has a = 2: 16 of 896 experts at width 3584 in place of 8 of 448 at width 7168. C(896, 16) is
    about 7.2e33, which is 5.05 times the square of C(448, 8).

    No implementation is asked anything here.

    If it fails: the arithmetic of the argument for a latent width is wrong.
    """
    del subject
    experts, top_k, groups = inputs.experts, inputs.top_k, inputs.groups
    total = ledger.choices(groups * experts, groups * top_k)
    evenly = ledger.choices_in_groups(experts, top_k, groups)
    require(total >= evenly, f"C({groups * experts}, {groups * top_k}) = {total} < {evenly}")
    trivial = groups == 1 or top_k in (0, experts)
    require((total == evenly) == trivial, f"{total} against {evenly}: equal only where trivial")
    if inputs.is_small:
        found = ledger.listed(experts, top_k, groups)
        require(found == (total, evenly), f"listed {found}, computed {(total, evenly)}")

    width = inputs.width // groups
    coarse, fine = np.zeros((inputs.tokens, inputs.width)), np.zeros((inputs.tokens, width))
    ids = np.zeros((inputs.tokens, groups * top_k), np.intp)
    sent = ledger.elements_sent(fine, ids)
    require(sent == ledger.elements_sent(coarse, ids[:, :top_k]), "the traffic changed")
    require(sent == 2 * inputs.tokens * top_k * inputs.width, f"{sent} numbers were sent")
    kept = ledger.expert_parameters(groups * experts, width, 7)
    require(kept == ledger.expert_parameters(experts, inputs.width, 7), "parameters were added")
