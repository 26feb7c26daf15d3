"""Which changes a Creek snapshot contains."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from tailrace.change import Op
from tailrace.client import Change
from tailrace.client.creek import SnapshotHeader
from tailrace.client.creek.feed import snapshot_meta
from tailrace.client.creek.transactions import UNKNOWN_VISIBILITY, in_snapshot
from tailrace.client.names import Table
from tailrace.position import Lsn
from tailrace.visibility import Visibility

AT = datetime(2026, 1, 2, tzinfo=UTC)
USERS = Table("public", "users")


def change(lsn: int, xid: int, op: Op = Op.INSERT) -> Change:
    return Change(op=op, table=USERS, data={}, lsn=Lsn(lsn), xid=xid, id=str(lsn), timestamp=AT)


def test_visibility_decides_and_without_it_the_lsn() -> None:
    seen = Visibility.parse("20:24:21")
    changes = [
        change(50, 20), change(60, 21), change(150, 22), change(160, 24), change(50, 0, Op.READ),
        change(150, 0, Op.READ), change(100 + (1 << 36), 22),
    ]  # fmt: skip
    by_visibility = [True, False, True, False, True, False, False]
    by_lsn = [True, True, False, False, True, False, False]
    assert in_snapshot(changes, Lsn(100), seen) == by_visibility
    assert in_snapshot(changes, Lsn(100), UNKNOWN_VISIBILITY) == by_lsn
    assert in_snapshot([], Lsn(100), seen) == []


def test_wrapped_transaction_id_far_after_the_snapshot_is_not_seen() -> None:
    seen = Visibility.parse(f"{2**32 + 20}:{2**32 + 24}:")
    assert in_snapshot([change(150, 22)], Lsn(100), seen) == [True]
    assert in_snapshot([change(100 + (1 << 36), 22)], Lsn(100), seen) == [False]


def test_a_row_of_a_backfill_from_before_the_snapshot_is_older_than_its_row() -> None:
    """Also after the bound: changes between the two are not applied again, the snapshot sees
    them."""
    header = SnapshotHeader(
        fingerprint="f", schema="{}", tx_id=1, lsn="0/31", at=AT, approx_rows=0, topic="t",
        snapshot_lsn="0/64", visibility="20:24:",
    )  # fmt: skip
    meta = snapshot_meta(header, rows=1)
    changes = [change(0x63, 0, Op.READ), change(0x63, 22), change(0x64, 0, Op.READ)]
    assert in_snapshot(changes, meta.lsn, meta.visibility) == [True, True, False]
    # A producer that does not send the LSN of the snapshot.
    older = snapshot_meta(replace(header, snapshot_lsn=None), rows=1)
    assert in_snapshot(changes, older.lsn, older.visibility) == [False, True, False]
