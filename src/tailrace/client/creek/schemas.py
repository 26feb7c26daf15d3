"""Schema messages of producers, and a cache of the most recently used ones."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import orjson

from tailrace.client.creek.avro import ChangeSchema
from tailrace.errors import MalformedError

MAX_CACHED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaMessage:
    """A schema of changes."""

    fingerprint: str
    schema: str
    """The Avro schema, as JSON."""
    source: str
    """`schema.table`."""
    created_at: datetime

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Read a published schema, or the answer to a request for one."""
        try:
            message = orjson.loads(data)
            return cls(
                fingerprint=str(message["fingerprint"]),
                schema=str(message["schema"]),
                source=str(message["source"]),
                created_at=datetime.fromisoformat(message["created_at"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a schema message is invalid: {error!r}") from error


class SchemaCache:
    """The most recently used schemas, each under the subject of its table.

    A fingerprint does not cover PostgreSQL's types and keys. So a table that was altered may have
    the same fingerprint with another text, and so may a table of another database.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], SchemaMessage] = OrderedDict()
        self._change_schemas: dict[tuple[str, str], ChangeSchema] = {}

    def add(self, message: SchemaMessage, subject: str = "") -> None:
        """Add a schema, and remove the least recently used one if the cache is full.

        A new text for a known fingerprint means that the table was altered: all other schemas of
        the subject are then outdated, too.
        """
        key = subject, message.fingerprint
        if key in self._messages and self._messages[key].schema != message.schema:
            for other in [cached for cached in self._messages if cached[0] == subject]:
                self._remove(other)
        self._messages.setdefault(key, message)
        self._messages.move_to_end(key)
        while len(self._messages) > MAX_CACHED:
            self._remove(next(iter(self._messages)))

    def _remove(self, key: tuple[str, str]) -> None:
        del self._messages[key]
        self._change_schemas.pop(key, None)

    def message(self, fingerprint: str, subject: str = "") -> SchemaMessage | None:
        """A cached schema message."""
        message = self._messages.get((subject, fingerprint))
        if message is not None:
            self._messages.move_to_end((subject, fingerprint))
        return message

    def change_schema(self, fingerprint: str, subject: str) -> ChangeSchema | None:
        """A cached schema, parsed."""
        message = self.message(fingerprint, subject)
        if message is None:
            return None
        key = subject, fingerprint
        if key not in self._change_schemas:
            self._change_schemas[key] = ChangeSchema(message.schema)
        return self._change_schemas[key]
