"""The tables of a publication with what operators ask about them: size, replica identity, columns.

For the console. What the stream sends is in `tailrace.postgres.relations`.
"""

# ruff: noqa: S608 - the fragments are constants

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from tailrace.postgres.catalog import PUBLISHED_TABLES
from tailrace.postgres.connection import translate_error

if TYPE_CHECKING:
    from psycopg import Connection

_IDENTITIES = {"d": "primary key", "f": "full", "n": "nothing", "i": "index"}
_TABLES = f"""
SELECT n.nspname AS namespace, c.relname AS name, c.relreplident::text AS identity,
       c.reltuples::float8 AS rows, pg_total_relation_size(c.oid)::float8 AS bytes,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS keyed,
       ARRAY(SELECT format('%%s %%s', a.attname, format_type(a.atttypid, a.atttypmod))
             FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum) AS columns
{PUBLISHED_TABLES}
WHERE t.pubname = %s
ORDER BY 1, 2
"""


def read_tables(connection: Connection, publication: str) -> list[dict[str, Any]]:
    """The tables, by name. Rows are PostgreSQL's estimate; None before the first ANALYZE."""
    try:
        with connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(_TABLES.encode(), (publication,)).fetchall()
    except psycopg.Error as error:
        raise translate_error(connection, error) from error
    return [
        {
            "namespace": row["namespace"],
            "name": row["name"],
            "rows": None if row["rows"] < 0 else int(row["rows"]),
            "bytes": int(row["bytes"]),
            "replica_identity": _identity(row["identity"], keyed=row["keyed"]),
            "columns": row["columns"],
        }
        for row in rows
    ]


def _identity(letter: str, *, keyed: bool) -> str:
    if letter == "d" and not keyed:
        return "none: the table has no primary key"
    return _IDENTITIES.get(letter, letter)
