"""One change of a table, as a consumer gets it."""

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
    """Acknowledges one message of a durable consumer."""

    async def ack(self) -> None:
        """Acknowledge the message: it is not redelivered."""
        ...

    async def nak(self) -> None:
        """Reject the message: JetStream redelivers it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row event.

    `data` is the new row. For a delete it is the old row: PostgreSQL logs its replica identity, and
    the other columns are None. `unchanged` names large (TOASTed) columns that an update did not
    touch: they are not in `data` and keep their values. `old` is the old key if an update changed
    it, or the old row under REPLICA IDENTITY FULL. `Op.TRUNCATE` empties the table and has no data.
    `Op.READ` is a row of a snapshot: it has no xid, and the lsn and timestamp of the snapshot.
    """

    op: Op
    table: Table
    data: dict[str, Any]
    old: dict[str, Any] | None = None
    unchanged: tuple[str, ...] = ()
    lsn: Lsn
    """LSN of the commit."""
    xid: int | None
    id: str
    timestamp: datetime
    """Time of the commit."""
    relation: int | None = None
    """OID of the table. A table that is dropped and created again has a new one."""
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
        """Position in the order of all changes. Rows of one snapshot share one position."""
        # The last part of a message id is the number of the change in its transaction.
        ordinal = self.id.rpartition("-")[2] if self.op is not Op.READ else "0"
        return Position(self.lsn, int(ordinal))

    async def ack(self) -> None:
        """Acknowledge the change. Does nothing without a durable name."""
        if self.receipt is not None:
            await self.receipt.ack()

    async def nak(self) -> None:
        """Ask for redelivery at once. The change then comes after newer ones."""
        if self.receipt is not None:
            await self.receipt.nak()
