"""What can be wrong with a target, in words, with the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import AlreadyRunningError, ConfigError, DivergedError

if TYPE_CHECKING:
    from tailrace.client import Change
    from tailrace.mirror.net import Key

_FRESH = "Start the mirror with --fresh: it takes a new snapshot."


def occupied(place: str, table: str) -> ConfigError:
    """There is a table of that name, and it is not ours."""
    return ConfigError(
        f"{place} has a table {table} that is not a mirror",
        hint="A mirror never overwrites what it has not made. Mirror into another database, or "
        "under another name with --as, or drop the table.",
    )


def fenced(place: str, table: str) -> AlreadyRunningError:
    """Somebody else has moved the place."""
    return AlreadyRunningError(
        f"another mirror writes to {table} in {place}",
        hint="One mirror a table and target. Stop the other one.",
    )


def absent(table: str, key: Key) -> DivergedError:
    """A row that has to be there is not."""
    return DivergedError(
        f"{table} has no row {', '.join(map(str, key))}, and a change needs what is in it",
        hint=_FRESH,
    )


def without_key(table: str, change: Change) -> DivergedError:
    """A row that cannot be found without a key."""
    if change.op.value == "update" and change.old is None:
        return DivergedError(
            f"{table} has no key, and change {change.id} does not say which row it is of",
            hint="Give the table a primary key, or run: ALTER TABLE ... REPLICA IDENTITY FULL. "
            "Then start the mirror with --fresh.",
        )
    return DivergedError(
        f"{table} has no key, and none of its rows is the old row of change {change.id}",
        hint=_FRESH,
    )
