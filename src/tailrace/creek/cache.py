"""The known schemas in the data folder, and the log cursor up to which they are complete.

With them a start need not read the whole log, and can answer for schemas that retention has removed
from the log while PostgreSQL is unreachable. All of it can be rebuilt from the log or the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.creek.sql import StoredSchema
from tailrace.log.relation_history import LogCursor
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class SchemaCache:
    """Two files: the schemas, which rarely change, and the log cursor, which often does.

    `namespaced` is the form of the schemas. Those of both forms are kept, for the messages that are
    in the stream. Each form has its own cursor: after a change of the form, and after an update
    from a release that knew one form, the log is read again from its start.
    """

    def __init__(self, folder: Path, name: str, *, namespaced: bool = True) -> None:
        self._schemas = StateFile(folder / f"{name}.schemas", list[StoredSchema])
        suffix = "namespaced.place" if namespaced else "place"
        self._cursor = StateFile(folder / f"{name}.{suffix}", LogCursor)

    def read(self) -> tuple[list[StoredSchema], LogCursor | None]:
        """What an earlier run has stored. Without schemas the log is read from its start."""
        schemas = self._schemas.read_or(None)
        return ([], None) if schemas is None else (schemas, self._cursor.read_or(None))

    def write(self, schemas: Iterable[StoredSchema], cursor: LogCursor | None) -> None:
        """Store both. The schemas come first: the cursor must not be ahead of them."""
        self._schemas.write(sorted(schemas, key=lambda stored: stored.fingerprint))
        if cursor is not None:
            self._cursor.write(cursor)
