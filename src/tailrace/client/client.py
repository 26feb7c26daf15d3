"""`connect` and `Client`: the calls of the library."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.client.access import Access
from tailrace.client.connection import open_connection
from tailrace.client.follow import Follow
from tailrace.client.names import Table
from tailrace.client.replica import Replica
from tailrace.client.snapshots.chunks import Chunks
from tailrace.client.snapshots.snapshot import Snapshot
from tailrace.client.transactions import Transactions

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace.client.follow import StartPoint
    from tailrace.client.identity import StreamIdentity
    from tailrace.client.payload import Encoding
    from tailrace.client.replica import State
    from tailrace.client.schemas import Schema
    from tailrace.snapshot.job import Form


class Client:
    """Calls over one connection. Any number of them may run at the same time."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def schemas(self) -> dict[str, Schema]:
        """The schemas of all tables, by table name."""
        return await self._access.schemas()

    async def schema(self, table: str) -> Schema | None:
        """The current schema of a table; None if it has no schema document."""
        return await self._access.schema(Table.parse(table))

    async def stream_identity(self) -> StreamIdentity | None:
        """What identifies the stream of changes; None if the stream is missing."""
        return await self._access.stream_identity()

    def snapshot(self, table: str) -> Snapshot:
        """The rows of a table at one point in time, as dicts. `.meta` describes that point."""
        return Snapshot(self._access, Table.parse(table))

    def chunks(self, table: str, *, form: Form = "rows") -> Chunks:
        """The rows of a snapshot in chunks, while it is still being written; see `Chunks`.

        With the form `copy`, chunks hold the text that PostgreSQL's COPY reads, if the service
        supports it. Older services answer with `rows`.
        """
        return Chunks(self._access, Table.parse(table), form=form)

    def transactions(self, table: str, state: State) -> Transactions:
        """The changes after a state, in batches of whole transactions."""
        return Transactions(self._access, Table.parse(table), state)

    def follow(
        self, table: str, *, start: StartPoint = "new", durable: str | None = None
    ) -> Follow:
        """Changes of a table from `start` on, the first one included.

        With a durable name, JetStream remembers which changes were acknowledged, and `start`
        applies only when the name is new.
        """
        return Follow(self._access, Table.parse(table), start=start, durable=durable)

    def replica(
        self, table: str, *, durable: str | None = None, state: State | None = None
    ) -> Replica:
        """The rows of a table, then the changes that are not in them.

        Without a state it starts with a new snapshot and resets the durable name. With a state it
        resumes: with the unacknowledged changes of the durable name, or after the last event of the
        state.
        """
        return Replica(self._access, Table.parse(table), durable=durable, state=state)


@contextlib.asynccontextmanager
async def connect(
    url: str = "nats://127.0.0.1:4222",
    *,
    encoding: Encoding | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
    stream: str = "CDC",
    snapshots: str = "INIT",
    subjects: str = "cdc.{table}.*",
    ack_wait_s: float = 30.0,
) -> AsyncIterator[Client]:
    """A client, connected until the block ends.

    `url` may list several servers, separated by commas. Without an `encoding` the client detects
    the encoding of each message. `subjects` is the subject filter of a table's changes. JetStream
    redelivers a change that is not acknowledged within `ack_wait_s`.
    """
    async with open_connection(
        url, user=user, password=password, token=token, credentials=credentials, tls=tls
    ) as connection:
        access = Access(
            connection=connection,
            encoding=encoding,
            stream=stream,
            snapshots=snapshots,
            subjects=subjects,
            ack_wait_s=ack_wait_s,
        )
        try:
            yield Client(access)
        finally:
            await access.close()
