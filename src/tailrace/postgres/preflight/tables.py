"""Checks of each published table: can its rows be identified, and does all of it arrive."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.connection import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts
    from tailrace.postgres.table_state import TableState

_NEEDS = ("publication",)


@check("table-replica-identity", "every table can identify its rows", needs=_NEEDS)
def replica_identity(facts: Facts) -> Iterator[Finding]:
    """The one that breaks the application: its UPDATE fails, not ours."""
    assert facts.publication is not None
    if not (facts.publication.update or facts.publication.delete):
        return
    for table in facts.tables:
        for name in table.unidentified:
            yield error(
                "there is no replica identity: PostgreSQL refuses UPDATE and DELETE on this table "
                "while it is published",
                f"ALTER TABLE {name} ADD PRIMARY KEY (...); "
                f"-- or: ALTER TABLE {name} REPLICA IDENTITY FULL;",
                name,
            )


@check("table-primary-key", "every table has a primary key", needs=_NEEDS)
def primary_key(facts: Facts) -> Iterator[Finding]:
    """With REPLICA IDENTITY FULL alone, equal rows can not be told apart."""
    for table in facts.tables:
        if not table.primary_key and not table.unidentified:
            yield info(
                "there is no primary key: sinks that upsert by key can not take this table",
                f"ALTER TABLE {table.table.quoted} ADD PRIMARY KEY (...);",
                str(table.table),
            )


@check(
    "table-identity-not-primary-key", "replica identity and primary key are the same", needs=_NEEDS
)
def identity_not_primary_key(facts: Facts) -> Iterator[Finding]:
    """Old keys then hold the index's columns and not the primary key's."""
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
    """Left out of the stream, except stored ones on request from PostgreSQL 18."""
    for table in facts.tables:
        hidden = _hidden(facts, table)
        keys = [column for column in hidden if column in table.identity]
        if keys and table.replica_identity != "f":
            yield error(
                f"the key column {', '.join(keys)} is generated and not sent: no row can be "
                "identified",
                f"ALTER TABLE {table.table.quoted} REPLICA IDENTITY FULL;",
                str(table.table),
            )
        elif hidden:
            yield info(
                f"generated and not sent: {', '.join(hidden)}",
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
    "no table has large values that an update leaves out",
    needs=_NEEDS,
)
def toast(facts: Facts) -> Iterator[Finding]:
    """Tailrace marks such values as unchanged; a sink that stores whole rows needs them."""
    for table in facts.tables:
        if table.toasted and table.replica_identity != "f":
            yield info(
                "large values are not sent again by an update that leaves them alone; they arrive "
                "as `unchanged`",
                f"Where whole rows are needed: ALTER TABLE {table.table.quoted} "
                "REPLICA IDENTITY FULL;",
                str(table.table),
            )


@check("table-unlogged", "no table is unlogged", needs=_NEEDS)
def unlogged(facts: Facts) -> Iterator[Finding]:
    """FOR ALL TABLES allows them, and never sends a row of theirs."""
    for table in facts.unlogged:
        yield warning(
            "the table is unlogged: its rows are never sent",
            f"ALTER TABLE {table.quoted} SET LOGGED;",
            str(table),
        )


@check("table-partition-root", "no partitioned table", needs=_NEEDS)
def partition_root(facts: Facts) -> Iterator[Finding]:
    """Changes should carry the root's name, so that moving a row is one table's business."""
    assert facts.publication is not None
    name = quote_ident(facts.publication.name)
    for table in facts.tables:
        if table.partitioned:
            yield info(
                "changes arrive under the root's name; truncating, detaching or dropping a single "
                "partition is not sent",
                subject=str(table.table),
            )
    if not facts.publication.via_root and facts.partitions:
        yield warning(
            f"partitions are published under their own names: {', '.join(facts.partitions)}",
            f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",
        )


@check("table-row-security", "no table has row security", needs=_NEEDS)
def row_security(facts: Facts) -> Iterator[Finding]:
    """Decoding ignores policies: the stream has every row, a snapshot only the visible ones."""
    for table in facts.tables:
        if table.row_security and not (facts.role.superuser or facts.role.bypasses_row_security):
            yield warning(
                "row security is on: the stream has every row, but a snapshot only what the "
                "policies show the role",
                f"ALTER ROLE {quote_ident(facts.role.name)} BYPASSRLS;",
                str(table.table),
            )


@check("table-case-collision", "no names differ in case alone", needs=_NEEDS)
def case_collision(facts: Facts) -> Iterator[Finding]:
    """Spark and many sinks fold case; so would two of these be one."""
    for table in facts.tables:
        if twins := _twins(table.columns):
            yield warning(
                f"columns differ in case alone: {', '.join(twins)}",
                f"ALTER TABLE {table.table.quoted} RENAME COLUMN ... TO ...;",
                str(table.table),
            )
    if twins := _twins([str(table.table) for table in facts.tables]):
        yield warning(
            f"tables differ in case alone: {', '.join(twins)}", "ALTER TABLE ... RENAME TO ...;"
        )


def _twins(names: list[str]) -> list[str]:
    counts = Counter(name.casefold() for name in names)
    return [name for name in names if counts[name.casefold()] > 1]


@check("table-money", "no column's text depends on the server's locale", needs=_NEEDS)
def money(facts: Facts) -> Iterator[Finding]:
    """The text of `money` follows lc_monetary."""
    for table in facts.tables:
        if table.money:
            yield info(
                f"the text of money columns follows lc_monetary: {', '.join(table.money)}",
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
