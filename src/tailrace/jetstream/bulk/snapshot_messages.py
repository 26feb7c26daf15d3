"""The messages of snapshots, which have no position to resume at.

What an earlier attempt has stored is read from the stream: the subjects, where each message has its
own, or the ids of a subject after a sequence. Within its duplicate window the server also refuses a
second copy by its id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tailrace.errors import PoisonedError
from tailrace.jetstream.bulk import frames, read_back
from tailrace.jetstream.bulk.publisher import Publisher
from tailrace.jetstream.connection import NatsConnection
from tailrace.jetstream.stream import checked, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.jetstream.settings import JetStreamSettings

OWNER = "snapshots"
"""The owner of a stream of snapshots, in the stream's metadata."""
_OUTSTANDING = 16
_SCHEMA = pa.schema([(name, pa.binary()) for name in ("destination", "id", "lines", "payload")])


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMessage:
    """A message of a snapshot."""

    destination: str
    id: str
    payload: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> bytes:
        """The header lines, each after its line break."""
        return "".join(f"\r\n{name}: {value}" for name, value in self.headers).encode()

    @property
    def batch(self) -> pa.RecordBatch:
        """The message as one row."""
        row = {
            "destination": self.destination.encode(),
            "id": self.id.encode(),
            "lines": self.lines,
            "payload": self.payload,
        }
        return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


class SnapshotPublisher:
    """A connection to the stream of `settings`, which is created for `owner` if it is missing.

    `outstanding` bounds the messages without an acknowledgement; large messages need a low bound.
    """

    def __init__(
        self,
        settings: JetStreamSettings,
        *,
        name: str,
        owner: str = OWNER,
        outstanding: int = _OUTSTANDING,
    ) -> None:
        self._settings = settings
        self._connection = NatsConnection.connect(settings, name=name)
        try:
            self._stream = ready(self._connection, settings, pipeline=owner)
        except BaseException:
            self._connection.close()
            raise
        self._publisher = Publisher(
            self._connection,
            stream=settings.stream.name,
            max_outstanding=outstanding,
            timeout_s=settings.timeout_s,
        )

    @property
    def max_bytes(self) -> int:
        """Max bytes of a message, headers included."""
        stream_limit = int(self._stream["config"].get("max_msg_size", -1))
        server_limit = self._connection.max_payload
        return min(server_limit, stream_limit) if stream_limit > 0 else server_limit

    def stored(self, pattern: str) -> set[str]:
        """The subjects that match the pattern and hold a message."""
        name = self._settings.stream.name
        stored: set[str] = set()
        while True:
            body = {"subjects_filter": pattern, "offset": len(stored)}
            answer = self._connection.request(f"$JS.API.STREAM.INFO.{name}", body)
            subjects = checked(answer, f"read stream {name}")["state"].get("subjects") or {}
            stored |= set(subjects)
            if not subjects or len(stored) >= answer.get("total", 0):
                return stored

    def ids(self, subject: str, *, after: int) -> Iterator[bytes]:
        """The ids of the messages of a subject after a sequence."""
        bounds = (after + 1, self.last())
        return read_back.ids(self._connection, self._settings.stream.name, subject, bounds)

    def last(self) -> int:
        """The sequence of the last message of the stream, on any subject."""
        name = self._settings.stream.name
        answer = checked(
            self._connection.request(f"$JS.API.STREAM.INFO.{name}"), f"read stream {name}"
        )
        return int(answer["state"]["last_seq"])

    def last_id(self, subject: str) -> str | None:
        """The id of a subject's last message; None if it has no message."""
        return read_back.last_id(self._connection, self._settings.stream.name, subject)

    def send(self, message: SnapshotMessage) -> None:
        """Publish a message. Returns before it is stored."""
        self.publish(message.batch)

    def publish(self, messages: pa.RecordBatch) -> None:
        """Publish rows of `destination`, `id`, `payload` and, optionally, `lines`.

        Returns before all are stored. The caller has validated the destinations.
        """
        size = frames.header_bytes(messages) + frames.lengths(messages["payload"])
        if size.max(initial=0) > self.max_bytes:
            row = messages.slice(int(size.argmax()), 1).to_pylist()[0]
            raise PoisonedError(
                f"message {row['id'].decode()} on {row['destination'].decode()} has {size.max()} "
                f"bytes, the limit is {self.max_bytes}",
                hint="Raise max_payload of the NATS server, or exclude large columns.",
            )
        if broken := frames.broken_ids(messages["id"]):
            name = messages["id"][broken[0]].as_py()
            raise PoisonedError(f"the id {name!r} contains a line break")
        self._publisher.publish(messages)

    def flush(self) -> None:
        """Wait until every message is stored."""
        self._publisher.flush()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
