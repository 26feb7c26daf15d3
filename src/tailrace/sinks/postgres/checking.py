"""What `tailrace check` reports about the target database. Changes nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.finding import Finding, Severity, error, info
from tailrace.postgres.names import TableName, quote_ident
from tailrace.sinks.postgres.positions import exists
from tailrace.sinks.postgres.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.postgres.settings import PostgresSink

_MAY_CREATE = """
SELECT coalesce(
    (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace WHERE nspname = %s),
    has_database_privilege(current_database(), 'CREATE')
)
"""
_MAY_WRITE = "SELECT has_table_privilege(to_regclass(%s), 'INSERT')"


def findings(settings: PostgresSink) -> Iterator[Finding]:
    """The server, and the sink's own tables."""
    with contextlib.closing(Session(settings, name="check")) as session:
        answers = f"PostgreSQL {session.server_version} answers"
        yield Finding(severity=Severity.OK, finding=answers)
        standby = session.run("SELECT pg_is_in_recovery()").fetchone()
        if standby is not None and standby[0]:
            yield error(
                "the target database is a standby", "Add target_session_attrs=read-write to `dsn`."
            )
        tables = [settings.positions]
        if settings.mode == "events":
            tables.append(settings.events)
        for name in tables:
            yield from _own_table(session, TableName.parse(name))


def _own_table(session: Session, table: TableName) -> Iterator[Finding]:
    """Whether the sink can use a table, or create it."""
    if exists(session, table):
        if not _holds(session, _MAY_WRITE, table.quoted):
            yield error(
                f"the role may not write to table {table}",
                f"GRANT SELECT, INSERT, UPDATE ON {table.quoted} TO ...;",
                str(table),
            )
    elif _holds(session, _MAY_CREATE, table.namespace):
        yield info(f"the sink will create table {table}", subject=str(table))
    else:
        yield error(
            f"table {table} is missing, and the role may not create it",
            f"CREATE SCHEMA IF NOT EXISTS {quote_ident(table.namespace)};"
            f" GRANT USAGE, CREATE ON SCHEMA {quote_ident(table.namespace)} TO ...;",
            str(table),
        )


def _holds(session: Session, condition: str, name: str) -> bool:
    row = session.run(condition, [name]).fetchone()
    return row is not None and bool(row[0])
