"""The schema documents of a bridge in JetStream: the bucket `schemas`, and a message per document.

One key per table; the history of the key is the history of the table. The message on
`schema.<key>` is published before the bucket is written: a crash between the two repeats the
message and loses nothing. The message needs no stream; clients that missed it read the bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import orjson
import ormsgpack

from tailrace.jetstream.bucket import MAX_HISTORY, Bucket, BucketSettings, WriteConflictError
from tailrace.jetstream.client import connected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nats.aio.client import Client

    from tailrace.jetstream.settings import JetStreamSettings

    Documents = list[dict[str, Any]]
    Encoding = Literal["msgpack", "json"]

BUCKET = "schemas"
_SUBJECT = "schema.{key}"


class DocumentStore:
    """The bucket, with the documents that were read or written last."""

    def __init__(self, sink: JetStreamSettings, encoding: Encoding) -> None:
        self._sink = sink
        self._encoding = encoding
        self._settings = BucketSettings(
            name=BUCKET,
            description="What tables look like: one document per version.",
            history=MAX_HISTORY,
            replicas=sink.stream.replicas,
        )
        self._cache: dict[str, tuple[int, Documents]] = {}
        """By key: the last revision, and the documents up to it."""

    async def write(
        self, keys: Iterable[str], additions: Callable[[str, Documents], Documents]
    ) -> list[str]:
        """Write what `additions` returns for each key and its documents; the keys written to."""
        written = []
        async with connected(self._sink) as client:
            bucket = await Bucket.open(client, self._settings)
            try:
                for key in keys:
                    documents = additions(key, await self._documents(bucket, key))
                    for document in documents:
                        await self._publish(client, bucket, key, document)
                    if documents:
                        written.append(key)
            except WriteConflictError:
                # Another pipeline publishes the same table. Read everything again.
                self._cache.clear()
                raise
        return written

    async def _documents(self, bucket: Bucket, key: str) -> Documents:
        """The documents of a key, oldest first. Read again if another client has written."""
        entry = await bucket.get(key)
        if entry is None:
            self._cache.pop(key, None)
            return []
        cached = self._cache.get(key)
        if cached is None or cached[0] != entry.revision:
            decoded = [self._decode(value) for value in await bucket.history(key)]
            documents = [document for document in decoded if isinstance(document, dict)]
            cached = self._cache[key] = entry.revision, documents
        return cached[1]

    async def _publish(
        self, client: Client, bucket: Bucket, key: str, document: dict[str, Any]
    ) -> None:
        value = self._encode(document)
        await client.publish(_SUBJECT.format(key=key), value)
        await client.flush()
        revision, documents = self._cache.get(key, (0, []))
        if revision:
            revision = await bucket.update(key, value, revision)
        else:
            revision = await bucket.create(key, value)
        self._cache[key] = revision, [*documents, self._decode(value)]

    def _decode(self, value: bytes) -> Any:
        """The document; None for a value that another program wrote."""
        try:
            return ormsgpack.unpackb(value) if self._encoding == "msgpack" else orjson.loads(value)
        except ValueError:
            return None

    def _encode(self, document: dict[str, Any]) -> bytes:
        return ormsgpack.packb(document) if self._encoding == "msgpack" else orjson.dumps(document)
