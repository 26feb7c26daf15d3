"""Adds tables to a publication and removes them, while capture runs.

A table is added in a transaction that commits only if PostgreSQL and the checks of `tailrace
doctor` accept it: on a published table without a replica identity, or with a row filter over other
columns, the application's own UPDATE fails. No process needs a restart: the stream contains the
changes of a table from the commit that added it on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from tailrace.errors import PostgresRefusedError
from tailrace.postgres.bootstrap import log_exists
from tailrace.postgres.catalog import TABLE_BY_NAME
from tailrace.postgres.connection import translate_error
from tailrace.postgres.names import quote_ident
from tailrace.postgres.preflight import Severity, tables
from tailrace.postgres.preflight.facts import gather
from tailrace.postgres.publication import addition_sql, read_publication, removal_sql
from tailrace.postgres.table_state import read_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import Connection

    from tailrace.config import Config
    from tailrace.postgres.names import TableName
    from tailrace.postgres.preflight import Finding
    from tailrace.postgres.publication import PublicationState, PublishedTable

# Column lists, row filters and whole schemas in publications.
_SELECTIVE_VERSION = 150000


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The result of `join` or `leave`. `changed` is False if there was nothing to do."""

    changed: bool
    findings: tuple[Finding, ...] = ()


def join(
    connection: Connection,
    config: Config,
    table: TableName,
    *,
    columns: Sequence[str] = (),
    where: str = "",
    approve: Callable[[Connection], None] = lambda _connection: None,
) -> Membership:
    """Add a table to the publication of the settings.

    `approve` is called inside the transaction and sees the new publication. An error that it raises
    rolls the transaction back.
    """
    try:
        publication = _publication(connection, config)
        _refuse_unsuitable(connection, publication, table, bool(columns or where))
        member = _member(publication, table)
        if member is not None:
            _refuse_another_selection(publication, member, columns, where)
            return Membership(changed=False)
        statement = addition_sql(publication.name, table, columns=columns, where=where)
        with connection.transaction():
            _add(connection, statement, publication, table)
            findings = _examined(connection, config, table)
            _refuse_broken_writes(connection, publication, table)
            approve(connection)
        return Membership(changed=True, findings=findings)
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


def leave(connection: Connection, config: Config, table: TableName) -> Membership:
    """Remove a table from the publication of the settings."""
    try:
        publication = _publication(connection, config)
        if publication.all_tables:
            raise PostgresRefusedError(
                f"publication {publication.name!r} is FOR ALL TABLES: no table can be removed",
                hint="Exclude the table in the pipelines, tables: [..., '!schema.table'], or "
                "create a publication FOR TABLE.",
            )
        if _member(publication, table) is None:
            return Membership(changed=False)
        _refuse_whole_schema(connection, publication, table)
        _alter(connection, removal_sql(publication.name, table), publication, table)
        return Membership(changed=True)
    except psycopg.Error as error:
        raise translate_error(connection, error) from error


def _publication(connection: Connection, config: Config) -> PublicationState:
    name = config.source.publication
    publication = read_publication(connection, name)
    if publication is None:
        raise PostgresRefusedError(
            f"publication {name!r} does not exist in this database",
            hint="Create it: tailrace init --table ...",
        )
    return publication


def _member(publication: PublicationState, table: TableName) -> PublishedTable | None:
    return next((member for member in publication.tables if member.table == table), None)


def _refuse_unsuitable(
    connection: Connection, publication: PublicationState, table: TableName, selective: bool
) -> None:
    row = connection.execute(_KIND, (table.namespace, table.name)).fetchone()
    if row is None:
        raise PostgresRefusedError(
            f"table {table} does not exist",
            hint="Write schema.table as in SQL: names with capitals or dots need double quotes.",
        )
    kind, persistence, roots = row
    if kind not in ("r", "p"):
        raise PostgresRefusedError(f"{table} is not a table: only tables can be published")
    if persistence != "p":
        raise PostgresRefusedError(
            f"{table} is unlogged or temporary: PostgreSQL never sends its rows",
            hint=f"ALTER TABLE {table.quoted} SET LOGGED;",
        )
    members = {str(member.table) for member in publication.tables}
    if publication.via_root and (published := [root for root in roots if root in members]):
        raise PostgresRefusedError(
            f"{table} is a partition of {published[0]}, which is published: the stream already "
            "contains its changes, under the name of that table"
        )
    if selective and publication.all_tables:
        raise PostgresRefusedError(
            f"publication {publication.name!r} is FOR ALL TABLES: it sends all columns and rows",
            hint="Create a publication FOR TABLE, or use `where` and `select` of the pipeline.",
        )
    if selective and connection.info.server_version < _SELECTIVE_VERSION:
        raise PostgresRefusedError(
            "column lists and row filters need PostgreSQL 15",
            hint="Use `where` and `select` of the pipeline.",
        )


def _refuse_another_selection(
    publication: PublicationState, member: PublishedTable, columns: Sequence[str], where: str
) -> None:
    """Refuse other columns or any filter: PostgreSQL rewrites filters, so they do not compare."""
    differs = bool(columns) and set(columns) != set(member.columns or ())
    if differs or where:
        again = addition_sql(publication.name, member.table, columns=columns, where=where)
        raise PostgresRefusedError(
            f"{member.table} is already in publication {publication.name!r}",
            hint=f"To change what it sends: BEGIN; {removal_sql(publication.name, member.table)}; "
            f"{again}; COMMIT;",
        )


