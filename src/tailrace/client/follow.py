"""Changes of a table from some point on."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from tailrace.client.change import Change
from tailrace.client.iteration import Iteration
from tailrace.client.payload import decoded
from tailrace.client.readers import Durable, Ordered, Start
from tailrace.errors import ConfigError
from tailrace.position import Position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.readers import Arrival, Reader

Beginning = Literal["new", "earliest"] | Position | datetime


class Follow(Iteration[Change, Change]):
    """The changes of one table, in the stream's order. It does not end."""

    def __init__(
        self, access: Access, table: Table, *, start: Beginning, durable: str | None
    ) -> None:
        super().__init__(access)
        self._table = table
        self._start = start
        self._durable = durable

    async def _batches(self) -> AsyncGenerator[list[Change]]:
        reader = await self._reader()
        typed = Typed(self._access, self._table)
        after = self._start if isinstance(self._start, Position) else None
        try:
            while True:
                found = []
                for arrival in await reader.next():
                    change = await typed.change(arrival)
                    early = after is not None and change.position < after
                    if early or not typed.first(change, arrival):
                        await change.ack()
                    else:
                        found.append(change)
                yield found
        finally:
            await reader.close()

    def _handed(self, item: Change) -> Change:
        return item

    async def _reader(self) -> Reader:
        start = await self._resolved()
        connection, stream = self._access.connection, self._access.stream
        subject = self._access.subject(self._table)
        if self._durable is None:
            ordered = Ordered(connection, stream, subject, start=start)
            await ordered.open()
            return ordered
        durable = Durable(
            connection, stream, subject, start, name=self._durable,
            ack_wait_s=self._access.ack_wait_s,
        )  # fmt: skip
        await durable.open()
        return durable

    async def _resolved(self) -> Start:
        match self._start:
            case "new":
                # As a number at once: a consumer that is made again must not skip anything.
                info = await self._access.connection.stream_info(self._access.stream)
                return Start(sequence=info["state"]["last_seq"] + 1)
            case "earliest" | Position():
                return Start()
            case datetime():
                if self._start.tzinfo is None:
                    raise ConfigError(
                        f"{self._start} says no time zone", hint="Use datetime.now(UTC)."
                    )
                return Start(time=self._start)
            case _:
                raise ConfigError(
                    f"cannot start at {self._start!r}",
                    hint="Use 'new', 'earliest', a Position or a datetime.",
                )


_REMEMBERED = 65_536


class Seen:
    """Knows which changes were there already: a stream may hold a message twice."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def first(self, change: Change, arrival: Arrival) -> bool:
        """Whether this is not the second copy."""
        if len(self._seen) >= _REMEMBERED:
            self._seen = dict(list(self._seen.items())[_REMEMBERED // 2 :])
        return self._seen.setdefault(change.id, arrival.sequence) == arrival.sequence


class Typed(Seen):
    """Messages as changes, typed by the table's schema document; knows which it has seen."""

    def __init__(self, access: Access, table: Table) -> None:
        super().__init__()
        self._access = access
        self._table = table
        self._asked: set[str] = set()

    async def change(self, arrival: Arrival) -> Change:
        """Read a message."""
        change = Change.of(decoded(arrival.data, self._access.encoding), arrival.receipt)
        typing = await self._access.typing(self._table)
        if not self._asked.issuperset(unknown := typing.unknown(change.data)):
            # A column that is new. Its document may still be on its way: asked for once.
            self._asked |= unknown
            typing = await self._access.retyped(self._table)
        typing.apply(change.data)
        if change.old is not None:
            typing.apply(change.old)
        return change
