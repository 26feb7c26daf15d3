"""`SnapshotPublisher`: messages without a position to resume at, those of snapshots.

What an earlier attempt stored is found by asking: for the subjects, where each message has one of
its own, or for the ids on a subject behind a place in the stream. Within the server's window for
repeated ids a second copy is refused by its id as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tailrace.errors import PoisonedError
from tailrace.jetstream.bulk import frames
from tailrace.jetstream.bulk import read_back as stored
from tailrace.jetstream.bulk.publisher import Publisher
from tailrace.jetstream.line import Line
from tailrace.jetstream.stream import checked, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import NatsSink

_OUTSTANDING = 16
_SCHEMA = pa.schema([(name, pa.binary()) for name in ("destination", "id", "headers", "payload")])


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMessage:
    """A message. `headers` are lines as NATS has them."""

    destination: str
    id: str
    payload: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> bytes:
        """The headers as they are sent."""
        return "".join(f"\r\n{name}: {value}" for name, value in self.headers).encode()

    @property
    def batch(self) -> pa.RecordBatch:
        """The message as one row."""
        row = {
            "destination": self.destination.encode(),
            "id": self.id.encode(),
            "headers": self.lines,
            "payload": self.payload,
        }
        return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


class SnapshotPublisher:
    """A connection to the stream of `settings`, which is made for `owner` when it is missing.

    Messages that are large should be few on their way: `outstanding`.
    """

    def __init__(
        self,
        settings: NatsSink,
        *,
        name: str,
        owner: str = "snapshots",
        outstanding: int = _OUTSTANDING,
    ) -> None:
        self._settings = settings
        self._line = Line.connect(settings, name=name)
        try:
            self._stream = ready(self._line, settings, pipeline=owner)
        except BaseException:
            self._line.close()
            raise
        self._publisher = Publisher(
            self._line,
            stream=settings.stream.name,
            max_outstanding=outstanding,
            timeout_s=settings.timeout_s,
        )

    @property
    def most_bytes(self) -> int:
        """What a message may have, with its headers."""
        own = int(self._stream["config"].get("max_msg_size", -1))
        most: int = self._line.max_payload
        return min(most, own) if own > 0 else most

    def stored(self, pattern: str) -> set[str]:
        """The subjects that match and hold a message."""
        name = self._settings.stream.name
        found: set[str] = set()
        while True:
            body = {"subjects_filter": pattern, "offset": len(found)}
            answer = self._line.ask(f"$JS.API.STREAM.INFO.{name}", body)
            subjects = checked(answer, f"look at stream {name}")["state"].get("subjects") or {}
            found |= set(subjects)
            if not subjects or len(found) >= answer.get("total", 0):
                return found

    def ids(self, subject: str, *, after: int) -> Iterator[bytes]:
        """The ids of the messages of a subject behind a place in the stream."""
        return stored.ids(self._line, self._settings.stream.name, subject, (after + 1, self.last()))

    def last(self) -> int:
        """The place of the last message of the stream, whatever its subject."""
        name = self._settings.stream.name
        answer = checked(self._line.ask(f"$JS.API.STREAM.INFO.{name}"), f"look at stream {name}")
        return int(answer["state"]["last_seq"])

    def last_id(self, subject: str) -> str | None:
        """The id of a subject's last message; None when there is no message."""
        return stored.last_id(self._line, self._settings.stream.name, subject)

    def send(self, parcel: SnapshotMessage) -> None:
        """Publish. Returns before it is stored."""
        self.publish(parcel.batch)

    def publish(self, messages: pa.RecordBatch) -> None:
        """Publish `destination`, `id`, `payload` and perhaps `headers`, as they are sent.

        Returns before all is stored. Destinations have to be well formed.
        """
        size = frames.header_bytes(messages["id"]) + frames.lengths(messages["payload"])
        if "headers" in messages.schema.names:
            size += frames.lengths(messages["headers"])
        if size.max(initial=0) > self.most_bytes:
            row = messages.slice(int(size.argmax()), 1).to_pylist()[0]
            raise PoisonedError(
                f"message {row['id'].decode()} on {row['destination'].decode()} has {size.max()} "
                f"bytes, the server takes {self.most_bytes}",
                hint="Raise max_payload of the NATS server, or leave large columns out.",
            )
        broken = frames.broken_id(messages["id"])
        if broken is not None:
            raise PoisonedError(f"the id {messages['id'][broken].as_py()!r} holds a line break")
        self._publisher.publish(messages)

    def flush(self) -> None:
        """Wait until everything is stored."""
        self._publisher.settle()

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
