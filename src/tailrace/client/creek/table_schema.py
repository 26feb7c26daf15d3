"""The columns and the key of a table, from the Avro schema of its rows or of its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.schemas import Column, Schema
from tailrace.decode.types import type_name
from tailrace.schema import TypeName

if TYPE_CHECKING:
    from tailrace.client.creek.avro import Record
    from tailrace.client.names import Table


def table_schema(table: Table, row: Record, key: Record | None = None) -> Schema:
    """The schema of a table by its row record, and its key record where the two differ.

    An Avro schema does not say whether a column was added with a default, which old rows then have
    without any event. So every column is declared NOT NULL: mirrors then take a new snapshot when a
    column is added.
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
    """The columns of the key; `()` under REPLICA IDENTITY FULL.

    There all columns are marked as key, nullable ones included. A primary key is never nullable.
    """
    columns = [field for field in key.fields if field.key]
    if len(columns) == len(row.fields) and all(field.nullable for field in columns):
        return ()
    return tuple(field.column for field in columns)


def data_type(pg_type: str) -> str:
    """The SQL name of a type of PostgreSQL's catalog.

    >>> data_type("int4"), data_type("_timestamptz"), data_type("mood"), data_type("_mood")
    ('integer', 'timestamp with time zone[]', 'mood', 'mood[]')
    """
    return type_name(0, -1, {0: TypeName(oid=0, namespace="", name=pg_type)})
