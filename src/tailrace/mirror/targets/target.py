"""The contract of a target, and `TargetType`, which describes one to the registry.

A target holds a copy of a table, and its position in the stream (`state`). It commits the state in
the transaction of the rows that the state belongs to. So after a crash at any point, rows and
state match, and the mirror resumes from there.

A bootstrap is one transaction, from `begin` to `finish`. Until it commits, readers of the target
see the old table. `apply` may be called several times before `commit`, which ends a transaction
that holds whole transactions of the source.

All calls block. Only one thread at a time calls a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client import Change
    from tailrace.client.names import Table
    from tailrace.mirror.layout import Layout
    from tailrace.mirror.net import Effect
    from tailrace.snapshot.job import Form


STATES = "_tailrace_mirrors"
"""The table of states, in every target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMirror:
    """What a target has stored for a table: its position and its layout."""

    state: str
    layout: Layout


class Target(Protocol):
    """One table in one database."""

    form: ClassVar[Form]
    """`copy`: `load` also takes COPY's text, as a pair of column names and text."""

    def open(self) -> StoredMirror | None:
        """Connect and read the stored state. None: no mirror, or none that was completed."""
        ...

    def begin(self, layout: Layout) -> None:
        """Begin a bootstrap. Discards a bootstrap that was not finished."""
        ...

    def convert(self, columns: Sequence[list[Any]]) -> Any:
        """Rows of the snapshot in the form that `load` takes.

        Columns are in the layout's order, values as in messages. Any thread may call this after
        `begin`: it does not use the database, which loads other rows at the same time.
        """
        ...

    def load(self, rows: Any) -> None:
        """Load rows that were converted."""
        ...

    def finish(self, state: str) -> None:
        """Replace the table with the loaded rows, and commit them with the state."""
        ...

    def alter(self, layout: Layout) -> None:
        """Add and drop columns, so that the table has those of a layout."""
        ...

    def apply(self, effect: Effect) -> None:
        """Apply the net effect of changes."""
        ...

    def replay(self, changes: Sequence[Change]) -> None:
        """Apply changes of a table without a key, one after another."""
        ...

    def commit(self, state: str) -> None:
        """Commit the changes since the last commit, with the state after them."""
        ...

    def rollback(self) -> None:
        """Discard the changes since the last commit."""
        ...

    def idle(self) -> None:
        """No changes are pending: release locks that keep readers out."""
        ...

    def close(self) -> None:
        """Close the connection. May be called at any time, and more than once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetType:
    """Describes a target to the registry. Creating one must not import the target's library."""

    schemes: tuple[str, ...]
    """URL schemes of its addresses."""
    example: str
    """An address, for hints."""
    open: Callable[[str, Table], Target]
    """Create the target of an address, for a table under this name. Does not connect."""
    needs: str = ""
    """What to install for its library: `tailrace[mirror]`."""
