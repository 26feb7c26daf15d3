"""The schemas that the log states, in memory, by fingerprint.

A message's schema follows from the Relation message before it in the log, which is durable before
the message can be anywhere. So whoever asks for a fingerprint that is not known yet, a moment after
the first message with it, is answered once the log has been read on.
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
from tailrace.log.relation_history import Statements
from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.creek.cache import SchemaCache
    from tailrace.log.relation_history import Place
    from tailrace.position import Lsn
    from tailrace.schema import Relation, TypeName
    from tailrace.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A table's columns. `lsn`: from which commit on changes have them, where that is known."""

    relation: Relation
    types: Mapping[int, TypeName]
    lsn: Lsn | None = None

    def schemas(self, at: datetime) -> tuple[StoredSchema, StoredSchema]:
        """Of whole changes, and of those with values that PostgreSQL left out."""
        whole, part = (
            creek.event(self.relation, self.types, partial=partial) for partial in (False, True)
        )
        return self._stored(whole, at), self._stored(part, at)

    def _stored(self, schema: creek.Schema, at: datetime) -> StoredSchema:
        return StoredSchema(
            fingerprint=schema.name,
            schema=schema.text,
            source=self.relation.qualified_name,
            at=at,
        )


def document(stored: StoredSchema, lsn: Lsn | None = None) -> bytes:
    """A schema as consumers get it."""
    at = stored.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    content: dict[str, Any] = {
        "fingerprint": stored.fingerprint,
        "schema": stored.schema,
        "source": stored.source,
        "created_at": at,
    }
    return orjson.dumps(content if lsn is None else content | {"lsn": str(lsn)})


class Versions:
    """What is known of the tables that are wanted. Threads may use it side by side."""

    def __init__(self, log: Path, tables: Tables, kept: SchemaCache) -> None:
        schemas, place = kept.read()
        self._kept = kept
        self._statements = Statements(LocalStore(log), place)
        self._tables = tables
        self._reading = threading.Lock()
        self._known = {stored.fingerprint: stored for stored in schemas}
        self._stated: list[Version] = []

    def find(self, fingerprint: str) -> StoredSchema | None:
        """The schema of a fingerprint, if it is known."""
        return self._known.get(fingerprint)

    def known(self) -> list[StoredSchema]:
        """All that is known."""
        return list(self._known.copy().values())

    def read(self) -> None:
        """Read the log on."""
        # No log yet, or a segment that retention has just removed: the next look is soon.
        with self._reading, contextlib.suppress(TailraceError, OSError):
            for stated in self._statements.read():
                relation = stated.relation
                if self._tables.match(relation.namespace, relation.name):
                    types = used(relation, self._statements.types)
                    version = Version(relation=relation, types=types, lsn=stated.position.lsn)
                    self._stated.append(version)
                    self.add(version)

    def take(self) -> tuple[list[Version], Place | None]:
        """What the log has stated since the last time, in its order, and up to where."""
        with self._reading:
            taken, self._stated = self._stated, []
            return taken, self._statements.place

    def keep(self, place: Place | None) -> None:
        """Keep what is known. All that the log states up to the place has been dealt with."""
        self._kept.write(self.known(), place)

    def add(self, version: Version) -> tuple[StoredSchema, StoredSchema]:
        """Know a version's schemas. The newest text wins, the first time stays."""
        found = version.schemas(datetime.now(UTC))
        return self.remember(found[0]), self.remember(found[1])

    def dated(self, version: Version) -> StoredSchema:
        """The schema of a version's whole changes, with the time when it was first known."""
        stored, _ = version.schemas(datetime.now(UTC))
        known = self._known.get(stored.fingerprint)
        return stored if known is None else replace(stored, at=known.at)

    def remember(self, stored: StoredSchema) -> StoredSchema:
        """Know a schema."""
        known = self._known.get(stored.fingerprint)
        found = stored if known is None else replace(stored, at=min(stored.at, known.at))
        self._known[stored.fingerprint] = found
        return found


def used(relation: Relation, types: Mapping[int, TypeName]) -> dict[int, TypeName]:
    """The types of a relation's columns."""
    oids = {column.type_oid for column in relation.columns}
    return {oid: types[oid] for oid in oids if oid in types}
