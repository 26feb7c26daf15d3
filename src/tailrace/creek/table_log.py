"""The commits that added tables to a publication, as the log shows them.

`_creek.add_table` and `_creek.remove_table` write a logical message into their transaction, and
notify the producer with the same content: {"action", "publication", "oid"}.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import orjson

from tailrace.creek.sql import PREFIX
from tailrace.errors import TailraceError
from tailrace.log.reader import Log
from tailrace.log.relation_history import logical_messages
from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN, Lsn, Position

if TYPE_CHECKING:
    from pathlib import Path


class TableLog:
    """The messages of one publication. A log that does not exist yet is empty."""

    def __init__(self, log: Path, publication: str) -> None:
        self._store = LocalStore(log)
        self._publication = publication

    def end(self) -> Position:
        """The position of the last change."""
        with contextlib.suppress(TailraceError, OSError):
            return Log(self._store).end().position
        return ORIGIN

    def end_lsn(self) -> Lsn:
        """The LSN up to which the log is complete."""
        with contextlib.suppress(TailraceError, OSError):
            return Log(self._store).end().end_lsn
        return Lsn(0)

    def added(self, after: Position) -> dict[int, Lsn]:
        """By oid, the last commit that added a table after a position and was not undone."""
        commits: dict[int, Lsn] = {}
        with contextlib.suppress(TailraceError, OSError):
            for entry in Log(self._store).read(after):
                for lsn, content in logical_messages(entry, PREFIX):
                    action, oid = _parse(content, self._publication)
                    if action == "add":
                        commits[oid] = lsn
                    else:
                        commits.pop(oid, None)
        return commits


def added_oid(content: bytes, publication: str) -> int | None:
    """The table that a message adds to a publication; None for any other message.

    >>> added_oid(b'{"action": "add", "publication": "creek", "oid": 16384}', "creek")
    16384
    """
    action, oid = _parse(content, publication)
    return oid if action == "add" else None


def _parse(content: bytes, publication: str) -> tuple[str, int]:
    """Action and oid; empty and 0 for an invalid message or another publication."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        fields = orjson.loads(content)
        if fields.get("publication") == publication:
            return str(fields.get("action")), int(fields.get("oid"))
    return "", 0
