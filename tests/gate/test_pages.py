"""The specification as text: one page per property, and docs/properties.md."""

from __future__ import annotations

from pathlib import Path

from properties.pages import catalogue_page, explanation
from properties.registry import catalogue, find

PAGE = Path(__file__).resolve().parents[2] / "docs" / "properties.md"


def test_the_committed_catalogue_is_the_generated_one() -> None:
    """`latentmoe-gate list --markdown > docs/properties.md` brings it up to date."""
    assert PAGE.read_text(encoding="utf-8") == catalogue_page()


def test_every_property_has_its_statement_on_the_page_once() -> None:
    text = catalogue_page()
    for entry in catalogue().values():
        assert text.count(f"### {entry.id}\n") == 1
        assert entry.statement in text


def test_a_page_says_what_a_reader_needs() -> None:
    page = explanation(find("OPT-FIXED"))
    assert page.startswith("OPT-FIXED  (theorem, optimality)")
    assert "a statement about the mathematics" in page
    assert "340 generated cases" in page
    assert "Legend: M tokens, N routed experts" in page
    assert "one pinned instance" in explanation(find("OPT-JAM"))


def test_every_theorem_says_how_it_is_known_and_what_its_failure_means() -> None:
    for entry in catalogue().values():
        assert "If it fails" in entry.statement or entry.kind == "counterexample", entry.id
