"""Schemas as producers publish them, and the last few hundred of them in memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import orjson

from tailrace.client.creek.avro import Event
from tailrace.errors import MalformedError

_MOST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaMessage:
    """A schema of changes."""

    fingerprint: str
    schema: str
    """As JSON."""
    source: str
    """`schema.table`."""
    created_at: datetime

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Read what a producer publishes, or answers."""
        try:
            found = orjson.loads(data)
            return cls(
                fingerprint=str(found["fingerprint"]),
                schema=str(found["schema"]),
                source=str(found["source"]),
                created_at=datetime.fromisoformat(found["created_at"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a schema message is not understood: {error!r}") from error


class Known:
    """The schemas that were used last, each under the place it was found for.

    A fingerprint counts neither PostgreSQL's types nor its keys, so a table that has changed may
    have the same one with another text, and so may the table of another database.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], SchemaMessage] = OrderedDict()
        self._events: dict[tuple[str, str], Event] = {}

    def add(self, message: SchemaMessage, where: str = "") -> None:
        """Keep a schema, and let go of the one that nobody has asked for the longest.

        With a text that is news, whatever else is known of that place is old.
        """
        key = where, message.fingerprint
        if key in self._messages and self._messages[key].schema != message.schema:
            for other in [each for each in self._messages if each[0] == where]:
                self._forget(other)
        self._messages.setdefault(key, message)
        self._messages.move_to_end(key)
        while len(self._messages) > _MOST:
            self._forget(next(iter(self._messages)))

    def _forget(self, key: tuple[str, str]) -> None:
        del self._messages[key]
        self._events.pop(key, None)

    def message(self, fingerprint: str, where: str = "") -> SchemaMessage | None:
        """A schema, if it is known."""
        found = self._messages.get((where, fingerprint))
        if found is not None:
            self._messages.move_to_end((where, fingerprint))
        return found

    def event(self, fingerprint: str, where: str) -> Event | None:
        """The same, to read changes by."""
        message = self.message(fingerprint, where)
        if message is None:
            return None
        key = where, fingerprint
        if key not in self._events:
            self._events[key] = Event(message.schema)
        return self._events[key]