def _refuse_whole_schema(
    connection: Connection, publication: PublicationState, table: TableName
) -> None:
    if connection.info.server_version < _SELECTIVE_VERSION:
        return
    values = publication.name, table.namespace
    if connection.execute(_WHOLE_SCHEMA, values).fetchone() is not None:
        raise PostgresRefusedError(
            f"publication {publication.name!r} contains all tables of schema {table.namespace}",
            hint=f"ALTER PUBLICATION {quote_ident(publication.name)} DROP TABLES IN SCHEMA "
            f"{quote_ident(table.namespace)}; then add single tables with `tailrace table add`.",
        )


def _add(
    connection: Connection, statement: str, publication: PublicationState, table: TableName
) -> None:
    members = _members(connection, publication)
    _alter(connection, statement, publication, table)
    if _members(connection, publication) != members + 1:
        # With an extra closing bracket, the text of a condition can add further tables.
        raise PostgresRefusedError(
            "--where must be one condition, but it adds further tables",
            hint=f"The statement was: {statement};",
        )


def _members(connection: Connection, publication: PublicationState) -> int:
    row = connection.execute(_MEMBERS, (publication.name,)).fetchone()
    return int(row[0]) if row else 0


def _alter(
    connection: Connection, statement: str, publication: PublicationState, table: TableName
) -> None:
    values = table.namespace, table.name, publication.name
    owners = connection.execute(_OWNERS, values).fetchone()
    try:
        # Binary results use the extended protocol, which accepts only a single statement.
        connection.execute(statement.encode(), binary=True)
    except errors.InsufficientPrivilege as error:
        of_publication, of_table = owners or ("?", "?")
        raise PostgresRefusedError(
            f"role {connection.info.user} may not alter the publication: "
            f"{error.diag.message_primary}",
            hint=f"The publication is owned by {of_publication} and the table by {of_table}. Run "
            f"this as a role that owns both, or as a superuser: {statement};",
        ) from error


def _examined(connection: Connection, config: Config, table: TableName) -> tuple[Finding, ...]:
    """The findings of `tailrace doctor` about the table. Raises the first error."""
    facts = gather(connection, config, log_exists=log_exists(config.log.path))
    alone = replace(facts, tables=read_named(connection, [table]), unlogged=())
    findings = [finding for check in tables.CHECKS for finding in check.run(alone)]
    for finding in findings:
        if finding.severity is Severity.ERROR:
            raise PostgresRefusedError(f"{finding.subject}: {finding.finding}", hint=finding.fix)
    return tuple(finding for finding in findings if finding.severity is not Severity.OK)


def _refuse_broken_writes(
    connection: Connection, publication: PublicationState, table: TableName
) -> None:
    """Let PostgreSQL plan a write: it refuses one that it could not publish."""
    row = connection.execute(_WRITABLE, (table.namespace, table.name)).fetchone()
    column = quote_ident(row[0]) if row else None
    statements = []
    if publication.update and column is not None:
        statements.append(f"EXPLAIN UPDATE {table.quoted} SET {column} = {column}")  # noqa: S608
    if publication.delete:
        statements.append(f"EXPLAIN DELETE FROM {table.quoted}")  # noqa: S608
    for statement in statements:
        try:
            with connection.transaction():
                connection.execute(statement.encode())
        except errors.InsufficientPrivilege:
            continue
        except psycopg.Error as error:
            reason = error.diag.message_detail or error.diag.message_primary
            raise PostgresRefusedError(
                f"published like this, {table} would refuse the application's own writes: {reason}",
                hint="--columns must include the replica identity, and --where may use only its "
                f"columns. Or run: ALTER TABLE {table.quoted} REPLICA IDENTITY FULL;",
            ) from error


_KIND = f"""
SELECT c.relkind::text, c.relpersistence::text,
       ARRAY(SELECT format('%%s.%%s', rn.nspname, r.relname)
             FROM pg_partition_ancestors(c.oid) a
             JOIN pg_class r ON r.oid = a.relid AND r.oid <> c.oid
             JOIN pg_namespace rn ON rn.oid = r.relnamespace)
{TABLE_BY_NAME}
"""  # noqa: S608 - the fragments are constants
_WHOLE_SCHEMA = """
SELECT FROM pg_publication_namespace s
JOIN pg_publication p ON p.oid = s.pnpubid
JOIN pg_namespace n ON n.oid = s.pnnspid
WHERE p.pubname = %s AND n.nspname = %s
"""
_MEMBERS = """
SELECT count(*) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = %s
"""
_OWNERS = f"""
SELECT pg_get_userbyid(p.pubowner), pg_get_userbyid(c.relowner)
{TABLE_BY_NAME}
JOIN pg_publication p ON p.pubname = %s
"""
_WRITABLE = f"""
SELECT a.attname
{TABLE_BY_NAME}
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 AND a.attgenerated = '' AND a.attidentity <> 'a'
ORDER BY a.attnum LIMIT 1
"""
