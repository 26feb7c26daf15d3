"""Orders and records are read back as they were written, also from files of older versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from tailrace.backfill.order import Order, Record
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from pathlib import Path

ITEMS = TableName("public", "items")


def test_orders_are_read_oldest_first(tmp_path: Path) -> None:
    late = Order(id="a", table=ITEMS, asked_at=2.0)
    early = Order(id="b", table=ITEMS, where="id > 1", rate=5.0, desired_state="pause", asked_at=1)
    for order in (late, early):
        order.save(tmp_path)
    assert Order.load(tmp_path) == [early, late]
    assert Order.load(tmp_path / "missing") == []


def test_an_order_of_an_older_version(tmp_path: Path) -> None:
    (tmp_path / "fill-1.order.json").write_text(
        '{"id": "fill-1", "table": {"namespace": "public", "name": "items"}, "where": "", '
        '"rate": 0.0, "wish": "cancel", "reason": "", "asked_at": 1794743604.03}'
    )
    expected = Order(id="fill-1", table=ITEMS, desired_state="cancel", asked_at=1794743604.03)
    assert Order.load(tmp_path) == [expected]


def test_a_record_of_an_older_version(tmp_path: Path) -> None:
    (tmp_path / "fill-1.record.json").write_text(
        '{"id": "fill-1", "table": {"namespace": "public", "name": "items"}, "state": "running", '
        '"key": ["id"], "cursor": ["7"], "number": 3, "read": 7, "delivered": 5, "bytes": 99, '
        '"expected": 10, "page_rows": 100, "whole": false, "error": "", "begun_at": 5.0, '
        '"ended_at": 0.0}'
    )
    expected = Record(
        id="fill-1", table=ITEMS, state="running", key=("id",), cursor=("7",), number=3, read=7,
        delivered=5, bytes=99, expected=10, page_rows=100, begun_at=5.0,
    )  # fmt: skip
    assert Record.load(tmp_path) == {"fill-1": expected}


def test_the_keys_of_a_record_on_disk(tmp_path: Path) -> None:
    Record(id="fill-1", table=ITEMS, key=("a", "b")).save(tmp_path)
    content = json.loads((tmp_path / "fill-1.record.json").read_text())
    assert content["table"] == {"namespace": "public", "name": "items"}
    assert content["key"] == ["a", "b"]
    assert set(content) == {
        "id", "table", "state", "oid", "key", "cursor", "number", "read", "delivered", "bytes",
        "expected", "page_rows", "whole", "error", "begun_at", "ended_at",
    }  # fmt: skip


def test_invalid_files_are_logged_and_skipped(tmp_path: Path) -> None:
    Order(id="good", table=ITEMS).save(tmp_path)
    (tmp_path / "torn.order.json").write_text("{")
    (tmp_path / "other.order.json").write_text('{"id": "other", "table": 7}')
    with capture_logs() as events:
        assert [order.id for order in Order.load(tmp_path)] == ["good"]
    assert [event["event"] for event in events] == ["backfill.file_invalid"] * 2


def test_progress_of_a_record() -> None:
    record = Record(id="a", table=ITEMS, delivered=50, expected=200, begun_at=100.0)
    assert record.progress("p", 130.0).share == 0.25
    assert record.progress("p", 130.0).seconds == 30.0
    record.delivered = 300
    assert record.progress("p", 130.0).share == 0.99
    record.state, record.ended_at = "complete", 110.0
    assert (record.progress("p", 130.0).share, record.progress("p", 130.0).seconds) == (1.0, 10.0)
    assert Record(id="b", table=ITEMS).progress("p", 130.0).seconds == 0.0
