"""What there is to call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.client.access import Access
from tailrace.client.chunks import Chunks
from tailrace.client.connection import opened
from tailrace.client.follow import Follow
from tailrace.client.names import Table
from tailrace.client.replica import Replica
from tailrace.client.snapshot import Snapshot
from tailrace.client.transactions import Transactions

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace.client.follow import Beginning
    from tailrace.client.payload import Encoding
    from tailrace.client.replica import State
    from tailrace.client.schemas import Schema
    from tailrace.snapshot.job import Form


class Client:
    """Calls over one connection; any number of them at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def schemas(self) -> dict[str, Schema]:
        """What tables look like, by their names."""
        return await self._access.schemas()

    async def schema(self, table: str) -> Schema | None:
        """What a table looks like now; None if there is no document of it."""
        return await self._access.schema(Table.parse(table))

    async def stream_created(self) -> str | None:
        """When the stream of changes was created; None if there is none."""
        return await self._access.stream_created()

    def snapshot(self, table: str) -> Snapshot:
        """The rows of a table at one moment, as dicts; `.meta` says which moment."""
        return Snapshot(self._access, Table.parse(table))

    def chunks(self, table: str, *, form: Form = "rows") -> Chunks:
        """The rows of a snapshot in chunks, while it is still being made; see `Chunks`.

        With the form `copy` they have the text that PostgreSQL's COPY reads, if the service knows
        how to make it.
        """
        return Chunks(self._access, Table.parse(table), form=form)

    def transactions(self, table: str, state: State) -> Transactions:
        """The changes behind a state, in batches of whole transactions."""
        return Transactions(self._access, Table.parse(table), state)

    def follow(self, table: str, *, start: Beginning = "new", durable: str | None = None) -> Follow:
        """Changes of a table from `start` on, the first one included.

        With a durable name every change has to be acknowledged; the name remembers it, and `start`
        counts when the name is new.
        """
        return Follow(self._access, Table.parse(table), start=start, durable=durable)

    def replica(
        self, table: str, *, durable: str | None = None, state: State | None = None
    ) -> Replica:
        """The rows of a table, then the changes that are not in them.

        Without a state it begins with a new snapshot, and anew under a durable name. With one it
        goes on: with what is not acknowledged under the durable name, or else behind the state's
        last event.
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

    `url` may name several servers with commas between. Without an `encoding` each message tells its
    own. `subjects` is where a table's changes are. A change that is not acknowledged within
    `ack_wait_s` is sent again, to the next process if there is one.
    """
    async with opened(
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
