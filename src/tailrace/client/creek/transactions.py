"""Changes after a snapshot, in whole transactions; see `tailrace.client.transactions`.

The transaction of a change decides whether the snapshot contains it, if the header says which
transactions the snapshot sees. Transaction ids wrap around, but not within `_WRAP_BYTES` of WAL,
because every transaction writes some. Without a visibility the LSN decides, as in Creek's client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.change import Op
from tailrace.client.change import Change
from tailrace.client.creek.avro import ORIGIN
from tailrace.client.creek.packets import Assembler, unpack
from tailrace.client.creek.table_schema import table_schema
from tailrace.client.creek.wal import WalDecoder, split_fingerprint, timestamp
from tailrace.client.names import Table
from tailrace.client.transactions import Transactions
from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.creek.avro import ChangeSchema
    from tailrace.client.creek.session import Session
    from tailrace.client.readers.ordered import OrderedReader
    from tailrace.client.readers.reader import StreamMessage
    from tailrace.client.replica import State
    from tailrace.client.schemas import Schema
    from tailrace.client.transactions import Batch

UNKNOWN_VISIBILITY = Visibility(0, 0)
"""The header of the snapshot has no visibility."""
_WRAP_BYTES = 1 << 36
"""Half of all transaction ids, two billion, write more than this: a commit record is 34 bytes."""
_OPS = {
    "c": Op.INSERT, "u": Op.UPDATE, "u_pk": Op.UPDATE, "d": Op.DELETE, "t": Op.TRUNCATE,
    "r": Op.READ,
}  # fmt: skip
_ID = "Nats-Msg-Id"


class CreekTransactions(Transactions):
    """Batches from a state on. It does not end."""

    def __init__(
        self,
        session: Session,
        database: str,
        table: Table,
        state: State,
        *,
        on_schema: Callable[[Schema, str], None],
    ) -> None:
        super().__init__(session.access(database, table), table, state)
        self._decoder = WalDecoder(session, database, table)
        self._on_schema = on_schema
        self._packets = Assembler()
        self._table_schemas: dict[ChangeSchema, Schema] = {}
        self._last_schema: ChangeSchema | None = None

    async def _take(self, messages: list[StreamMessage]) -> Batch | None:
        whole = self._packets.join(messages)
        return await super()._take(whole) if whole else None

    def _on_idle(self, reader: OrderedReader) -> Batch | None:
        # The state must not advance into a message: the next run would lack its first packets.
        return None if self._packets.incomplete else super()._on_idle(reader)

    async def _decode(self, messages: list[StreamMessage]) -> tuple[list[Change], list[bool]]:
        changes = [await self._change(message) for message in messages]
        return changes, in_snapshot(changes, self._lsn, self._visibility)

    async def _change(self, message: StreamMessage) -> Change:
        fingerprint, schema, body = await self._decoder.split(message)
        content = schema.decode(body, "message")
        # By identity: the session caches schemas, and most messages share one.
        if schema is not self._last_schema:
            if schema not in self._table_schemas:
                self._table_schemas[schema] = table_schema(self._table, schema.after, schema.before)
            self._on_schema(self._table_schemas[schema], fingerprint)
            self._last_schema = schema
        try:
            return _change(content, schema, message, self._table)
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a message is not a change of Creek: {error!r}") from error

    def _origin(self, data: bytes) -> tuple[Lsn, Table]:
        source = ORIGIN.read(split_fingerprint(unpack(data))[1], prefix=True)["source"]
        return Lsn.parse(source["lsn"]), Table(source["schema"], source["table"])


def _change(
    content: dict[str, Any], schema: ChangeSchema, message: StreamMessage, table: Table
) -> Change:
    source, lsn = content["source"], Lsn.parse(content["source"]["lsn"])
    op, unchanged = _OPS[content["op"]], tuple(content.get("unchanged", ()))
    before, data = content["before"], content["after"]
    if op is Op.DELETE:
        # The columns that PostgreSQL logged; None for the others.
        data = dict.fromkeys(schema.after.columns) | before
    elif unchanged:
        data = {name: value for name, value in data.items() if name not in unchanged}
    return Change(
        op=op,
        table=table,
        data=data or {},
        old=before if content["op"] == "u_pk" else None,
        unchanged=unchanged,
        lsn=lsn,
        xid=source["tx_id"],
        # Without message ids of the producer, copies of a change cannot be recognized.
        id=message.headers.get(_ID, f"{lsn:x}-{message.sequence}"),
        timestamp=timestamp(source["tx_at"]),
    )


def in_snapshot(changes: Sequence[Change], lsn: Lsn, visibility: Visibility) -> list[bool]:
    """Which changes the snapshot contains. Every change that it lacks is at or after `lsn`.

    | change                          | contained if                                           |
    |---------------------------------|--------------------------------------------------------|
    | visibility unknown              | it is not after `lsn`                                  |
    | row of a backfill (`Op.READ`)   | it is not after `lsn`: it has no transaction           |
    | other                           | the snapshot sees its transaction, within _WRAP_BYTES  |
    """
    distance = np.array([max(change.lsn - lsn, 0) for change in changes], np.uint64)
    if visibility == UNKNOWN_VISIBILITY:
        by_lsn: list[bool] = (distance == 0).tolist()
        return by_lsn
    reads = np.array([change.op is Op.READ for change in changes])
    xids = np.array([(change.xid or 0) & 0xFFFFFFFF for change in changes], np.uint32)
    seen = (distance < _WRAP_BYTES) & visibility.sees(xids)
    contained: list[bool] = np.where(reads, distance == 0, seen).tolist()
    return contained
