"""What kind of survivor a mutant is, and why no test needs to tell it from the original."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MESSAGE = "text of a message"
EQUIVALENT = "equivalent"
SPEED = "speed only"

OPEN = ("not judged", "see the list")
WORDING = (MESSAGE, "the error is raised all the same; its exact words are not fixed by a test")


@dataclass(frozen=True)
class Rule:
    """Mutants of a function that match a pattern, before and after joined by ` => `."""

    function: str
    change: str
    kind: str
    why: str

    def fits(self, mutant: Mapping[str, Any]) -> bool:
        """Whether this mutant is one of them."""
        return mutant["function"] == self.function and bool(re.search(self.change, change(mutant)))


RULES: tuple[Rule, ...] = ()

_STRING = re.compile(r'(?<!\w)f?"(?:[^"\\]|\\.)*"')
_SPOKEN = re.compile(r'"[^"]* [^"]*"')


def kind_of(mutant: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and the reason: those of the first rule that fits, else by the shape of it."""
    for rule in RULES:
        if rule.fits(mutant):
            return rule.kind, rule.why
    return WORDING if rewords(mutant) else OPEN


def rewords(mutant: Mapping[str, Any]) -> bool:
    """Whether nothing differs but a string of several words."""
    before, after = mutant["before"], mutant["after"]
    same = _STRING.sub("", before) == _STRING.sub("", after)
    return same and bool(_SPOKEN.search(before))


def change(mutant: Mapping[str, Any]) -> str:
    """What was, an arrow, and what is instead, in one line."""
    return " ".join(f"{mutant['before']} => {mutant['after']}".split())
