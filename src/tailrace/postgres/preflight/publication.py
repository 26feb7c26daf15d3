"""Checks of the publication: does it exist, and what does it leave out."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts


@check("publication-exists", "the publication exists")
def exists(facts: Facts) -> Iterator[Finding]:
    """A slot cannot read changes older than its publication."""
    if facts.publication is not None:
        return
    name = facts.config.source.publication
    create = f"CREATE PUBLICATION {quote_ident(name)} FOR TABLE ...;"
    if facts.slot is None:
        yield error(f"publication {name} does not exist", f"{create} -- or: tailrace init")
    else:
        yield error(
            f"publication {name} does not exist, and slot {facts.slot.name} does: the slot cannot "
            "read changes older than a publication that is created now",
            f"{create} -- before the first capture, drop the slot and run `tailrace init` instead",
        )


@check("publication-tables", "the publication contains tables", needs=("publication",))
def tables(facts: Facts) -> Iterator[Finding]:
    """An empty publication streams nothing, without an error."""
    assert facts.publication is not None
    if not facts.publication.tables:
        yield warning(
            "the publication contains no table",
            f"ALTER PUBLICATION {quote_ident(facts.publication.name)} ADD TABLE ...;",
        )


@check("publication-all-tables", "the publication names its tables", needs=("publication",))
def all_tables(facts: Facts) -> Iterator[Finding]:
    """FOR ALL TABLES includes tables that are created later."""
    if facts.publication and facts.publication.all_tables:
        yield warning(
            "the publication is FOR ALL TABLES: UPDATE and DELETE will fail on a new table without "
            "a primary key",
            "Create a publication FOR TABLE with the tables to capture.",
        )


@check("publication-operations", "all operations are published", needs=("publication",))
def operations(facts: Facts) -> Iterator[Finding]:
    """Consumers never see operations that are not published."""
    assert facts.publication is not None
    if missing := facts.publication.unpublished_operations:
        yield warning(
            f"operations that are not published: {', '.join(missing)}",
            f"ALTER PUBLICATION {quote_ident(facts.publication.name)} "
            "SET (publish = 'insert, update, delete, truncate');",
        )


@check("publication-row-filter", "no row filter", needs=("publication",))
def row_filter(facts: Facts) -> Iterator[Finding]:
    """Rows outside the filter never reach the log; TRUNCATE is not filtered."""
    assert facts.publication is not None
    for published in facts.publication.tables:
        if published.row_filter is not None:
            yield warning(
                f"only rows with {published.row_filter} are published; an update that moves a row "
                "into or out of the filter arrives as an insert or a delete",
                _without_selection(facts, published.table.quoted),
                str(published.table),
            )


@check("publication-column-list", "no column list", needs=("publication",))
def column_list(facts: Facts) -> Iterator[Finding]:
    """Columns outside the list, new ones included, never reach the log."""
    assert facts.publication is not None
    for published in facts.publication.tables:
        if published.columns is not None:
            yield warning(
                f"only these columns are published: {', '.join(published.columns)}",
                _without_selection(facts, published.table.quoted),
                str(published.table),
            )


def _without_selection(facts: Facts, table: str) -> str:
    # In one transaction, so that every change is published before and after.
    name = quote_ident(facts.config.source.publication)
    return (
        f"BEGIN; ALTER PUBLICATION {name} DROP TABLE {table}; "
        f"ALTER PUBLICATION {name} ADD TABLE {table}; COMMIT;"
    )


@check("publication-overlap", "no other publication contains these tables", needs=("publication",))
def overlap(facts: Facts) -> Iterator[Finding]:
    """Harmless, because capture reads one publication; useful before one is dropped."""
    for other, pairs in groupby(facts.overlaps, key=lambda pair: pair[0]):
        names = ", ".join(table for _, table in pairs)
        yield info(f"publication {other} also contains: {names}", subject=other)


CHECKS = (exists, tables, all_tables, operations, row_filter, column_list, overlap)
