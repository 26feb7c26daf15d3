"""What is known of schemas, in the data folder, and how far the log was read for it.

So that a start need not read the whole log, and is not without the schemas of messages that the log
has dropped while PostgreSQL is away. All of it can be lost: it is in the log, or in the table.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING

import orjson

from tailrace.creek.sql import StoredSchema
from tailrace.log.relation_history import Place
from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class SchemaCache:
    """Two files: schemas, which rarely change, and the place in the log, which always does."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._schemas = f"{name}.schemas"
        self._place = f"{name}.place"
        self._written: dict[str, bytes] = {}

    def read(self) -> tuple[list[StoredSchema], Place | None]:
        """What an earlier run has kept. Without schemas, the log is read from its beginning."""
        schemas: list[StoredSchema] = []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            rows = orjson.loads((self._folder / self._schemas).read_bytes())
            schemas = [
                StoredSchema(
                    fingerprint=str(row["fingerprint"]),
                    schema=str(row["schema"]),
                    source=str(row["source"]),
                    at=datetime.fromisoformat(row["at"]),
                )
                for row in rows
            ]
            place = orjson.loads((self._folder / self._place).read_bytes())
            return schemas, Place(str(place["segment"]), int(place["offset"]))
        return schemas, None

    def write(self, schemas: Iterable[StoredSchema], place: Place | None) -> None:
        """Keep both; the schemas first, so that no place is behind what is not there."""
        known = sorted(schemas, key=lambda stored: stored.fingerprint)
        self._write(self._schemas, orjson.dumps(known))
        if place is not None:
            self._write(self._place, orjson.dumps(place))

    def _write(self, name: str, content: bytes) -> None:
        if self._written.get(name) != content:
            LocalStore(self._folder, create=True).write_atomic(name, content)
            self._written[name] = content
