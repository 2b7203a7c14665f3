"""What a report says before the verdicts, and when too many cases are undecided."""

from __future__ import annotations

import numpy as np
import pytest

from impl_torch.adapter import Float32
from properties.checks import unknown, within
from properties.errors import ViolationError
from properties.execution import Outcome, judge
from properties.lanes import Lane
from properties.loading import subject_of
from properties.protocol import ExpertParameters
from properties.reference import Reference
from properties.registry import Property, find
from properties.report import describe, failed_lines, header_lines
from properties.rounding import Ball
from tests.gate.adapters import Minimal


class Misspelt(Minimal):
    def expert(self, *arguments):
        raise NotImplementedError

    def situ_glu_vpj(self, *arguments):
        raise NotImplementedError

    def helper(self):
        raise NotImplementedError


def test_a_name_next_to_one_of_the_protocol_is_pointed_out():
    lines = header_lines(describe(subject_of(Misspelt()), "gate", None))
    warnings = [line for line in lines if line.startswith("warning") and " is no method " in line]
    assert len(warnings) == 2
    assert "expert is no method of the protocol; is experts meant?" in warnings[0]
    assert "is situ_glu_vjp meant?" in warnings[1]


def test_correct_adapters_are_not_warned():
    for adapter in (Reference, Minimal, Float32):
        assert describe(subject_of(adapter()), "gate", None)["misspelt"] == {}


def undecided(times: int) -> Property:
    """NRM-VALUE's inputs with a body that leaves that many cases undecided."""
    entry, seen = find("NRM-VALUE"), []

    def body(subject, inputs):
        subject.rms_norm(np.ones((1, 1)), np.ones(1), eps=1e-5)
        seen.append(inputs)
        if len(seen) <= times:
            unknown(subject, "not told")

    return entry.__class__(**{**vars(entry), "function": body, "examples": 12})


def test_one_undecided_case_of_few_is_no_unknown_verdict():
    lane = Lane("quick", 1.0, random=False)
    one, two = (judge(undecided(times), subject_of(Minimal()), lane) for times in (1, 2))
    assert (one.verdict, one.unknown, one.cases) == ("passed", 1, 12)
    assert (two.verdict, two.unknown) == ("unknown", 2)


def test_expert_ids_arrive_as_int64():
    seen = []

    class Watching(Reference):
        def experts(self, x, expert_ids, *others, **betas):
            seen.append(expert_ids.dtype)
            return super().experts(x, expert_ids, *others, **betas)

        def experts_vjp(self, x, expert_ids, *others, **betas):
            seen.append(expert_ids.dtype)
            return super().experts_vjp(x, expert_ids, *others, **betas)

        def route(self, logits, bias, *, top_k):
            routing = super().route(logits, bias, top_k=top_k)
            return routing._replace(expert_ids=routing.expert_ids.astype(np.uint8))

    subject = subject_of(Watching())
    routed = subject.route(np.zeros((1, 2)), np.zeros(2), top_k=1)
    ones = np.ones((2, 1, 1))
    call = (np.ones((1, 1)), routed.expert_ids, routed.weights, ExpertParameters(ones, ones, ones))
    subject.experts(*call, beta_gate=4.0, beta_up=25.0)
    subject.experts_vjp(*call, np.ones((1, 1)), beta_gate=4.0, beta_up=25.0)
    assert seen == [np.int64, np.int64]


def test_the_ids_that_did_not_pass_are_named_at_the_end_by_verdict():
    verdicts = {
        "NRM-VALUE": "failed",
        "ACT-VALUE": "passed",
        "ACT-ODD": "failed",
        "QB-SUM": "unknown",
    }
    outcomes = [Outcome(name, "norm", "theorem", verdict, "") for name, verdict in verdicts.items()]
    assert failed_lines(outcomes) == ["failed: NRM-VALUE, ACT-ODD", "unknown: QB-SUM"]
    assert failed_lines(outcomes[1:2]) == []


def test_a_violation_says_how_many_elements_are_outside_and_in_which_rows():
    subject = subject_of(Minimal())
    expected = Ball(np.zeros((4, 3)), np.ones((4, 3)), subject.arithmetic)
    actual = np.zeros((4, 3))
    actual[1, 2] = 2.0
    with pytest.raises(ViolationError) as one:
        within(subject, actual, expected, "out")
    assert "outside" not in str(one.value)
    actual[3] = 4.0
    with pytest.raises(
        ViolationError, match="4 of 12 elements are outside, in 2 of 4 rows, 1 to 3"
    ):
        within(subject, actual, expected, "out")
