"""A change as a consumer sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Self

from tailrace.change import Op
from tailrace.client.names import Table
from tailrace.errors import MalformedError
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Mapping


class Receipt(Protocol):
    """Tells JetStream what became of a message."""

    async def ack(self) -> None:
        """It is done with."""
        ...

    async def nak(self) -> None:
        """It shall come again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row event.

    `data` is the row: the new one, and of a delete the old one as far as PostgreSQL logged it, with
    None for the rest. Columns in `unchanged` are large values that an update left alone; they are
    not in `data` and keep what they had. `old` holds the old key of an update that changed it, or
    the old row under REPLICA IDENTITY FULL. `Op.TRUNCATE` empties the table and has no data.
    `Op.READ` is a row of a snapshot: no xid, and the snapshot's own lsn and time.
    """

    op: Op
    table: Table
    data: dict[str, Any]
    old: dict[str, Any] | None = None
    unchanged: tuple[str, ...] = ()
    lsn: Lsn
    """Of the commit."""
    xid: int | None
    id: str
    timestamp: datetime
    """Of the commit."""
    relation: int | None = None
    """PostgreSQL's number of the table: a table that is made anew has another."""
    receipt: Receipt | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, message: Mapping[str, Any], receipt: Receipt | None = None) -> Self:
        """Read a message of shape `bridge`."""
        try:
            return cls(
                op=Op(message["operation"].lower()),
                table=Table(message["schema"], message["table"]),
                data=message["data"],
                old=message.get("old"),
                unchanged=tuple(message.get("unchanged") or ()),
                lsn=Lsn.parse(message["lsn"]),
                xid=message["xid"],
                id=message["msg_id"],
                timestamp=datetime.fromisoformat(message["timestamp"]),
                relation=message.get("relation_id"),
                receipt=receipt,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedError(
                f"a message is not a change: {error!r}",
                hint="The client reads pipelines of shape `bridge`.",
            ) from error

    @property
    def position(self) -> Position:
        """Its place in the order of all changes; a row of a snapshot has none of its own."""
        ordinal = self.id.rpartition("-")[2] if self.op is not Op.READ else "0"
        return Position(self.lsn, int(ordinal))

    async def ack(self) -> None:
        """Say that it is done with. Without a durable name there is nobody to tell."""
        if self.receipt is not None:
            await self.receipt.ack()

    async def nak(self) -> None:
        """Ask for it again. It then comes behind changes that are younger."""
        if self.receipt is not None:
            await self.receipt.nak()
