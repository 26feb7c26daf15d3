"""Changes behind a snapshot, in whole transactions; see `tailrace.client.transactions`.

Which changes the snapshot has, their transactions tell, as far as its header says which it sees.
Transaction numbers repeat: but not within so many bytes of log, for each of them leaves some there.
Without that the LSN has to tell, as Creek has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.change import Op
from tailrace.client import transactions
from tailrace.client.change import Change
from tailrace.client.creek.avro import ORIGIN
from tailrace.client.creek.described import described
from tailrace.client.creek.session import content
from tailrace.client.creek.wal import Messages, moment, parted
from tailrace.client.names import Table
from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.creek.avro import Event
    from tailrace.client.creek.session import Session
    from tailrace.client.readers import Arrival
    from tailrace.client.replica import State
    from tailrace.client.schemas import Schema

UNTOLD = Visibility(0, 0)
"""The snapshot does not say what it sees."""
_REPEAT_BYTES = 1 << 36
"""Half of all transaction numbers, two billions, write more than this: a commit is 34 bytes."""
_OPS = {
    "c": Op.INSERT, "u": Op.UPDATE, "u_pk": Op.UPDATE, "d": Op.DELETE, "t": Op.TRUNCATE,
    "r": Op.READ,
}  # fmt: skip
_ID = "Nats-Msg-Id"


class Transactions(transactions.Transactions):
    """Batches from a state on. It does not end."""

    def __init__(
        self,
        session: Session,
        database: str,
        table: Table,
        state: State,
        *,
        tell: Callable[[Schema, str], None],
    ) -> None:
        super().__init__(session.access(database, table), table, state)
        self._messages = Messages(session, database, table)
        self._tell = tell
        self._described: dict[Event, Schema] = {}
        self._event: Event | None = None

    async def _read(self, arrivals: list[Arrival]) -> tuple[list[Change], list[bool]]:
        changes = [await self._change(each) for each in arrivals]
        return changes, included(changes, self._lsn, self._visibility)

    async def _change(self, arrival: Arrival) -> Change:
        fingerprint, event, body = await self._messages.opened(arrival)
        message = event.message(body, "written")
        if event is not self._event:
            if event not in self._described:
                self._described[event] = described(self._table, event.after, event.before)
            self._tell(self._described[event], fingerprint)
            self._event = event
        try:
            return _change(message, event, arrival, self._table)
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a message is not a change of Creek's: {error!r}") from error

    def _origin(self, data: bytes) -> tuple[Lsn, Table]:
        source = ORIGIN.read(parted(content(data))[1], whole=False)["source"]
        return Lsn.parse(source["lsn"]), Table(source["schema"], source["table"])


def _change(message: dict[str, Any], event: Event, arrival: Arrival, table: Table) -> Change:
    source, lsn = message["source"], Lsn.parse(message["source"]["lsn"])
    op, unchanged = _OPS[message["op"]], tuple(message.get("unchanged", ()))
    before, data = message["before"], message["after"]
    if op is Op.DELETE:
        # As far as PostgreSQL has logged the row.
        data = dict.fromkeys(event.after.columns) | before
    elif unchanged:
        data = {name: value for name, value in data.items() if name not in unchanged}
    return Change(
        op=op,
        table=table,
        data=data or {},
        old=before if message["op"] == "u_pk" else None,
        unchanged=unchanged,
        lsn=lsn,
        xid=source["tx_id"],
        # A producer that gives no ids cannot be asked whether this was here before.
        id=arrival.headers.get(_ID, f"{lsn:x}-{arrival.sequence}"),
        timestamp=moment(source["tx_at"]),
    )


def included(changes: Sequence[Change], lsn: Lsn, visibility: Visibility) -> list[bool]:
    """Which changes the snapshot has; `lsn` is at the latest where the first one is that it lacks.

    A row that is read again has no transaction: behind that place it counts as newer.
    """
    behind = np.array([max(change.lsn - lsn, 0) for change in changes], np.uint64)
    if visibility == UNTOLD:
        known: list[bool] = (behind == 0).tolist()
        return known
    reads = np.array([change.op is Op.READ for change in changes])
    xids = np.array([(change.xid or 0) & 0xFFFFFFFF for change in changes], np.uint32)
    seen = (behind < _REPEAT_BYTES) & visibility.sees(xids)
    found: list[bool] = np.where(reads, behind == 0, seen).tolist()
    return found
