"""The state that all calls of one client share: connection, stream names, schema documents.

It also reads the two key-value buckets of a pipeline: schema documents and zstd dictionaries.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import nats.js.errors
import zstandard

from tailrace.client.connection import MissingStreamError, translate_errors
from tailrace.client.identity import StreamIdentity
from tailrace.client.payload import decode
from tailrace.client.schemas import RowTyper, Schema
from tailrace.errors import PositionLostError, SinkError, SinkRefusedError

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from tailrace.client.connection import Connection
    from tailrace.client.iteration import Iteration
    from tailrace.client.names import Table
    from tailrace.client.payload import Encoding

_SCHEMAS = "schemas"
_DICTIONARIES = "dictionaries"
_READ_SCHEMAS = f"read the bucket {_SCHEMAS!r}"


@dataclass(slots=True, kw_only=True)
class Access:
    """Settings of a client, its open iterations and its caches."""

    connection: Connection
    encoding: Encoding | None
    stream: str
    snapshots: str
    subjects: str
    ack_wait_s: float
    iterations: set[Iteration[Any, Any]] = field(default_factory=set)
    _row_typers: dict[Table, RowTyper] = field(default_factory=dict)
    _dictionaries: dict[str, zstandard.ZstdCompressionDict] = field(default_factory=dict)

    def subject(self, table: Table) -> str:
        """The subject filter of a table's changes."""
        return self.subjects.replace("{table}", table.path)

    async def stream_identity(self) -> StreamIdentity | None:
        """What identifies the stream of changes; None if the stream is missing."""
        with contextlib.suppress(MissingStreamError):
            return StreamIdentity(await self.connection.stream_info(self.stream))
        return None

    async def close(self) -> None:
        """Close all open iterations."""
        for iteration in [*self.iterations]:
            await iteration.aclose()

    async def schemas(self) -> dict[str, Schema]:
        """All schema documents, by table name."""
        with translate_errors(_READ_SCHEMAS):
            bucket = await self._bucket()
            # Not `bucket.keys()`: it may take a slow first key for the end, and return none.
            prefix = f"$KV.{_SCHEMAS}."
            info = await self.connection.jetstream.stream_info(f"KV_{_SCHEMAS}", f"{prefix}>")
            keys = sorted(subject.removeprefix(prefix) for subject in info.state.subjects or {})
            schemas = [await self._schema(bucket, key) for key in keys]
        return {str(schema.table): schema for schema in schemas if schema is not None}

    async def schema(self, table: Table) -> Schema | None:
        """The newest schema document of a table; None if it has none."""
        with translate_errors(_READ_SCHEMAS):
            return await self._schema(await self._bucket(), table.key)

    async def row_typer(self, table: Table) -> RowTyper:
        """The typer of a table's rows. Without a schema document it leaves values as they are."""
        typer = self._row_typers.get(table)
        if typer is None:
            schema = None
            # A pipeline without documents is readable: its values keep the types of messages.
            with contextlib.suppress(SinkRefusedError):
                schema = await self.schema(table)
            typer = self._row_typers[table] = RowTyper(schema)
        return typer

    async def refresh_row_typer(self, table: Table) -> RowTyper:
        """The typer by the newest schema document; the cached one if the bucket cannot be read."""
        cached = self._row_typers.pop(table, None)
        try:
            return await self.row_typer(table)
        except SinkError:
            if cached is None:
                raise
            self._row_typers[table] = cached
            return cached

    async def dictionary(self, key: str) -> zstandard.ZstdCompressionDict:
        """The zstd dictionary that a chunk names in its headers."""
        if key not in self._dictionaries:
            with translate_errors(f"read the bucket {_DICTIONARIES!r}"):
                try:
                    bucket = await self.connection.jetstream.key_value(_DICTIONARIES)
                    entry = await bucket.get(key)
                except nats.js.errors.NotFoundError as error:
                    raise PositionLostError(
                        f"the dictionary {key} of a snapshot has expired",
                        hint="Request the snapshot again.",
                    ) from error
            self._dictionaries[key] = zstandard.ZstdCompressionDict(entry.value or b"")
        return self._dictionaries[key]

    async def _bucket(self) -> KeyValue:
        try:
            return await self.connection.jetstream.key_value(_SCHEMAS)
        except nats.js.errors.NotFoundError as error:
            raise SinkRefusedError(
                f"there is no bucket {_SCHEMAS!r}",
                hint="A pipeline of shape `bridge` creates it when it starts: tailrace run",
            ) from error

    async def _schema(self, bucket: KeyValue, key: str) -> Schema | None:
        try:
            entry = await bucket.get(key)
        except nats.js.errors.NotFoundError:
            return None
        return Schema.of(key, decode(entry.value or b"", self.encoding))
