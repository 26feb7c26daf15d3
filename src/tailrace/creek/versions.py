"""The schemas of the log's relations, in memory, by fingerprint.

The schema of a message follows from the Relation message before it in the log, which is durable
before the message is published. So a request for an unknown fingerprint, shortly after the first
message with it, can be answered after reading the rest of the log.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.creek.sql import StoredSchema
from tailrace.encode.creek import schema as creek
from tailrace.errors import TailraceError
from tailrace.log.relation_history import RelationHistory
from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tailrace.creek.cache import SchemaCache
    from tailrace.log.relation_history import LogCursor
    from tailrace.position import Lsn
    from tailrace.schema import Relation, TypeName
    from tailrace.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The columns of a table. `lsn`: the first commit whose changes have them, if known."""

    relation: Relation
    types: Mapping[int, TypeName]
    lsn: Lsn | None = None

    def schemas(
        self, at: datetime, *, namespaced: bool = True
    ) -> tuple[StoredSchema, StoredSchema]:
        """The schemas of complete changes, and of changes without unchanged TOAST values."""
        complete, partial = (
            creek.event(self.relation, self.types, partial=partial, namespaced=namespaced)
            for partial in (False, True)
        )
        return self._stored(complete, at), self._stored(partial, at)

    def _stored(self, schema: creek.Schema, at: datetime) -> StoredSchema:
        return StoredSchema(
            fingerprint=schema.name,
            schema=schema.text,
            source=self.relation.qualified_name,
            at=at,
        )


def document(stored: StoredSchema, lsn: Lsn | None = None) -> bytes:
    """A schema in the form that clients read."""
    at = stored.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    content: dict[str, Any] = {
        "fingerprint": stored.fingerprint,
        "schema": stored.schema,
        "source": stored.source,
        "created_at": at,
    }
    return orjson.dumps(content if lsn is None else content | {"lsn": str(lsn)})


class Versions:
    """The known schemas of a pipeline's tables. Threads may share it."""

    def __init__(
        self,
        log: Path,
        tables: Tables,
        cache: SchemaCache,
        *,
        namespaced: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        schemas, cursor = cache.read()
        self._store = LocalStore(log)
        self._namespaced = namespaced
        self._cache = cache
        self._now = now
        self._history = RelationHistory(self._store, cursor)
        self._tables = tables
        self._reading = threading.Lock()
        self._remembering = threading.Lock()
        self._schemas = {stored.fingerprint: stored for stored in schemas}
        self._unread: list[Version] = []
        """Versions of the log that `take` has not returned yet."""

    def find(self, fingerprint: str) -> StoredSchema | None:
        """The schema of a fingerprint, if it is known."""
        return self._schemas.get(fingerprint)

    def known(self) -> list[StoredSchema]:
        """All known schemas."""
        return list(self._schemas.copy().values())

    def read(self) -> None:
        """Read the rest of the log."""
        # There is no log yet, or retention has just removed a segment: the next call reads on.
        with self._reading, contextlib.suppress(TailraceError, OSError):
            for change in self._history.read():
                relation = change.relation
                if self._tables.match(relation.namespace, relation.name):
                    types = types_of(relation, self._history.types)
                    version = Version(relation=relation, types=types, lsn=change.position.lsn)
                    self._unread.append(version)
                    self.add(version)

    def rewind(self) -> None:
        """Read the log again from the stored cursor: what `take` returned since was not published.

        For the thread that publishes, after a failure. The known schemas and types stay.
        """
        with self._reading:
            _, cursor = self._cache.read()
            history = RelationHistory(self._store, cursor)
            history.types = self._history.types
            self._history, self._unread = history, []

    def take(self) -> tuple[list[Version], LogCursor | None]:
        """The versions of the log since the last call, in order, and the cursor after them."""
        with self._reading:
            versions, self._unread = self._unread, []
            return versions, self._history.cursor

    def save(self, cursor: LogCursor | None) -> None:
        """Store the schemas. Every version before the cursor has been published."""
        self._cache.write(self.known(), cursor)

    def add(self, version: Version) -> tuple[StoredSchema, StoredSchema]:
        """Add the schemas of a version. The newest text wins, the first time stays."""
        complete, partial = self.dated(version)
        return self.remember(complete), self.remember(partial)

    def dated(self, version: Version) -> tuple[StoredSchema, StoredSchema]:
        """The schemas of a version, with the time when each was first known. Adds nothing."""
        complete, partial = version.schemas(self._now(), namespaced=self._namespaced)
        return self._dated(complete), self._dated(partial)

    def _dated(self, stored: StoredSchema) -> StoredSchema:
        known = self._schemas.get(stored.fingerprint)
        return stored if known is None else replace(stored, at=known.at)

    def remember(self, stored: StoredSchema) -> StoredSchema:
        """Add a schema, and return it with the earliest time."""
        with self._remembering:
            known = self._schemas.get(stored.fingerprint)
            dated = stored if known is None else replace(stored, at=min(stored.at, known.at))
            self._schemas[stored.fingerprint] = dated
        return dated


def types_of(relation: Relation, types: Mapping[int, TypeName]) -> dict[int, TypeName]:
    """The types of a relation's columns."""
    oids = {column.type_oid for column in relation.columns}
    return {oid: types[oid] for oid in oids if oid in types}
