"""Files that are written whole or not at all, and refused before any work where they cannot be."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["objection_to_file", "objection_to_folder", "write_whole"]


def objection_to_file(path: Path) -> str:
    """Why this file could not be written, or ""."""
    if path.is_dir():
        return "it is a folder; name a file"
    if path.exists() and not path.is_file():
        return "it is no regular file"
    return objection_to_folder(path.parent)


def objection_to_folder(folder: Path) -> str:
    """Why no file could be written into this folder, or ""."""
    if not folder.exists():
        return f"there is no folder {folder}; make it first"
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the file and rename, so that a reader sees the old content or the new."""
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
