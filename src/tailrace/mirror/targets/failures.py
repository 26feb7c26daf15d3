"""The errors that all targets have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.change import Op
from tailrace.errors import AlreadyRunningError, ConfigError, DivergedError

if TYPE_CHECKING:
    from tailrace.client import Change
    from tailrace.mirror.net import Key

_FRESH = "Take a new snapshot: tailrace mirror --fresh"


def table_exists(database: str, table: str) -> ConfigError:
    """The table exists, and no mirror has created it."""
    return ConfigError(
        f"{database} has a table {table} that is not a mirror",
        hint="A mirror never overwrites a table that it did not create. Mirror into another "
        "database, use another name with --as, or drop the table.",
    )


def other_writer(database: str, table: str) -> AlreadyRunningError:
    """The stored state is not the one that this mirror wrote last."""
    return AlreadyRunningError(
        f"another mirror writes to {table} in {database}",
        hint="Run one mirror per table and target: stop the other one.",
    )


def missing_row(table: str, key: Key) -> DivergedError:
    """A change keeps columns of a row that the target does not have."""
    return DivergedError(
        f"{table} has no row {', '.join(map(str, key))}, and a change keeps some of its columns",
        hint=_FRESH,
    )


def unidentified_row(table: str, change: Change) -> DivergedError:
    """A table without a key: the change has no old row, or the target has no such row."""
    if change.op is Op.UPDATE and change.old is None:
        return DivergedError(
            f"{table} has no key, and change {change.id} does not have the old row",
            hint="Add a primary key to the table, or run: ALTER TABLE ... REPLICA IDENTITY FULL. "
            "Then start the mirror with --fresh.",
        )
    return DivergedError(
        f"{table} has no key, and no row like the old row of change {change.id}", hint=_FRESH
    )
