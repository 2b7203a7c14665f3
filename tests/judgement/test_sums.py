"""Sums in any order, with partial sums that go through memory: sound, and no looser than that."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from impl_torch.activation import situ_glu
from impl_torch.adapter import BFloat16
from properties.execution import judge
from properties.judgement.sums import added_in_any_order, slots_added
from properties.lanes import LANES
from properties.loading import subject_of
from properties.registry import find
from properties.rounding import Arithmetic, Ball


class Plain(BFloat16):
    """What most people write: a loop over experts, indexing, matrix products, autograd."""

    name = "plain bfloat16"

    def experts_forward(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor,
        parameters: Any,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Tensor:
        total = torch.zeros(x.shape, dtype=torch.float32)
        for j in range(len(parameters.gate_proj)):
            token, slot = torch.nonzero(expert_ids == j, as_tuple=True)
            rows = x[token]
            gate, up = linear(rows, parameters.gate_proj[j]), linear(rows, parameters.up_proj[j])
            hidden = situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)
            out = linear(hidden, parameters.down_proj[j])
            total = total.index_add(0, token, out.float() * weights[token, slot, None])
        return total.to(x.dtype)


def test_every_order_of_adding_lies_within_the_radius():
    """Terms that cancel: in one order nothing rounds, in another one every partial sum does."""
    bfloat16 = Arithmetic("float32", "float32", "bfloat16")
    terms = np.array([1.0, 0.0078125, -1.0, 0.00390625])
    ball = added_in_any_order(Ball(terms[:, None], 0.0, bfloat16))
    for order in permutations(terms):
        total = torch.zeros((), dtype=torch.bfloat16)
        for term in order:
            total = total + torch.tensor(term, dtype=torch.bfloat16)
        assert abs(float(total) - ball.value[0]) <= ball.radius[0]
    nothing = added_in_any_order(Ball(np.zeros((4, 1)), 0.0, bfloat16))
    assert nothing.radius == 0.0


def test_slots_may_be_added_in_the_format_of_storage():
    """1 and fifteen times half a unit in its last place: in bfloat16 each of them is lost."""
    bfloat16 = Arithmetic("float32", "float32", "bfloat16")
    terms = np.array([1.0, *15 * [2.0**-8 * 0.996]])
    ball = slots_added(Ball(terms[None, :, None], 0.0, bfloat16))
    total = torch.zeros((), dtype=torch.bfloat16)
    for term in terms:
        total = total + torch.tensor(term, dtype=torch.bfloat16)
    kept = np.abs(terms.sum() - ball.value[0, 0]) + 2.0**-8
    error = abs(float(total) - ball.value[0, 0])
    assert kept < error <= ball.radius[0, 0] < 0.3


@pytest.mark.parametrize(
    ("property_id", "lane"), [("DSP-GRAD", "gate"), ("DSP-SLOTS", "quick"), ("DSP-DENSE", "quick")]
)
def test_indexing_and_autograd_in_bfloat16_are_right(property_id, lane):
    outcome = judge(find(property_id), subject_of(Plain()), LANES[lane])
    assert outcome.verdict == "passed", outcome.message
