"""`connect` and `Creek`: the calls of the Creek client."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.client.access import Access
from tailrace.client.connection import MissingStreamError, open_connection
from tailrace.client.creek.avro import load_fastavro
from tailrace.client.creek.feed import Feed
from tailrace.client.creek.session import Session
from tailrace.client.creek.snapshot import Snapshot, list_snapshots
from tailrace.client.creek.wal import StreamWal
from tailrace.client.names import Table
from tailrace.encode.creek.names import KINDS
from tailrace.encode.creek.schema import NAMESPACE
from tailrace.errors import ConfigError, SinkError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace.client.creek.schemas import SchemaMessage
    from tailrace.client.creek.snapshot import SnapshotTopic
    from tailrace.client.creek.wal import WalStart
    from tailrace.encode.creek.names import LayoutName


class Creek:
    """Calls over one connection. Any number of them may run at the same time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stream_wal(self, database: str, table: str, *, start: WalStart = None) -> StreamWal:
        """Changes of a table: all in the stream, or from `start` on. It does not end.

        A time and an LSN: the changes that the stream stored since that time, without the leading
        ones up to that LSN. A number: the changes after the one with this `place`.
        """
        return StreamWal(self._session, database, Table.parse(table), start)

    def snapshot(self, database: str, table: str) -> Snapshot:
        """Request the rows of a table at one point in time. `.header` describes that point."""
        return Snapshot(self._session, table=(database, Table.parse(table)))

    def get_snapshot(self, topic: str) -> Snapshot:
        """The rows of an earlier snapshot."""
        return Snapshot(self._session, topic=topic)

    async def list_snapshots(self, database: str, table: str) -> list[SnapshotTopic]:
        """The snapshots of a table in the stream, oldest first."""
        return await list_snapshots(self._session, database, Table.parse(table))

    async def get_schema(self, fingerprint: str, *, database: str = "") -> SchemaMessage:
        """The schema with this fingerprint, from any producer.

        With layout database each database has a producer: name it, unless there is only one.
        """
        if self._session.layout == "database" and not database:
            databases = await self._session.databases()
            if len(databases) != 1:
                raise ConfigError(
                    "get_schema must name a database, because the namespace does not have exactly "
                    "one",
                    hint=f"Databases: {', '.join(databases) or 'none'}.",
                )
            database = databases[0]
        return await self._session.schema(fingerprint, database)

    async def last_schema(self, database: str, table: str) -> SchemaMessage | None:
        """The newest published schema of a table; None if there is none."""
        return await self._session.last_schema(database, Table.parse(table))

    def feed(self, database: str) -> Feed:
        """The tables of a database, in the form that `tailrace.mirror.Mirror` reads."""
        return Feed(self._session, database)

    async def databases(self) -> list[str]:
        """The databases with published schemas."""
        return await self._session.databases()


@contextlib.asynccontextmanager
async def connect(
    url: str = "nats://127.0.0.1:4222",
    *,
    namespace: str = NAMESPACE,
    layout: LayoutName | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    patience_s: float = 120.0,
) -> AsyncIterator[Creek]:
    """A client of Creek's producers, connected until the block ends.

    `url` may list several servers, separated by commas. `layout` is that of the producer: None uses
    `namespace` if there is a stream NS_wal, else `database` if there are streams NS_wal_DATABASE.
    `patience_s` is how long the client waits
    for the schema of a message, and for the next rows of a snapshot.
    """
    load_fastavro()
    async with open_connection(
        url, user=user, password=password, token=token, credentials=credentials, tls=tls
    ) as connection:
        shared = Access(
            connection=connection,
            encoding="json",
            # The session knows the stream of each database.
            stream="",
            snapshots="",
            subjects="",
            ack_wait_s=30.0,
        )
        session = Session(shared=shared, namespace=namespace, patience_s=patience_s)
        session.layout = layout or await _detect_layout(session)
        if session.layout == "namespace":
            await _check_streams(session)
        try:
            yield Creek(session)
        finally:
            await shared.close()


async def _detect_layout(session: Session) -> LayoutName:
    """The layout whose streams exist; `namespace` if none do."""
    shared = session.names("").stream("wal")
    with contextlib.suppress(MissingStreamError):
        await session.connection.stream_info(shared)
        return "namespace"
    with contextlib.suppress(SinkError):
        # A client may lack the permission to list streams.
        if any(name.startswith(f"{shared}_") for name in await session.streams()):
            return "database"
    return "namespace"


async def _check_streams(session: Session) -> None:
    for stream in map(session.names("").stream, KINDS):
        try:
            await session.connection.stream_info(stream)
        except MissingStreamError as error:
            raise MissingStreamError(
                f"there is no stream {stream!r}",
                hint="A producer creates it when it starts: tailrace creek. If the producer uses "
                "another namespace, name it with connect(namespace=...).",
            ) from error
