"""What a table looks like, by the schema of its rows or of its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.schemas import Column, Schema
from tailrace.decode.types import type_name
from tailrace.schema import TypeName

if TYPE_CHECKING:
    from tailrace.client.creek.avro import Record
    from tailrace.client.names import Table


def described(table: Table, row: Record, key: Record | None = None) -> Schema:
    """A table by its row, and by the record of its key where that is apart.

    Nothing here says whether a column was added with a default, which old rows then have without
    any event. So that nobody counts on the contrary, columns say that they are never NULL.
    """
    columns = tuple(
        Column(
            name=field.column,
            position=0,
            data_type=data_type(field.pg_type),
            is_nullable=False,
            column_default=None,
        )
        for field in row.fields
    )
    return Schema(table=table, timestamp=0, columns=columns, key=_key(row, key or row))


def _key(row: Record, key: Record) -> tuple[str, ...]:
    """The columns of the key. REPLICA IDENTITY FULL has all columns for one, NULLs included."""
    found = [field for field in key.fields if field.key]
    if len(found) == len(row.fields) and all(field.nullable for field in found):
        return ()
    return tuple(field.column for field in found)


def data_type(pg_type: str) -> str:
    """A type of PostgreSQL's catalog in SQL.

    >>> data_type("int4"), data_type("_timestamptz"), data_type("mood"), data_type("_mood")
    ('integer', 'timestamp with time zone[]', 'mood', 'mood[]')
    """
    return type_name(0, -1, {0: TypeName(oid=0, namespace="", name=pg_type)})
