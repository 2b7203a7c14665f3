"""Files in the user's folder that would be imported instead of the suite's packages."""

from __future__ import annotations

from pathlib import Path

from properties.errors import AdapterError

__all__ = ["require_own"]

PACKAGES = ("properties", "reference_numpy", "lp_oracle")


def require_own(folder: Path) -> None:
    """Raise AdapterError if the folder has a module or package named like one of the suite's."""
    home = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        for candidate in (folder / f"{name}.py", folder / name / "__init__.py"):
            if candidate.exists() and candidate.resolve() != home / name / "__init__.py":
                raise AdapterError(
                    f"{candidate} hides the package {name} of latentmoe-gate, which is in {home}; "
                    "rename it, or run from another folder"
                )
