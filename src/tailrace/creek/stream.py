"""The stream of schemas: on a table's subject, the last message is its newest schema.

Every version that the log has stated is there as well, once. Messages are kept for ever. Another
producer of the same database may write the same; that repeats a message and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.js.errors
import orjson

from tailrace.config import NatsStream
from tailrace.creek.versions import document
from tailrace.encode.creek import schema as creek
from tailrace.errors import SinkRefusedError
from tailrace.jetstream.bulk.snapshot_messages import SnapshotPublisher
from tailrace.jetstream.client import connected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nats.js import JetStreamContext

    from tailrace.config import NatsSink, Pipeline
    from tailrace.creek.sql import StoredSchema
    from tailrace.position import Lsn

Mark = tuple[str, str]
"""What makes a schema another: its fingerprint and its text."""
Told = tuple[Mark, str | None]
"""A message: a schema, and its LSN."""


@dataclass(frozen=True, slots=True)
class Item:
    """A schema, and from which commit on it holds, where that is known.

    `joined`: the table came to the publication with that commit, which is news by itself.
    """

    stored: StoredSchema
    lsn: Lsn | None = None
    joined: bool = False

    @property
    def mark(self) -> Mark:
        """What it is told by."""
        return self.stored.fingerprint, self.stored.schema


class SchemaStream:
    """The schemas of one pipeline's tables."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        self._name = name
        self._pipeline = pipeline
        namespace, sink = pipeline.namespace, pipeline.nats
        self._stream = NatsStream(
            name=creek.stream(namespace, "schema"),
            subjects=(f"{namespace}.*.schema.>",),
            max_age_hours=0,
            replicas=sink.stream.replicas,
            duplicate_window_s=sink.stream.duplicate_window_s,
        )
        self._told: dict[str, list[Told]] = {}
        self._edition: object = None
        """Which stream it is, and from where on: what was purged or made again is told again."""

    def open(self) -> None:
        """See that all streams are there that clients look for when they connect."""
        namespace, sink = self._pipeline.namespace, self._pipeline.nats
        SnapshotPublisher(sink, name=self._name, owner=self._name).close()
        subject = f"{namespace}.{{database}}.schema.{{schema}}.{{table}}"
        SnapshotPublisher(
            self._of(sink, self._stream, subject), name=self._name, owner=self._name
        ).close()
        if self._pipeline.snapshots is not None:
            subject = f"{namespace}.{{database}}.snap.{{schema}}.{{table}}.x"
            stream = self._pipeline.snapshots.stream
            SnapshotPublisher(self._of(sink, stream, subject), name=self._name).close()

    @staticmethod
    def _of(sink: NatsSink, stream: NatsStream, subject: str) -> NatsSink:
        return sink.model_copy(update={"stream": stream, "subject": subject, "atomic": "none"})

    async def put(self, tables: Mapping[str, Sequence[Item]]) -> list[str]:
        """Publish what subjects lack of these, oldest first; the subjects that lacked any.

        The last of a subject's items is the newest, and will be its last message.
        """
        changed = []
        async with connected(self._pipeline.nats) as client:
            try:
                info = await client.jetstream().stream_info(self._stream.name)
                edition = info.created, info.state.first_seq or 1
                if edition != self._edition:
                    self._told.clear()
                    self._edition = edition
                for subject, items in tables.items():
                    if await self._put(client.jetstream(), subject, items):
                        changed.append(subject)
            except nats.js.errors.ServiceUnavailableError:
                raise
            except nats.js.errors.APIError as error:
                self._told.clear()
                raise SinkRefusedError(f"JetStream says: {error.description}") from error
        return changed

    async def _put(self, jetstream: JetStreamContext, subject: str, items: Sequence[Item]) -> bool:
        told = self._told.get(subject)
        if told is None:
            told = self._told[subject] = await self._history(jetstream, subject)
        before = len(told)
        for item in items[:-1]:
            if item.mark not in [mark for mark, _ in told]:
                await self._publish(jetstream, subject, item, told)
        if not told or _news(items[-1], *told[-1]):
            await self._publish(jetstream, subject, items[-1], told)
        return len(told) > before

    async def _publish(
        self, jetstream: JetStreamContext, subject: str, item: Item, told: list[Told]
    ) -> None:
        content = creek.packet(document(item.stored, item.lsn))
        await jetstream.publish(subject, content, stream=self._stream.name)
        told.append((item.mark, None if item.lsn is None else str(item.lsn)))

    async def _history(self, jetstream: JetStreamContext, subject: str) -> list[Told]:
        """The schemas that a subject has, oldest first."""
        found: list[Told] = []
        sequence = 1
        while True:
            try:
                message = await jetstream.get_msg(
                    self._stream.name, seq=sequence, subject=subject, next=True
                )
            except nats.js.errors.NotFoundError:
                return found
            sequence = (message.seq or 0) + 1
            found.append(_told(message.data or b""))


def _news(item: Item, mark: Mark, lsn: str | None) -> bool:
    """Whether a subject whose last message is this one lacks an item."""
    return item.mark != mark or (item.joined and str(item.lsn) != lsn)


def _told(payload: bytes) -> Told:
    """What a stored message holds; nothing that anybody has for what is none of ours."""
    try:
        content = orjson.loads(creek.unpacked(payload) or b"")
        return (str(content["fingerprint"]), str(content["schema"])), content.get("lsn")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ("", ""), None
