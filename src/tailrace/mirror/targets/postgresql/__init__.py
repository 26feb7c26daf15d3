"""The target PostgreSQL: a database, `postgresql://user@host:5432/database`.

target   the table in the database
keyless  changes of a table without a key
staging  temporary tables for the rows of changes
session  the connection, with COPY and the types of columns
"""

# ruff: noqa: PLC0415 - a target is loaded when an address names it

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.mirror.targets.target import Target, TargetType

if TYPE_CHECKING:
    from tailrace.client.names import Table


def _open(url: str, table: Table) -> Target:
    from tailrace.mirror.targets.postgresql.target import Postgresql

    return Postgresql(url, table)


TARGET = TargetType(
    schemes=("postgresql", "postgres"),
    example="postgresql://user@host:5432/database",
    open=_open,
)
