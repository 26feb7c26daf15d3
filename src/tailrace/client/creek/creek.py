"""What there is to call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tailrace.client.access import Access
from tailrace.client.connection import MissingStreamError, opened
from tailrace.client.creek.avro import library
from tailrace.client.creek.feed import Feed
from tailrace.client.creek.session import Session
from tailrace.client.creek.snapshot import Snapshot, listed
from tailrace.client.creek.wal import StreamWal
from tailrace.client.names import Table
from tailrace.encode.creek.schema import NAMESPACE

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace.client.creek.schemas import SchemaMessage
    from tailrace.client.creek.snapshot import SnapshotTopic
    from tailrace.client.creek.wal import Beginning


class Creek:
    """Calls over one connection; any number of them at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stream_wal(self, database: str, table: str, *, start: Beginning = None) -> StreamWal:
        """Changes of a table, for good; all that the stream has, or from `start` on.

        A time and an LSN: the changes that reached the stream since then, without the first ones
        up to that LSN. A number: those behind the change with this `place`.
        """
        return StreamWal(self._session, database, Table.parse(table), start)

    def snapshot(self, database: str, table: str) -> Snapshot:
        """Ask for the rows of a table at one moment; `.header` says which moment."""
        return Snapshot(self._session, table=(database, Table.parse(table)))

    def get_snapshot(self, topic: str) -> Snapshot:
        """The rows of a snapshot that was taken before."""
        return Snapshot(self._session, topic=topic)

    async def list_snapshots(self, database: str, table: str) -> list[SnapshotTopic]:
        """The snapshots of a table that the stream holds, the oldest first."""
        return await listed(self._session, database, Table.parse(table))

    async def get_schema(self, fingerprint: str) -> SchemaMessage:
        """The schema with this fingerprint, from any producer that has it."""
        return await self._session.schema(fingerprint)

    async def last_schema(self, database: str, table: str) -> SchemaMessage | None:
        """The schema of a table that was published last; None if there is none."""
        return await self._session.last_schema(database, Table.parse(table))

    def feed(self, database: str) -> Feed:
        """The tables of a database as `tailrace.mirror.Mirror` takes them."""
        return Feed(self._session, database)

    async def databases(self) -> list[str]:
        """The databases that producers have published schemas of."""
        found = await self._session.subjects("schema", f"{self._session.namespace}.*.schema.>")
        return sorted({unquote(subject.split(".")[1]) for subject in found})


@contextlib.asynccontextmanager
async def connect(
    url: str = "nats://127.0.0.1:4222",
    *,
    namespace: str = NAMESPACE,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    patience_s: float = 120.0,
) -> AsyncIterator[Creek]:
    """A client of Creek's producers, connected until the block ends.

    `url` may name several servers with commas between. `patience_s` is how long a producer is
    waited for that does not know a message's schema, or does not go on with a snapshot.
    """
    library()
    async with opened(
        url, user=user, password=password, token=token, credentials=credentials, tls=tls
    ) as connection:
        shared = Access(
            connection=connection,
            encoding="json",
            stream=f"{namespace}_wal",
            snapshots=f"{namespace}_snap",
            subjects="",
            ack_wait_s=30.0,
        )
        session = Session(shared=shared, namespace=namespace, patience_s=patience_s)
        await _check(session)
        try:
            yield Creek(session)
        finally:
            await shared.close()


async def _check(session: Session) -> None:
    for kind in ("wal", "snap", "schema"):
        try:
            await session.connection.stream_info(session.stream(kind))
        except MissingStreamError as error:
            raise MissingStreamError(
                f"there is no stream {session.stream(kind)!r}",
                hint="A producer makes it when it starts: tailrace creek. If it uses another "
                "namespace: connect(namespace=...).",
            ) from error
