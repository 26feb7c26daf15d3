"""Addresses as targets: `sqlite:///local.db`, `duckdb:///local.db`, `postgresql://host/db`."""

# ruff: noqa: PLC0415 - each target loads its own library, when it is asked for

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tailrace.client.names import Table
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.mirror.targets.target import Target

_FORMS = "sqlite:///local.db, duckdb:///local.db or postgresql://user@host:5432/database"


def target_of(url: str, table: str) -> Target:
    """The target at an address, for a table under this name.

    >>> type(target_of("sqlite:///local.db", "users")).__name__
    'Sqlite'
    """
    name = Table.parse(table)
    scheme, separator, _ = url.partition("://")
    match scheme.lower() if separator else "":
        case "sqlite":
            from tailrace.mirror.targets.sqlite import Sqlite

            return Sqlite(_path(url), name)
        case "duckdb":
            if find_spec("duckdb") is None:
                raise ConfigError(
                    "mirrors in DuckDB need a library that is not installed",
                    hint="pip install 'tailrace[mirror]'",
                )
            from tailrace.mirror.targets.duckdb import Duckdb

            return Duckdb(_path(url), name)
        case "postgresql" | "postgres":
            from tailrace.mirror.targets.postgresql import Postgresql

            return Postgresql(url, name)
        case _:
            # Not the address itself: it may hold a password.
            raise ConfigError("--to is not an address of a target", hint=f"Write {_FORMS}.")


def _path(url: str) -> Path:
    """Three slashes and a path relative to the current folder; four, and an absolute one."""
    _, _, rest = url.partition("://")
    if not rest.startswith("/") or len(rest) == 1:
        raise ConfigError(
            "--to names no file",
            hint="Three slashes and a path: sqlite:///local.db, or sqlite:////var/lib/local.db.",
        )
    return Path(unquote(rest[1:]))
