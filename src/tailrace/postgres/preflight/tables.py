"""Checks of each published table: can its rows be identified, and is all of it captured."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts
    from tailrace.postgres.table_state import TableState

_NEEDS = ("publication",)


@check("table-replica-identity", "every table can identify its rows", needs=_NEEDS)
def replica_identity(facts: Facts) -> Iterator[Finding]:
    """The check that protects the application: its own UPDATE and DELETE would fail."""
    assert facts.publication is not None
    if not (facts.publication.update or facts.publication.delete):
        return
    for table in facts.tables:
        for name in table.unidentified:
            yield error(
                "the table has no replica identity: PostgreSQL refuses UPDATE and DELETE on it "
                "while it is published",
                f"ALTER TABLE {name} ADD PRIMARY KEY (...); "
                f"-- or: ALTER TABLE {name} REPLICA IDENTITY FULL;",
                name,
            )


@check("table-primary-key", "every table has a primary key", needs=_NEEDS)
def primary_key(facts: Facts) -> Iterator[Finding]:
    """With REPLICA IDENTITY FULL only, equal rows cannot be distinguished."""
    for table in facts.tables:
        if not table.primary_key and not table.unidentified:
            yield info(
                "the table has no primary key: sinks that upsert by key cannot store it",
                f"ALTER TABLE {table.table.quoted} ADD PRIMARY KEY (...);",
                str(table.table),
            )


@check(
    "table-identity-not-primary-key", "replica identity and primary key are the same", needs=_NEEDS
)
def identity_not_primary_key(facts: Facts) -> Iterator[Finding]:
    """Old keys then hold the columns of the index, not those of the primary key."""
    for table in facts.tables:
        if table.replica_identity == "i" and set(table.identity) != set(table.primary_key):
            yield warning(
                f"rows are identified by ({', '.join(table.identity)}), not by the primary key "
                f"({', '.join(table.primary_key)})",
                f"ALTER TABLE {table.table.quoted} REPLICA IDENTITY DEFAULT;",
                str(table.table),
            )


@check("table-generated-column", "no generated column is left out", needs=_NEEDS)
def generated_column(facts: Facts) -> Iterator[Finding]:
    """The stream leaves out generated columns; PostgreSQL 18 can publish stored ones."""
    for table in facts.tables:
        hidden = _hidden(facts, table)
        keys = [column for column in hidden if column in table.identity]
        if keys and table.replica_identity != "f":
            yield error(
                f"the key column {', '.join(keys)} is generated and not published: rows cannot be "
                "identified",
                f"ALTER TABLE {table.table.quoted} REPLICA IDENTITY FULL;",
                str(table.table),
            )
        elif hidden:
            yield info(
                f"generated columns that are not published: {', '.join(hidden)}",
                _publish_generated(facts) if set(hidden) & set(table.stored) else "",
                str(table.table),
            )


def _hidden(facts: Facts, table: TableState) -> list[str]:
    assert facts.publication is not None
    listed = next(
        (entry.columns for entry in facts.publication.tables if entry.table == table.table), None
    )
    if listed is not None:
        return [*(column for column in table.stored if column not in listed), *table.virtual]
    stored = [] if facts.publication.generated_columns else table.stored
    return [*stored, *table.virtual]


def _publish_generated(facts: Facts) -> str:
    if facts.version < 180_000:
        return "Upgrade to PostgreSQL 18, which can publish stored generated columns."
    name = quote_ident(facts.config.source.publication)
    return f"ALTER PUBLICATION {name} SET (publish_generated_columns = stored);"


@check(
    "table-toast-under-default-identity",
    "no table has TOAST values that an update does not send",
    needs=_NEEDS,
)
def toast(facts: Facts) -> Iterator[Finding]:
    """Tailrace marks such values as unchanged; a sink that stores whole rows lacks them."""
    for table in facts.tables:
        if table.toasted and table.replica_identity != "f":
            yield info(
                "PostgreSQL does not send TOAST values that an update does not change; they arrive "
                "as `unchanged`",
                f"If sinks need whole rows: ALTER TABLE {table.table.quoted} "
                "REPLICA IDENTITY FULL;",
                str(table.table),
            )


@check("table-unlogged", "no table is unlogged", needs=_NEEDS)
def unlogged(facts: Facts) -> Iterator[Finding]:
    """FOR ALL TABLES includes unlogged tables and never sends their rows."""
    for table in facts.unlogged:
        yield warning(
            "the table is unlogged: PostgreSQL never sends its rows",
            f"ALTER TABLE {table.quoted} SET LOGGED;",
            str(table),
        )


@check("table-partition-root", "no partitioned table", needs=_NEEDS)
def partition_root(facts: Facts) -> Iterator[Finding]:
    """With the root's name, a row that moves between partitions stays in one table."""
    assert facts.publication is not None
    name = quote_ident(facts.publication.name)
    for table in facts.tables:
        if table.partitioned:
            yield info(
                "changes arrive under the name of the root; TRUNCATE, DETACH and DROP of a single "
                "partition are not sent",
                subject=str(table.table),
            )
    if not facts.publication.via_root and facts.partitions:
        yield warning(
            f"partitions are published under their own names: {', '.join(facts.partitions)}",
            f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",
        )


@check("table-row-security", "no table has row security", needs=_NEEDS)
def row_security(facts: Facts) -> Iterator[Finding]:
    """Logical decoding ignores policies; a snapshot with hidden rows fails."""
    for table in facts.tables:
        if table.row_security and not (facts.role.superuser or facts.role.bypasses_row_security):
            yield warning(
                "row security is enabled: the stream has every row, but snapshots and backfills "
                "fail if the policies hide rows from the role",
                f"ALTER ROLE {quote_ident(facts.role.name)} BYPASSRLS;",
                str(table.table),
            )


@check("table-case-collision", "no names differ only in case", needs=_NEEDS)
def case_collision(facts: Facts) -> Iterator[Finding]:
    """Spark and many sinks ignore case, so two such names would be one."""
    for table in facts.tables:
        if twins := _twins(table.columns):
            yield warning(
                f"column names differ only in case: {', '.join(twins)}",
                f"ALTER TABLE {table.table.quoted} RENAME COLUMN ... TO ...;",
                str(table.table),
            )
    if twins := _twins([str(table.table) for table in facts.tables]):
        yield warning(
            f"table names differ only in case: {', '.join(twins)}", "ALTER TABLE ... RENAME TO ...;"
        )


def _twins(names: list[str]) -> list[str]:
    counts = Counter(name.casefold() for name in names)
    return [name for name in names if counts[name.casefold()] > 1]


@check("table-money", "no column's text depends on the server's locale", needs=_NEEDS)
def money(facts: Facts) -> Iterator[Finding]:
    """The text form of `money` depends on lc_monetary."""
    for table in facts.tables:
        if table.money:
            yield info(
                f"the text of money columns depends on lc_monetary: {', '.join(table.money)}",
                f"ALTER TABLE {table.table.quoted} "
                + ", ".join(f"ALTER {quote_ident(name)} TYPE numeric" for name in table.money)
                + ";",
                str(table.table),
            )


CHECKS = (
    replica_identity,
    primary_key,
    identity_not_primary_key,
    generated_column,
    toast,
    unlogged,
    partition_root,
    row_security,
    case_collision,
    money,
)
