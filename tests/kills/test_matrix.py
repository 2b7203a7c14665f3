"""The kill matrix is complete and current, and nothing survives."""

from __future__ import annotations

from properties.registry import catalogue
from tests.kills.judging import by_name, calling, correct
from tests.kills.page import PAGE, alone, page
from tests.kills.reasons import NOT_ALONE
from tests.kills.run import read, stale, stale_correct

RUN = "`make kills` judges what is missing or has changed"


def test_every_wrong_implementation_has_a_current_row() -> None:
    rows = read()["mutants"]
    assert [name for name in by_name() if stale(name, rows)] == [], RUN


def test_each_is_killed_by_the_property_named_for_its_mistake() -> None:
    rows = read()["mutants"]
    assert [name for name, row in rows.items() if row["named"] not in row["killed"]] == []


def test_what_they_are_derived_from_is_right() -> None:
    rows = read()["correct"]
    assert [name for name in correct() if stale_correct(name, rows)] == [], RUN
    assert {name: row["failed"] for name, row in rows.items() if row["failed"]} == {}


def test_every_property_kills_a_mutant() -> None:
    killed = {i for row in read()["mutants"].values() for i in row["killed"]}
    assert calling() <= killed


def test_a_property_kills_one_alone_or_it_is_written_why_not() -> None:
    sole = alone(read()["mutants"])
    assert set(NOT_ALONE) == {i for i in catalogue() if i in calling() and i not in sole}
    assert all(reason.endswith(".") for reason in NOT_ALONE.values())


def test_the_page_is_what_the_data_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read()), RUN
