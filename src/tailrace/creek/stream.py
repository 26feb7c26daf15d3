"""The stream of schemas: the last message on a table's subject is its newest schema.

The stream also has every version of the log, once. Messages do not expire. Another producer of the
same database may publish the same schema; that repeats a message and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from tailrace.creek.versions import document
from tailrace.encode.creek import schema as creek
from tailrace.errors import SinkError
from tailrace.jetstream import stream
from tailrace.jetstream.client import TIMEOUT_S, connected, messages
from tailrace.jetstream.settings import NatsStream
from tailrace.snapshot.service.streams import create_streams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nats.js import JetStreamContext

    from tailrace.config import Pipeline
    from tailrace.creek.sql import StoredSchema
    from tailrace.position import Lsn

Identity = tuple[str, str]
"""Fingerprint and text: schemas that differ in one of them are different schemas."""
Published = tuple[Identity, str | None]
"""A message of the stream: a schema, and its LSN."""


@dataclass(frozen=True, slots=True)
class SchemaItem:
    """A schema, and the commit from which it applies, if that is known.

    `joined`: the table joined the publication with that commit, which is announced by itself.
    """

    stored: StoredSchema
    lsn: Lsn | None = None
    joined: bool = False

    @property
    def identity(self) -> Identity:
        """What distinguishes the schema."""
        return self.stored.fingerprint, self.stored.schema


class SchemaStream:
    """The schemas of one pipeline's tables."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        self._name = name
        self._pipeline = pipeline
        self._layout, sink = pipeline.creek_layout, pipeline.jetstream
        self._stream = NatsStream(
            name=self._layout.stream("schema"),
            subjects=(self._layout.stream_subjects("schema"),),
            max_age_hours=0,
            replicas=sink.stream.replicas,
            duplicate_window_s=sink.stream.duplicate_window_s,
        )
        self._published: dict[str, list[Published]] = {}
        self._incarnation: object = None
        """When the stream was created, and its first sequence. A stream that was purged or created
        again needs every schema again."""

    def create_streams(self) -> None:
        """Create the streams that clients expect when they connect."""
        create_streams(self._name, self._pipeline)
        schemas = self._pipeline.jetstream.model_copy(
            update={
                "stream": self._stream,
                "subject": self._layout.template("schema"),
                "atomic": "none",
            }
        )
        stream.create(schemas, name=self._name, owner=self._name)

    async def publish(self, tables: Mapping[str, Sequence[SchemaItem]]) -> list[str]:
        """Publish the schemas that subjects lack, oldest first; the subjects published to.

        The last item of a subject is the newest, and becomes its last message.
        """
        try:
            async with connected(self._pipeline.jetstream) as client:
                jetstream = client.jetstream(timeout=TIMEOUT_S)
                info = await jetstream.stream_info(self._stream.name)
                incarnation = info.created, info.state.first_seq or 1
                if incarnation != self._incarnation:
                    self._published.clear()
                    self._incarnation = incarnation
                return [
                    subject
                    for subject, items in tables.items()
                    if await self._publish_missing(jetstream, subject, items)
                ]
        except SinkError:
            # A message whose acknowledgement was lost may be there: the next call reads back.
            self._published.clear()
            raise

    async def _publish_missing(
        self, jetstream: JetStreamContext, subject: str, items: Sequence[SchemaItem]
    ) -> bool:
        published = self._published.get(subject)
        if published is None:
            published = self._published[subject] = [
                _parse(message.data or b"")
                async for message in messages(jetstream, self._stream.name, subject)
            ]
        before = len(published)
        for item in items[:-1]:
            if item.identity not in [identity for identity, _ in published]:
                await self._publish(jetstream, subject, item, published)
        if not published or _differs(items[-1], *published[-1]):
            await self._publish(jetstream, subject, items[-1], published)
        return len(published) > before

    async def _publish(
        self,
        jetstream: JetStreamContext,
        subject: str,
        item: SchemaItem,
        published: list[Published],
    ) -> None:
        content = creek.packet(document(item.stored, item.lsn))
        await jetstream.publish(subject, content, stream=self._stream.name)
        published.append((item.identity, None if item.lsn is None else str(item.lsn)))


def _differs(item: SchemaItem, identity: Identity, lsn: str | None) -> bool:
    """Whether an item must be published after a last message with this schema and LSN."""
    return item.identity != identity or (item.joined and str(item.lsn) != lsn)


def _parse(payload: bytes) -> Published:
    """The schema of a stored message; one that equals no schema for any other message."""
    try:
        content = orjson.loads(creek.unpacked(payload) or b"")
        return (str(content["fingerprint"]), str(content["schema"])), content.get("lsn")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ("", ""), None
