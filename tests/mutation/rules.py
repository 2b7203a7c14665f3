"""What a rule about survivors is: which mutants it is about, their kind, and the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EQUIVALENT = "equivalent"
SPEED = "speed only"
WIDER = "a wider allowance"


@dataclass(frozen=True)
class Rule:
    """Mutants of functions that match a pattern whole, whose change matches another somewhere.

    A change is what was and what is instead, joined by ` => `.
    """

    function: str
    change: str
    kind: str
    why: str

    def fits(self, mutant: Mapping[str, Any]) -> bool:
        """Whether this mutant is one of them."""
        same = re.fullmatch(self.function, mutant["function"])
        return bool(same and re.search(self.change, change(mutant)))


def change(mutant: Mapping[str, Any]) -> str:
    """What was, an arrow, and what is instead, in one line."""
    return " ".join(f"{mutant['before']} => {mutant['after']}".split())
