"""Folders and files for their owner only: they hold rows of the source's tables.

A folder that exists keeps its mode.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER_MODE = 0o700
FILE_MODE = 0o600


def create_folder(folder: Path) -> None:
    """Create a folder and its missing parents."""
    for path in reversed((folder, *folder.parents)):
        path.mkdir(_FOLDER_MODE, exist_ok=True)


def create_file(path: Path, *, buffering: int = -1) -> BinaryIO:
    """An empty file, open for writing; replaces the content of one that exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    return os.fdopen(handle, "wb", buffering)
