"""The optimum of whole batches: what the solver at scale claims, and the report's own size.

LP* is the optimum of max sum s x with rows of sum k, columns of sum q = m k / n, 0 <= x <= 1, and
p = s - alpha - beta are the margins.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

import lp_oracle
from properties.checks import note_figure, note_ratio, unknown
from properties.judgement.optimality.optimum import bracket
from properties.judgement.optimality.scale import require_large_optimum, require_proof
from properties.registry import specification
from properties.strategies import scale
from properties.strategies.optimality import Problem
from properties.subject import Subject

BRACKETED_EDGES = 400


@specification("OPT-SOLVER", source="App. C", examples=150, problem=scale.large_problems())
def test_opt_solver(subject: Subject, problem: Problem) -> None:
    """Theorem: what ``certified_optimum`` returns is feasible, and the proof that it names is one.

    Hypotheses: finite scores of any kind, ties included; 1 <= k <= n; any q.

    Proof of each claim. For feasible x, D(alpha, beta) - sum s x is the sum over edges of
    (1 - x) max(0, p) + x max(0, -p), all terms >= 0 (OPT-WEAK). "Complementary slackness": every
    term is 0 in integer arithmetic, so both values are LP*. "Gap": the terms add up to at most
    ``gap``, so LP* lies within ``gap`` above the value of x. "Strict margins": OPT-CERT; x is the
    only optimum. That the solver gets there is the primal-dual method of Ford and Fulkerson: its
    phases keep every term at 0, and each moves at least one of finitely many missing units.

    How it is checked: x, value, D and margins in rationals, against scores as they were given. An
    only optimum of up to 400 edges must be that of ``linprog``, too. A result that is not certified
    makes the case unknown.

    If it fails: an "optimum" of a large batch, where nothing else can be asked, is not one.
    """
    found = lp_oracle.certified_optimum(problem.scores, problem.top_k)
    require_proof(problem.scores, problem.top_k, found)
    note_figure(subject, f"proof by {found.proof}", True)
    if not found.certified:
        unknown(subject, f"not certified, gap {found.gap:.3g}")
    elif found.proof == "strict margins" and problem.scores.size <= BRACKETED_EDGES:
        bracket(problem.scores, problem.top_k).require_attained_by(found.assignment)


@specification("OPT-SCALE", source="App. C")
def test_opt_scale(subject: Subject) -> None:
    """Theorem, on one instance: at 8,960 tokens, 896 experts and k = 16 the solver's primal value
    equals its dual value within the rounding of both sums, and no margin is on the wrong side.

    Hypotheses: the instance, sigmoids of seeded normal logits with an offset per expert; q = 160.

    Proof: weak duality, for these very numbers. x has rows of sum 16 and columns of sum 160. All
    8,028,160 margins are positive exactly where x = 1, beyond their rounding; so complementary
    slackness holds, strictly, and x is the only optimum (OPT-CERT).

    How it is checked: value, dual value and margins are summed here, block by block, and may differ
    by the rounding of two differences per hinge and one of every sum. Reported: both values, the
    least margin, and the phases of augmentation that were needed.

    If it fails: figures about optimal balance at the report's size rest on an unproved optimum.
    """
    scores_MN = scale.report_scores()
    top_k = scale.REPORT_SHAPE[2]
    found = lp_oracle.certified_optimum(scores_MN, top_k)
    judged = require_large_optimum(scores_MN, top_k, found)
    note_ratio(subject, abs(judged.gap) / judged.radius, "dual - primal value")
    m, n = scores_MN.shape
    summary = (
        f"{judged.value:.6f}, dual - primal value {judged.gap:.1e}, least margin "
        f"{judged.margin:.1e}, {found.phases} phases of augmentation"
    )
    note_figure(subject, f"optimum at {m} x {n}, k = {top_k}", summary)
