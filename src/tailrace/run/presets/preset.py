"""What presets have in common: a few options become a settings file in the data folder.

The file can be read, changed and given to the other commands. No secret is in it: those stay in
the environment, and the file refers to them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import yaml

from tailrace.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HEADER = """\
# Written by `tailrace {command}` at every start. To change more than its options can, copy this
# file and run the copy: tailrace run copy.yml
"""


def literal(text: str) -> str:
    """Text as it is, where a reference to the environment could begin."""
    return text.replace("${", "$${")


def write(content: Mapping[str, Any], file: Path, *, command: str) -> Path:
    """Write the settings file, whole or not at all."""
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
        temporary.write_text(_HEADER.format(command=command) + text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}") from error
    return file
