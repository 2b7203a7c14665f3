"""What kind of survivor a mutant is, and why no test needs to tell it from the original."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.mutation.rules import Rule
from tests.mutation.rules_lp_oracle import LP_ORACLE
from tests.mutation.rules_reference import REFERENCE
from tests.mutation.rules_rounding import ROUNDING

MESSAGE = "text of a message"

OPEN = ("not judged", "see the list")
WORDING = (MESSAGE, "the error is raised all the same; its exact words are not fixed by a test")

# By the first folder of a file.
RULES: Mapping[str, tuple[Rule, ...]] = {
    "reference_numpy": REFERENCE,
    "lp_oracle": LP_ORACLE,
    "properties": ROUNDING,
}

_STRING = re.compile(r'(?<!\w)f?"(?:[^"\\]|\\.)*"')
_SPOKEN = re.compile(r'"[^"]* [^"]*"')


def kind_of(mutant: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and the reason: those of the first rule that fits, else by the shape of it."""
    for rule in RULES.get(mutant["file"].partition("/")[0], ()):
        if rule.fits(mutant):
            return rule.kind, rule.why
    return WORDING if rewords(mutant) else OPEN


def rewords(mutant: Mapping[str, Any]) -> bool:
    """Whether nothing differs but a string of several words."""
    before, after = mutant["before"], mutant["after"]
    same = _STRING.sub("", before) == _STRING.sub("", after)
    return same and bool(_SPOKEN.search(before))
