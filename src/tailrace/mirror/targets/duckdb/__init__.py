"""The target DuckDB: a file, `duckdb:///local.db`. Needs the extra `mirror`.

target  the table in the file
rows    column types, casts and rows as Arrow tables
"""

# ruff: noqa: PLC0415 - a target is loaded when an address names it

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.mirror.targets.file_url import file_path
from tailrace.mirror.targets.target import Target, TargetType

if TYPE_CHECKING:
    from tailrace.client.names import Table


def _open(url: str, table: Table) -> Target:
    from tailrace.mirror.targets.duckdb.target import Duckdb

    return Duckdb(file_path(url), table)


TARGET = TargetType(
    schemes=("duckdb",), example="duckdb:///local.db", open=_open, needs="tailrace[mirror]"
)
