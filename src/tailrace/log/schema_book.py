"""The schemas in force at a place in the log: raw Relation and Type messages.

PostgreSQL sends a Relation message before the first change that uses it, once per session. So a
reader that starts in the middle of the log needs the messages that came before. Each segment opens
with a SCHEMA entry that repeats them; a book collects them from there on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.log.format.entry import NO_OFFSETS, Entry, Kind, pack
from tailrace.schema import Relation, TypeName
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tailrace.position import Lsn, Position

_KIND_AND_OID_BYTES = 5


@dataclass(slots=True)
class SchemaBook:
    """The latest Relation and Type message of each object."""

    _messages: dict[bytes, bytes] = field(default_factory=dict)

    def note(self, message: bytes | memoryview) -> None:
        """Add a message. It replaces an older one of the same object: same kind, same oid."""
        raw = bytes(message)
        self._messages[raw[:_KIND_AND_OID_BYTES]] = raw

    def note_entry(self, entry: Entry) -> None:
        """Add the schemas of an entry."""
        for message in entry.schema_messages():
            self.note(message)

    def relations(self) -> set[int]:
        """The oids of all relations."""
        return {_oid(key) for key in self._messages if key[:1] == b"R"}

    def forget(self, relations: Collection[int]) -> None:
        """Remove relations that no later change uses without stating them again."""
        self._messages = {
            key: raw
            for key, raw in self._messages.items()
            if key[:1] != b"R" or _oid(key) not in relations
        }

    def copy(self) -> SchemaBook:
        """An independent book with the same messages."""
        return SchemaBook(dict(self._messages))

    def messages(self) -> list[bytes]:
        """All messages, types first: relations refer to types."""
        return sorted(self._messages.values(), key=lambda raw: raw[:1] != b"Y")

    def entry(
        self, at: Position, *, end_lsn: Lsn, time: int, epoch: int = 0, ends: bool = True
    ) -> Entry:
        """A SCHEMA entry with all messages."""
        messages = self.messages()
        offsets, body = pack(messages) if messages else (NO_OFFSETS, b"")
        return Entry(
            kind=Kind.SCHEMA, first=at, last=at, end_lsn=end_lsn, first_time=time, last_time=time,
            ends=ends, schemas=len(messages), epoch=epoch, offsets=offsets, body=body,
        )  # fmt: skip


def _oid(key: bytes) -> int:
    return int.from_bytes(key[1:_KIND_AND_OID_BYTES], "big")


def read_relations(
    messages: Iterable[bytes | memoryview], types: dict[int, TypeName]
) -> Iterator[tuple[Relation, dict[int, TypeName]]]:
    """The relations among raw messages, each with the types it uses. Adds new types to `types`."""
    for raw in messages:
        value = pgoutput.parse(raw)
        if isinstance(value, TypeName):
            types[value.oid] = value
        elif isinstance(value, Relation):
            used = {column.type_oid for column in value.columns}
            yield value, {oid: types[oid] for oid in used if oid in types}
