"""Which changes to show: tables, operation, key, text."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from tailrace.change import Binary
from tailrace.log.documents import key_cells, value_text
from tailrace.tables import WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.change import Change, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Changes that match everything that is set. Heartbeats are shown on request only."""

    tables: tuple[str, ...] = ()
    op: str = ""
    key: str = ""
    """A value of the replica identity, as text."""
    text: str = ""
    """A part of a value, of a column's old value, or of a message's prefix or content."""

    def takes(self, change: Change) -> bool:
        """Whether a change matches."""
        if self.tables and not of_tables(change, self.tables):
            return False
        if change.prefix == WATCHDOG and self.op != "message":
            return False
        return (
            self.op in ("", change.op.value)
            and (not self.key or _has_key(change, self.key))
            and (not self.text or _has_text(change, self.text.encode(errors="surrogatepass")))
        )


def of_tables(change: Change, patterns: Sequence[str]) -> bool:
    """Whether the change's table matches one of the patterns; a logical message has no table."""
    relation = change.relation
    return relation is not None and _selected(
        relation.qualified_name, relation.name, tuple(patterns)
    )


@lru_cache(maxsize=1000)
def _selected(qualified: str, name: str, patterns: tuple[str, ...]) -> bool:
    """Changes come by the thousands, of a few tables."""
    return any(fnmatchcase(qualified if "." in pattern else name, pattern) for pattern in patterns)


def _has_key(change: Change, key: str) -> bool:
    return any(
        value_text(value) == key
        for _, value in key_cells(change)
        if isinstance(value, bytes | Binary)
    )


def _has_text(change: Change, text: bytes) -> bool:
    rows: list[Row] = [row for row in (change.before, change.after) if row is not None]
    return (
        any(text in value for row in rows for value in row if isinstance(value, bytes))
        or text in change.content
        or text in change.prefix.encode()
    )
