"""Checks of the publication: does it exist, and what does it hold back."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.connection import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts


@check("publication-exists", "the publication exists")
def exists(facts: Facts) -> Iterator[Finding]:
    """A slot that is older than its publication can not be read with it."""
    if facts.publication is not None:
        return
    name = facts.config.source.publication
    create = f"CREATE PUBLICATION {quote_ident(name)} FOR TABLE ...;"
    if facts.slot is None:
        yield error(f"publication {name} does not exist", f"{create} -- or: tailrace init")
    else:
        yield error(
            f"publication {name} does not exist, and slot {facts.slot.name} is older than any that "
            "is made now: changes before it can not be read",
            f"{create} -- before the first capture, drop the slot and run `tailrace init` instead",
        )


@check("publication-tables", "the publication holds tables", needs=("publication",))
def tables(facts: Facts) -> Iterator[Finding]:
    """An empty publication streams nothing, and says nothing about it."""
    assert facts.publication is not None
    if not facts.publication.tables:
        yield warning(
            "the publication holds no table",
            f"ALTER PUBLICATION {quote_ident(facts.publication.name)} ADD TABLE ...;",
        )


@check("publication-all-tables", "the publication names its tables", needs=("publication",))
def all_tables(facts: Facts) -> Iterator[Finding]:
    """FOR ALL TABLES also takes tables that do not exist yet."""
    if facts.publication and facts.publication.all_tables:
        yield warning(
            "the publication is FOR ALL TABLES: a new table without a primary key will refuse its "
            "own UPDATE and DELETE",
            "Create a publication FOR TABLE with the tables that are wanted.",
        )


@check("publication-operations", "all operations are published", needs=("publication",))
def operations(facts: Facts) -> Iterator[Finding]:
    """What is held back is invisible to every consumer."""
    assert facts.publication is not None
    if missing := facts.publication.held_back:
        yield warning(
            f"the publication holds back: {', '.join(missing)}",
            f"ALTER PUBLICATION {quote_ident(facts.publication.name)} "
            "SET (publish = 'insert, update, delete, truncate');",
        )


@check("publication-row-filter", "no row filter", needs=("publication",))
def row_filter(facts: Facts) -> Iterator[Finding]:
    """Rows that are filtered out never reach the log, and TRUNCATE is not filtered."""
    assert facts.publication is not None
    for published in facts.publication.tables:
        if published.row_filter is not None:
            yield warning(
                f"only rows with {published.row_filter} are published; an update across "
                "this border arrives as an insert or a delete",
                _again(facts, published.table.quoted),
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
                _again(facts, published.table.quoted),
                str(published.table),
            )


def _again(facts: Facts, table: str) -> str:
    # Dropping and adding in one transaction leaves no moment in which changes are not published.
    name = quote_ident(facts.config.source.publication)
    return (
        f"BEGIN; ALTER PUBLICATION {name} DROP TABLE {table}; "
        f"ALTER PUBLICATION {name} ADD TABLE {table}; COMMIT;"
    )


@check("publication-overlap", "no other publication holds these tables", needs=("publication",))
def overlap(facts: Facts) -> Iterator[Finding]:
    """Harmless for us, who read one publication; good to know before dropping any."""
    for other, pairs in groupby(facts.overlaps, key=lambda pair: pair[0]):
        names = ", ".join(table for _, table in pairs)
        yield info(f"publication {other} also holds: {names}", subject=other)


CHECKS = (exists, tables, all_tables, operations, row_filter, column_list, overlap)
