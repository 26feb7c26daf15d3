"""Which changes a snapshot contains, and what a stream retains."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tailrace.client.change import Change
from tailrace.client.replica import State, in_snapshot, retains_since
from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.visibility import Visibility

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DAY_NS = 86_400 * 1_000_000_000


def change(lsn: int, xid: int) -> Change:
    return Change.of(
        {
            "data": {},
            "msg_id": f"{lsn:x}-t-insert-0",
            "operation": "INSERT",
            "table": "t",
            "schema": "public",
            "lsn": str(Lsn(lsn)),
            "xid": xid,
            "timestamp": "2026-01-01T00:00:00Z",
        }
    )


def test_visibility_decides_and_not_the_position() -> None:
    seen = Visibility.parse("943:945:943")
    changes = [change(10, 942), change(20, 943), change(30, 944), change(40, 945)]
    assert in_snapshot(changes, Lsn(100), seen) == [True, False, True, False]


def test_wrapped_transaction_id_after_the_snapshot_is_not_seen() -> None:
    """After two billion transactions a new transaction id looks older than the snapshot."""
    seen = Visibility.parse("943:945:943")
    wrapped = (945 + (1 << 31) + 5) % (1 << 32)
    assert in_snapshot([change(50, wrapped)], Lsn(100), seen) == [True]
    assert in_snapshot([change(100, wrapped), change(99, 1)], Lsn(100), seen) == [False, True]


def info(*, first_seq: int, first: datetime, **limits: int) -> dict[str, Any]:
    state = {"first_seq": first_seq, "messages": 10, "bytes": 100, "first_ts": first.isoformat()}
    config = {"max_age": DAY_NS, "max_msgs": -1, "max_bytes": -1} | limits
    return {"ts": NOW.isoformat(), "state": state, "config": config}


@pytest.mark.parametrize(
    ("first_seq", "first_h", "since_h", "limits", "retained"),
    [
        (1, -1, -2, {}, True),
        (5, -3, -2, {}, True),
        (5, -1, -2, {}, True),
        (5, -1, -25, {}, False),
        (5, -1, -2, {"max_msgs": 10}, False),
        (5, -1, -2, {"max_msgs": 11}, True),
        (5, -1, -2, {"max_bytes": 105}, False),
        (5, -1, -2, {"max_bytes": 1000}, True),
    ],
)
def test_whether_a_stream_retains_all_messages_since_a_time(
    first_seq: int, first_h: int, since_h: int, limits: dict[str, int], retained: bool
) -> None:
    stream = info(first_seq=first_seq, first=NOW + timedelta(hours=first_h), **limits)
    assert retains_since(stream, NOW + timedelta(hours=since_h)) is retained


def test_load_reads_what_dump_writes() -> None:
    state = State(
        table='sales."odd"',
        snapshot_id="snap-1",
        lsn="0/1",
        visibility="1:2:",
        since=None,
        stream="2026-01-01T00:00:00Z",
        sequence=7,
    )
    assert State.load(state.dump()) == state
    for text in ("", "{}", "[]"):
        with pytest.raises(MalformedError):
            State.load(text)
