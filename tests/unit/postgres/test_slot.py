"""The state of a slot and the names of open transactions, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tailrace.postgres.slot import OpenTransaction, SlotState

HEALTHY: dict[str, Any] = {
    "name": "tailrace", "plugin": "pgoutput", "slot_type": "logical", "database": "shop",
    "temporary": False, "active_pid": None, "restart_lsn": None, "confirmed_flush_lsn": None,
    "wal_status": "reserved", "safe_wal_bytes": None, "kept_wal_bytes": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({}, False),
        ({"wal_status": "extended"}, False),
        ({"wal_status": "unreserved"}, False),
        ({"wal_status": "lost"}, True),
        ({"wal_status": None}, False),
        ({"invalidation_reason": "idle_timeout"}, True),
    ],
)
def test_a_slot_is_lost_by_its_status_or_its_reason(fields: dict[str, Any], lost: bool) -> None:
    assert SlotState(**(HEALTHY | fields)).lost is lost


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "pid 7"),
        ({"application": "psql"}, "pid 7 (psql)"),
        (
            {"application": "psql", "age": timedelta(seconds=61, microseconds=5)},
            "pid 7 (psql, open for 0:01:01)",
        ),
        (
            {"query_start": datetime(2026, 1, 31, 12, tzinfo=UTC)},
            "pid 7 (last statement began 2026-01-31 12:00:00 UTC)",
        ),
        ({"pid": None, "gid": "two"}, "prepared transaction 'two'"),
    ],
)
def test_open_transactions_are_named(fields: dict[str, Any], expected: str) -> None:
    known: dict[str, Any] = {
        "pid": 7, "gid": "", "application": "", "age": None, "query_start": None,
    }  # fmt: skip
    assert str(OpenTransaction(**(known | fields))) == expected
