"""docs/rounding.md says what running it again says: some of its rows, computed anew."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pytest

from tests.rounding.composites import COMPOSITES
from tests.rounding.report import (
    COMPOSITE_CASES,
    HEAD,
    PAGE,
    TITLES,
    allowance_rows,
    digit_rows,
    expressions,
    formula_rows,
    operation_rows,
)
from tests.rounding.test_operations import CASES

NUMBER = re.compile(r"(?<![\w.-])\d[\d.]*(?:e[+-]?\d+)?")

# The page prints two digits, so that one more in the last of them is up to a tenth.
LAST_DIGIT = 0.11

ANEW = "write the page anew: python -m tests.rounding.report"


def require_rows(rows: Iterable[str]) -> None:
    """Each row stands on the page, up to the last digit of its numbers."""
    written = PAGE.read_text().splitlines()
    by_name = {named(line): line for line in written}
    for row in rows:
        assert named(row) in by_name, f"the page has no row {row}; {ANEW}"
        kept = by_name[named(row)]
        pairs = zip(NUMBER.findall(row), NUMBER.findall(kept), strict=True)
        same = [math.isclose(float(new), float(old), rel_tol=LAST_DIGIT) for new, old in pairs]
        assert all(same), f"{row}\n{kept}\n{ANEW}"


def named(row: str) -> tuple[str, int]:
    """What a row is found by: its first cell, and how many there are (formulas have two rows)."""
    return row.split(" | ")[0], row.count(" | ")


def test_the_allowances_on_the_page_are_those_in_force() -> None:
    written = PAGE.read_text()
    assert "\n".join(allowance_rows()) in written


def test_rows_of_operations_come_out_again() -> None:
    require_rows(list(operation_rows(("add", "exp", "tanh", "matmul")))[2:])


def test_rows_of_formulas_come_out_again() -> None:
    names = ("sigmoid, left tail", "rms_norm, 1e-4", "rms_norm_vjp, sqrt(eps)", "weights_vjp")
    require_rows(list(formula_rows(names, COMPOSITE_CASES))[2:])
    require_rows(list(digit_rows(("situ_glu, about 1", "experts, thin")))[2:])


def test_only_what_is_explained_is_further_than_a_hundred_errors_from_the_worst_of_them() -> None:
    """Bold: gradients of dense layers computed in bfloat16, for the reason that the page gives."""
    columns = list(TITLES.values())
    bold = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and "**" in line]
    for line in bold:
        name, *cells = line.strip("|").split(" | ")
        assert name.strip().startswith("layer_vjp, dense: "), line
        for title, cell in zip(columns, cells, strict=True):
            assert "**" not in cell or title.startswith("bfloat16"), line


def test_the_page_has_a_row_for_each_operation_formula_and_arithmetic() -> None:
    written = PAGE.read_text()
    for name in (*CASES, *COMPOSITES, *TITLES.values()):
        assert f"| {name}" in written, name
    assert "<!--" not in written


@pytest.mark.parametrize("format_name", TITLES)
def test_no_random_expression_of_a_small_run_leaves_its_ball(format_name: str) -> None:
    found = expressions(format_name, 10)
    assert found.values > 0
    assert max(found.in_digits, found.on_machines) <= 1.0


def test_the_page_says_what_its_template_says() -> None:
    written = set(PAGE.read_text().splitlines())
    for line in HEAD.read_text().splitlines():
        assert line.startswith("<!--") or line in written, line
