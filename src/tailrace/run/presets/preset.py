"""The settings file of a preset: a few options become a file in the data folder.

The other commands accept the file too. It holds no secret: secrets stay in the environment, and the
file refers to them.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import yaml

from tailrace import private
from tailrace.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HTTP_TOKEN = "${TAILRACE_HTTP_TOKEN:-}"  # noqa: S105 - a reference
"""`http.token` in the file of a preset. Without the variable, the server creates a token."""
_HEADER = """\
# Written by `tailrace {command}` at every start. To change other settings than its options, copy
# this file and run the copy: tailrace run copy.yml
"""


def literal(text: str) -> str:
    """Escape text in which a reference to the environment could begin."""
    return text.replace("${", "$${")


def http_section(*, host: str, port: int, hosts: str, insecure: bool) -> dict[str, Any]:
    """The section `http` of the file; `hosts` are names, separated by commas or blanks."""
    return {
        "host": literal(host),
        "port": port,
        "hosts": [literal(name) for name in re.split(r"[\s,]+", hosts) if name],
        "token": HTTP_TOKEN,
        "insecure": insecure,
    }


def write(content: Mapping[str, Any], file: Path, *, command: str) -> Path:
    """Write the settings file, atomically."""
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        private.create_folder(file.parent)
        text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
        temporary.write_text(_HEADER.format(command=command) + text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}") from error
    return file
