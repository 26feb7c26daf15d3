"""The contract of a target: a database that holds a copy of a table, and its place in the stream.

The place (`state`) is kept in the transaction that holds the data it belongs to. So whatever dies,
and whenever: data and place fit each other, and the mirror goes on from there.

A bootstrap is one transaction, from `begin` to `finish`. Readers of the target see the table as it
was until it is over. `apply` may be called several times before `commit`, which ends a transaction
that holds whole transactions of the source.

Calls block. One thread at a time makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client import Change
    from tailrace.mirror.layout import Layout
    from tailrace.mirror.net import Effect
    from tailrace.snapshot.job import Form


STATES = "_tailrace_mirrors"
"""The table of states, in every target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMirror:
    """What a target holds of a table: where it is, and what it looks like."""

    state: str
    layout: Layout


class Target(Protocol):
    """One table in one database."""

    form: ClassVar[Form]
    """`copy`: `load` also takes the names of columns and COPY's text of them."""

    def open(self) -> StoredMirror | None:
        """Connect, and say what is there. None: nothing, or nothing that is whole."""
        ...

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap; whatever was begun before is forgotten."""
        ...

    def shaped(self, columns: Sequence[list[Any]]) -> Any:
        """Rows of the snapshot in the form that `load` takes.

        Columns are in the layout's order, values as messages have them. Any thread may call this
        after `begin`: it does not touch the database, which is busy with other rows meanwhile.
        """
        ...

    def load(self, rows: Any) -> None:
        """Take rows that are `shaped`."""
        ...

    def finish(self, state: str) -> None:
        """The rows that were loaded are the table, from now on."""
        ...

    def alter(self, layout: Layout) -> None:
        """Give the table columns that it lacks, and remove columns."""
        ...

    def apply(self, effect: Effect) -> None:
        """Do what changes come to."""
        ...

    def replay(self, changes: Sequence[Change]) -> None:
        """Do changes of a table without a key, one after another."""
        ...

    def commit(self, state: str) -> None:
        """Keep what was done since the last commit, and the place behind it."""
        ...

    def rollback(self) -> None:
        """Forget what was done since the last commit."""
        ...

    def rest(self) -> None:
        """There is nothing to do for a while: let others at the database."""
        ...

    def close(self) -> None:
        """Let go of the database. May be called at any time, and twice."""
        ...
