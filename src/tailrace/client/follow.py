"""Changes of a table from a start position."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from tailrace.client.change import Change
from tailrace.client.iteration import PlainIteration
from tailrace.client.payload import decode
from tailrace.client.readers.durable import DurableReader
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.errors import ConfigError
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers.reader import Reader, StreamMessage

StartPoint = Literal["new", "earliest"] | Position | datetime


class Follow(PlainIteration[Change]):
    """The changes of one table, in the stream's order. It does not end."""

    def __init__(
        self, access: Access, table: Table, *, start: StartPoint, durable: str | None
    ) -> None:
        super().__init__(access)
        self._table = table
        self._start = start
        self._durable = durable

    async def _batches(self) -> AsyncGenerator[list[Change]]:
        reader = await self._open_reader()
        decoder = ChangeDecoder(self._access, self._table)
        first = self._start if isinstance(self._start, Position) else None
        try:
            while True:
                changes = []
                for message in await reader.next():
                    change = await decoder.decode(message)
                    if first is not None and change.position >= first:
                        # Positions may fall after that: lanes overtake each other, and a pipeline
                        # that is reset after a restore begins at an earlier one.
                        first = None
                    if first is not None or not decoder.is_first_copy(change, message):
                        await change.ack()
                    else:
                        changes.append(change)
                yield changes
        finally:
            await reader.close()

    async def _open_reader(self) -> Reader:
        start = await self._resolve_start()
        connection, stream = self._access.connection, self._access.stream
        subject = self._access.subject(self._table)
        if self._durable is None:
            ordered = OrderedReader(connection, stream, subject, start=start)
            await ordered.open()
            return ordered
        durable = DurableReader(
            connection, stream, subject, start, name=self._durable,
            ack_wait_s=self._access.ack_wait_s,
        )  # fmt: skip
        await durable.open()
        return durable

    async def _resolve_start(self) -> Start:
        match self._start:
            case "new":
                # As a sequence: a consumer that is created again later must not skip changes.
                info = await self._access.connection.stream_info(self._access.stream)
                return Start(sequence=info["state"]["last_seq"] + 1)
            case "earliest" | Position():
                # JetStream cannot search by position: the changes before it are skipped here.
                return Start()
            case datetime():
                if self._start.tzinfo is None:
                    raise ConfigError(
                        f"start must have a time zone, got {self._start}",
                        hint="Use datetime.now(UTC).",
                    )
                return Start(time=self._start)
            case _:
                raise ConfigError(
                    f"invalid start position {self._start!r}",
                    hint="Use 'new', 'earliest', a Position or a datetime.",
                )


# JetStream itself removes copies within its duplicate window. These are for retries after it.
_MAX_REMEMBERED = 65_536


class SeenChanges:
    """The ids of recent changes. A stream may hold a change twice, after a retry of its sink.

    After a restore, ids are used again: a change with another commit time is another change.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, datetime]] = {}
        """By id: the sequence of the first copy, and its commit time."""

    def is_first_copy(self, change: Change, message: StreamMessage) -> bool:
        """Whether no earlier message of the stream has this change."""
        if len(self._seen) >= _MAX_REMEMBERED:
            self._seen = dict(list(self._seen.items())[_MAX_REMEMBERED // 2 :])
        this = message.sequence, change.timestamp
        first = self._seen.setdefault(change.id, this)
        if first[1] != change.timestamp:
            first = self._seen[change.id] = this
        return first == this


class ChangeDecoder(SeenChanges):
    """Decodes messages into changes, typed by the table's schema document."""

    def __init__(self, access: Access, table: Table) -> None:
        super().__init__()
        self._access = access
        self._table = table
        self._looked_up: set[str] = set()

    async def decode(self, message: StreamMessage) -> Change:
        """The change in a message."""
        change = Change.of(decode(message.data, self._access.encoding), message.receipt)
        typer = await self._access.row_typer(self._table)
        if not self._looked_up.issuperset(unknown := typer.unknown(change.data)):
            # A new column. Its document may be late: it is read again once per column.
            self._looked_up |= unknown
            typer = await self._access.refresh_row_typer(self._table)
        typer.apply(change.data)
        if change.old is not None:
            typer.apply(change.old)
        return change
