"""Legal updates that differ from the reference are not rejected, and corners are only reported.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference_numpy as reference
from properties.execution import Outcome, judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Array, Conventions, Precision
from properties.reference import Reference
from properties.registry import find
from tests.mutants.optimality import centred, required_biases


class Variant(Reference):
    """Any statistic under any declaration, with the k-th score as the cutoff if asked."""

    def __init__(self, statistic: Any, rank: Any, *, cutoff: int = 1, sign: Any = 1) -> None:
        super().__init__()
        self.statistic, self.cutoff, self.sign = statistic, cutoff, sign
        self.conventions = Conventions(expert_rank=rank, bias_sign=sign)

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        top_k = options["top_k"]
        r_MN = required_biases(logits, self.sign * bias, top_k + self.cutoff)
        return self.sign * centred(reference.expert_statistic(r_MN, top_k, self.statistic))

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Any:
        return reference.route(logits, self.sign * bias, top_k=top_k)


class Float32(Reference):
    """NumPy in float32 throughout."""

    precision = Precision()
    conventions = Conventions(expert_rank="interior")

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        s_MN = reference.scores(logits)
        assert s_MN.dtype == np.float32
        r_MN = reference.required_bias(s_MN, reference.cutoff(s_MN + bias, options["top_k"]))
        return centred(reference.expert_statistic(r_MN, options["top_k"], "midpoint"))


class LogitScores(Reference):
    """The bias is added to logits, and nothing but the update is offered."""

    conventions = Conventions(expert_rank="interior", score_domain="logit")
    route = route_vjp = None  # type: ignore[assignment]

    def quantile_update(self, logits: Array, bias: Array, **options: Any) -> Array:
        r_MN = reference.required_bias(logits, reference.cutoff(logits + bias, options["top_k"]))
        return centred(reference.expert_statistic(r_MN, options["top_k"]))


def outcome_of(implementation: Any) -> Outcome:
    return judge(find("OPT-IMPL"), subject_of(implementation), LANES["quick"])


@pytest.mark.parametrize(
    "implementation",
    [
        Variant("midpoint", "interior"),
        Variant("linear", "interior", cutoff=0),
        Variant("linear", "interior", sign=-1),
        Variant("linear", "between"),
        Variant("q", "q"),
        Variant("q", "between"),
        Variant("q+1", "q+1"),
        Variant("q+1", "between"),
        Float32(),
        LogitScores(),
    ],
    ids=[
        "midpoint",
        "cutoff at the k-th score",
        "negated bias",
        "linear, declares nothing",
        "q-th",
        "q-th, declares nothing",
        "(q+1)-th",
        "(q+1)-th, declares nothing",
        "float32",
        "logits as scores",
    ],
)
def test_legal_updates_pass(implementation: Any) -> None:
    outcome = outcome_of(implementation)
    assert outcome.verdict == "passed", outcome.message
