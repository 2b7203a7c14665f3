"""Why a property kills no mutant alone: what it says beside the others of its topic."""

NOT_ALONE: dict[str, str] = {}
