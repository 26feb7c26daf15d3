"""Folders and files for their owner only: they hold rows of the source's tables.

A folder that exists keeps its mode. Files that other programs create, such as Spark's checkpoints
and temporary files, follow the umask (`restrict_new_files`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077
"""The permissions of the group and of all others."""


def create_folder(folder: Path) -> None:
    """Create a folder and its missing parents."""
    for path in reversed((folder, *folder.parents)):
        path.mkdir(_FOLDER_MODE, exist_ok=True)


def create_file(path: Path, *, buffering: int = -1) -> BinaryIO:
    """An empty file, open for writing; replaces the content of one that exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    return os.fdopen(handle, "wb", buffering)


def restrict_new_files() -> None:
    """Deny the group and all others what this process and its children create from now on.

    Spark would otherwise write shuffled rows to files in the temporary folder that all users of the
    machine can read.
    """
    os.umask(os.umask(_OTHERS) | _OTHERS)
