"""The target SQLite: a file, `sqlite:///local.db`.

target  the table in the file
rows    column types and values as SQLite stores them
"""

# ruff: noqa: PLC0415 - a target is loaded when an address names it

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.mirror.targets.file_url import file_path
from tailrace.mirror.targets.target import Target, TargetType

if TYPE_CHECKING:
    from tailrace.client.names import Table


def _open(url: str, table: Table) -> Target:
    from tailrace.mirror.targets.sqlite.target import Sqlite

    return Sqlite(file_path(url), table)


TARGET = TargetType(schemes=("sqlite",), example="sqlite:///local.db", open=_open)
