"""LED-COMBOS asks no implementation: wrong counts have to fail it instead."""

from __future__ import annotations

import math

import pytest

from properties.execution import judge
from properties.judgement import ledger
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find


def verdict():
    return judge(find("LED-COMBOS"), subject_of(Reference()), LANES["gate"]).verdict


WRONG = {
    "choices": {
        "with repetition": lambda experts, top_k: (
            math.comb(experts + top_k - 1, top_k) if experts + top_k else 1
        ),
        "in order": math.perm,
        "of one member fewer": lambda experts, top_k: math.comb(experts, max(top_k - 1, 0)),
    },
    "choices_in_groups": {
        "of all experts": lambda experts, top_k, groups: math.comb(
            groups * experts, groups * top_k
        ),
        "times groups": lambda experts, top_k, groups: groups * math.comb(experts, top_k),
    },
    "elements_sent": {
        "one way": lambda x_ML, ids_MK: x_ML.size * ids_MK.shape[1],
        "once per token": lambda x_ML, ids_MK: 2 * x_ML.size,
        "whatever the width": lambda x_ML, ids_MK: 2 * ids_MK.size,
    },
    "expert_parameters": {
        "with a bias per expert": lambda experts, width, hidden: experts * (3 * width * hidden + 1),
        "of a square expert": lambda experts, width, hidden: 3 * experts * width * width,
    },
}


@pytest.mark.parametrize(
    ("name", "mistake"), [(name, mistake) for name in WRONG for mistake in WRONG[name]]
)
def test_wrong_counts_fail(monkeypatch, name, mistake):
    assert verdict() == "passed"
    monkeypatch.setattr(ledger, name, WRONG[name][mistake])
    assert verdict() == "failed"


def test_the_figures_of_the_docstring():
    assert f"{ledger.choices(896, 16):.2g}" == "7.2e+33"
    assert f"{ledger.choices(896, 16) / ledger.choices(448, 8) ** 2:.3g}" == "5.05"
