"""No total makes our implementations read another rank; and the page on it is what was measured.

Legend: M tokens, N routed experts, K top_k; q = M K / N is the target load, integral here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from properties.strategies.rank_mistakes import END, MISTAKES, load_step, total, wrong_ranks
from properties.strategies.ranks import PUBLISHED
from tests.rank_arithmetic import reading
from tests.rank_arithmetic.reading import (
    every_load,
    groups_of,
    wrong_in_reference,
    wrong_in_torch,
    wrong_target_rank,
)
from tests.rank_arithmetic.sweep import swept

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rank-arithmetic.md"

ratios = pytest.mark.parametrize(("top_k", "num_experts"), PUBLISHED)


@ratios
def test_torch_reads_every_integral_load_below_2_to_the_24(top_k: int, num_experts: int) -> None:
    """All of them, with 8,192 experts a call."""
    tried = 0
    for loads in every_load(top_k, num_experts):
        tried += len(loads)
        wrong = wrong_in_torch(loads, top_k, num_experts, groups_of(num_experts))
        assert not len(wrong), wrong[:5]
    assert tried == (END - 1) // load_step(top_k, num_experts)


@ratios
def test_torch_reads_them_with_its_own_number_of_experts(top_k: int, num_experts: int) -> None:
    """Every 97th; the sweep takes all."""
    for loads in every_load(top_k, num_experts, 97):
        assert not len(wrong_in_torch(loads, top_k, num_experts))


@ratios
def test_the_reference_reads_them(top_k: int, num_experts: int) -> None:
    """Every 101st rank, and a histogram for every 40,009th; the sweep takes all ranks."""
    for loads in every_load(top_k, num_experts, 101):
        assert not len(wrong_target_rank(loads, top_k, num_experts))
    for loads in every_load(top_k, num_experts, 40_009):
        assert not len(wrong_in_reference(loads, top_k, num_experts))


# That these checks find something ------------------------------------------------------------


@pytest.mark.parametrize("off", [-1, 1])
def test_a_rank_that_is_off_by_one_is_seen(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = np.arange(1, 200, dtype=np.int64)

    def off_by_one(
        counts_NB: torch.Tensor, low: torch.Tensor, high: torch.Tensor, top_k: int
    ) -> torch.Tensor:
        cumulative = counts_NB.cumsum(-1)
        rank = cumulative[:, -1:] * top_k // len(counts_NB) + off * (counts_NB[:, 2:] % 7 == 0)
        return torch.searchsorted(cumulative, rank).squeeze(-1).double() + 0.5

    assert not len(wrong_in_torch(loads, 16, 896))
    monkeypatch.setattr(reading, "histogram_quantile", off_by_one)
    found = wrong_in_torch(loads, 16, 896)
    assert 0 < len(found) < len(loads)


def test_a_reference_with_a_rounded_ratio_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(tokens: int, top_k: int, num_experts: int) -> int:
        return int(np.ceil(np.float32(tokens) * np.float32(top_k / num_experts)))

    loads = np.arange(1, 10, dtype=np.int64)
    monkeypatch.setattr("reference_numpy.balancing.target_rank", rounded)
    monkeypatch.setattr("reference_numpy.target_rank", rounded)
    assert wrong_target_rank(loads, 16, 896)[0] == 3
    assert wrong_in_reference(loads, 16, 896)[0] == 3


# The page ------------------------------------------------------------------------------------


def cells(line_start: str) -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {line_start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_reports_every_load_and_no_wrong_one() -> None:
    for top_k, num_experts in PUBLISHED:
        row = cells(f"{top_k}/{num_experts}")
        assert row[1] == f"{(END - 1) // load_step(top_k, num_experts):,}"
        assert row[3:] == ["0"] * 4


def test_the_page_has_the_shares_of_one_ratio_to_the_last_digit() -> None:
    found = swept(22, 512, ours=False)
    column = cells("formula").index("22/512")
    for name in MISTAKES:
        assert cells(name)[column] == found.told(name)


@ratios
def test_the_page_names_the_least_total_of_each_mistake(top_k: int, num_experts: int) -> None:
    """It is wrong there; and no smaller one is, among 2^20 loads before it."""
    column = cells("formula").index(f"{top_k}/{num_experts}")
    step = load_step(top_k, num_experts)
    for name in MISTAKES:
        told = cells(name)[column]
        if told == "never":
            continue
        first = int(told.rpartition("=")[2].replace(",", ""))
        loads = np.arange(step, first * top_k // num_experts + 1, step, dtype=np.int64)[-(2**20) :]
        wrong = loads[wrong_ranks(name, loads, top_k, num_experts) != loads]
        assert total(wrong, top_k, num_experts).tolist() == [first]
