"""What all calls of a client share: the connection, names, and schema documents once read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import nats.js.errors
import zstandard

from tailrace.client.connection import MissingStreamError, failures
from tailrace.client.payload import decoded
from tailrace.client.schemas import Schema, Typing
from tailrace.errors import PositionLostError, SinkError, SinkRefusedError

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from tailrace.client.connection import Connection
    from tailrace.client.iteration import Iteration
    from tailrace.client.names import Table
    from tailrace.client.payload import Encoding

_BUCKET = "schemas"
_DICTIONARIES = "dictionaries"


@dataclass(slots=True, kw_only=True)
class Access:
    """Settings, and what is known so far."""

    connection: Connection
    encoding: Encoding | None
    stream: str
    snapshots: str
    subjects: str
    ack_wait_s: float
    iterations: set[Iteration[Any, Any]] = field(default_factory=set)
    _typings: dict[Table, Typing] = field(default_factory=dict)
    _dictionaries: dict[str, zstandard.ZstdCompressionDict] = field(default_factory=dict)

    def subject(self, table: Table) -> str:
        """The subjects of a table's changes."""
        return self.subjects.replace("{table}", table.path)

    async def stream_created(self) -> str | None:
        """When the stream of changes was created; None if there is none yet."""
        with contextlib.suppress(MissingStreamError):
            return str((await self.connection.stream_info(self.stream))["created"])
        return None

    async def close(self) -> None:
        """End what is still under way."""
        for iteration in [*self.iterations]:
            await iteration.aclose()

    async def schemas(self) -> dict[str, Schema]:
        """All documents, by the table's name."""
        with failures("read the bucket of schemas"):
            bucket = await self._bucket()
            try:
                keys = await bucket.keys()
            except nats.js.errors.NoKeysError:
                keys = []
            found = [await self._schema(bucket, key) for key in sorted(keys)]
        return {str(schema.table): schema for schema in found if schema is not None}

    async def typing(self, table: Table) -> Typing:
        """How a table's rows are typed; without a document, they are not."""
        known = self._typings.get(table)
        if known is None:
            schema = None
            with contextlib.suppress(SinkRefusedError), failures("read the bucket of schemas"):
                schema = await self._schema(await self._bucket(), table.key)
            known = self._typings[table] = Typing(schema)
        return known

    async def schema(self, table: Table) -> Schema | None:
        """A table's newest document, if there is one."""
        with failures("read the bucket of schemas"):
            return await self._schema(await self._bucket(), table.key)

    async def retyped(self, table: Table) -> Typing:
        """The same from the newest document, if it can be had."""
        known = self._typings.pop(table, None)
        try:
            return await self.typing(table)
        except SinkError:
            if known is None:
                raise
            self._typings[table] = known
            return known

    async def dictionary(self, key: str) -> zstandard.ZstdCompressionDict:
        """What the chunks that name it are compressed with."""
        if key not in self._dictionaries:
            with failures("read the bucket of dictionaries"):
                try:
                    bucket = await self.connection.jetstream.key_value(_DICTIONARIES)
                    entry = await bucket.get(key)
                except nats.js.errors.NotFoundError as error:
                    raise PositionLostError(
                        f"the dictionary {key} of a snapshot is gone",
                        hint="Ask for the snapshot again.",
                    ) from error
            self._dictionaries[key] = zstandard.ZstdCompressionDict(entry.value or b"")
        return self._dictionaries[key]

    async def _bucket(self) -> KeyValue:
        try:
            return await self.connection.jetstream.key_value(_BUCKET)
        except nats.js.errors.NotFoundError as error:
            raise SinkRefusedError(
                f"there is no bucket {_BUCKET!r}",
                hint="A pipeline of shape `bridge` makes it when it starts: tailrace run",
            ) from error

    async def _schema(self, bucket: KeyValue, key: str) -> Schema | None:
        try:
            entry = await bucket.get(key)
        except nats.js.errors.NotFoundError:
            return None
        return Schema.of(key, decoded(entry.value or b"", self.encoding))
