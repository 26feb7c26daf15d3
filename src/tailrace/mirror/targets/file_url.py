"""File paths in addresses of targets, as in SQLAlchemy: three slashes, then the path."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from tailrace.errors import ConfigError


def file_path(url: str) -> Path:
    """The path in an address: relative after three slashes, absolute after four.

    >>> file_path("sqlite:///local.db").as_posix(), file_path("sqlite:////var/a%20b.db").as_posix()
    ('local.db', '/var/a b.db')
    """
    scheme, _, rest = url.partition("://")
    if not rest.startswith("/") or len(rest) == 1:
        raise ConfigError(
            "--to must have a file path",
            hint=f"Three slashes and a path: {scheme}:///local.db, or {scheme}:////var/lib/local.db",
        )
    return Path(unquote(rest[1:]))
