"""The runs behind the claims: decided by their seeds, and measured as they say.

Legend: M tokens, N routed experts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.balancing_claims import one_step
from properties.judgement.balancing_claims import (
    Loads,
    Setting,
    loads_at,
    noise,
    run,
    sign_steps,
    summary,
)
from properties.loading import subject_of
from properties.reference import Reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "balancing-claims.md"

FEW = Setting(tokens=96, num_experts=8, top_k=2, spread=0.5)


def test_a_seed_decides_a_run() -> None:
    subject = subject_of(Reference())
    with subject.new_case():
        one, same, other = (run(subject, "implementation", FEW, s, (0, 2)) for s in (3, 3, 4))
        reference = run(subject, "reference", FEW, 3, (0, 2))
    assert one == same == reference
    assert one != other


def test_batches_of_a_run_share_their_offsets() -> None:
    first, second = replace(FEW, tokens=40_000, spread=3.0).batches(0, 2)
    assert not np.array_equal(first, second)
    assert np.abs(first.mean(axis=0) - second.mean(axis=0)).max() < 0.05
    assert np.ptp(first.mean(axis=0)) > 1.0


def test_loads_are_counted_as_they_are_told() -> None:
    logits = np.array([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]])
    assert loads_at(logits, np.zeros(3), 2).tolist() == [2, 1, 1]
    assert loads_at(logits, np.array([-9.0, 0.0, 0.0]), 2).tolist() == [0, 2, 2]
    loads = Loads.of(np.array([4, 2, 0]))
    assert loads == pytest.approx((2.0, 4.0, (8 / 3) ** 0.5 / 2))


def test_noise_is_the_cv_of_independent_choices() -> None:
    setting = Setting(tokens=500, num_experts=40, top_k=5, spread=0.0)
    drawn = np.random.default_rng(0).binomial(500, 5 / 40, (400, 40))
    assert noise(setting) == pytest.approx(
        (drawn.std(axis=1) / drawn.mean(axis=1)).mean(), rel=0.03
    )


def test_the_sign_update_moves_by_its_step_alone() -> None:
    """Two experts, the first wanted more: twice the step takes half as many steps."""
    wanted = replace(FEW, tokens=4000, num_experts=2, top_k=1, spread=0.9, hot=1)
    steps = [sign_steps(wanted, 0, size, 1.1, 200) for size in (0.02, 0.04)]
    assert steps[0] in (2 * steps[1], 2 * steps[1] - 1)
    assert sign_steps(wanted, 0, 1e-6, 1.1, 50) == 51


def test_summaries_are_means_and_sample_deviations() -> None:
    assert str(summary([1.0, 2.0, 3.0])) == "2 ± 1"


def test_the_page_is_what_the_seeds_give() -> None:
    """Its smaller table, measured again."""
    text = PAGE.read_text(encoding="utf-8")
    for line in one_step().markdown().splitlines():
        assert line in text
