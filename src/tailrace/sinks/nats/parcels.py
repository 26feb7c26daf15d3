"""`Parcels`: few and large messages into a stream, known by their subjects.

The chunks of a snapshot carry no position to resume at. Each has a subject of its own, so what an
earlier attempt stored is found by asking for the subjects, and within the server's window for
repeated ids a second copy is refused by its id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tailrace.errors import PoisonedError
from tailrace.sinks.nats import frames
from tailrace.sinks.nats.line import Line
from tailrace.sinks.nats.publisher import Publisher
from tailrace.sinks.nats.stream import checked, ready

if TYPE_CHECKING:
    from tailrace.config import NatsSink

_MOST_OUTSTANDING = 16
_SCHEMA = pa.schema([(name, pa.binary()) for name in ("destination", "id", "headers", "payload")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A message. `headers` are lines as NATS has them."""

    destination: str
    id: str
    payload: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> bytes:
        """The headers as they are sent."""
        return "".join(f"\r\n{name}: {value}" for name, value in self.headers).encode()


class Parcels:
    """A connection to the stream of `settings`, which is made for `owner` when it is missing."""

    def __init__(self, settings: NatsSink, *, name: str, owner: str = "snapshots") -> None:
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
            max_outstanding=_MOST_OUTSTANDING,
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

    def send(self, parcel: Parcel) -> None:
        """Publish. Returns before it is stored."""
        row = {
            "destination": parcel.destination.encode(),
            "id": parcel.id.encode(),
            "headers": parcel.lines,
            "payload": parcel.payload,
        }
        batch = pa.RecordBatch.from_pylist([row], schema=_SCHEMA)
        size = int(frames.header_bytes(batch["id"])[0]) + len(parcel.lines) + len(parcel.payload)
        if size > self.most_bytes:
            raise PoisonedError(
                f"{parcel.destination} has {size} bytes, the server takes {self.most_bytes}",
                hint="Raise max_payload of the NATS server, or leave large columns out.",
            )
        if frames.broken_id(batch["id"]) is not None:
            raise PoisonedError(f"the id {parcel.id!r} holds a line break")
        self._publisher.publish(batch)

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
