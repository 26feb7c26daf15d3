"""Headers and rows of Creek's snapshots."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.client.creek import SnapshotFailedError, SnapshotHeader
from tailrace.client.creek.snapshot import SnapshotReader
from tailrace.client.readers.reader import StreamMessage
from tailrace.encode.creek import schema as creek
from tailrace.errors import MalformedError, PositionLostError, SinkUnreachableError
from tailrace.schema import ReplicaIdentity
from tests.unit.client.creek.relations import relation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TABLE = relation(ReplicaIdentity.DEFAULT, "a")
HEADER = {
    "fingerprint": "f", "schema": creek.row(TABLE, {}).text, "tx_id": 1, "lsn": "0/1",
    "approx_rows": 0, "at": "2026-01-02T03:04:05.123456789+02:00",
}  # fmt: skip


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"fingerprint":"","schema":"","source":"","created_at":"now"}']
)
def test_invalid_headers_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        SnapshotHeader.of("topic", data)


def test_header_reads_times_as_go_writes_them() -> None:
    header = SnapshotHeader.of("topic", orjson.dumps(HEADER))
    assert header.at == datetime(2026, 1, 2, 1, 4, 5, 123456, tzinfo=UTC)


def reader(request: Callable[[], Awaitable[str]] | None = None) -> SnapshotReader:
    session: Any = SimpleNamespace(patience_s=5.0)
    return SnapshotReader(session, "topic", request)


def messages(*contents: bytes, headers: dict[str, str] | None = None) -> list[StreamMessage]:
    return [
        StreamMessage(number, creek.packet(content), 0, headers=headers or {})
        for number, content in enumerate(contents, 1)
    ]


def test_rows_end_at_the_end_message() -> None:
    snapshot = reader()
    rows = snapshot._rows(messages(orjson.dumps(HEADER), b"\x02a\x02b", creek.END, b"later"))
    assert rows == [b"\x02a\x02b"]
    assert snapshot._ended
    assert snapshot.header is not None


def test_end_message_is_a_row_if_it_decodes_as_one_and_more_follow() -> None:
    snapshot = reader()
    snapshot._rows(messages(orjson.dumps(HEADER)))
    snapshot._ambiguous = True
    assert snapshot._rows(messages(creek.END)) == []
    assert snapshot._rows(messages(b"row", creek.END)) == [creek.END, b"row"]
    assert snapshot._ended


def test_missing_header_means_a_lost_beginning() -> None:
    with pytest.raises(PositionLostError, match="beginning of snapshot topic"):
        reader()._rows(messages(b"\x02a\x02b"))


def test_failure_of_the_producer_is_raised_with_its_hint() -> None:
    failure = messages(b'{"error": "no rights", "hint": "GRANT"}', headers={"Tailrace-Error": "x"})
    with pytest.raises(SnapshotFailedError, match="no rights") as caught:
        reader()._rows(failure)
    assert caught.value.hint == "GRANT"


def test_silent_snapshot_without_a_request_is_unreachable() -> None:
    with pytest.raises(SinkUnreachableError, match="no rows for 5 s"):
        asyncio.run(reader()._repeat_request(5.0))


def test_another_topic_in_the_answer_means_that_the_snapshot_was_abandoned() -> None:
    async def same() -> str:
        return "topic"

    async def other() -> str:
        return "topic-2"

    asyncio.run(reader(same)._repeat_request(5.0))
    with pytest.raises(SnapshotFailedError, match="now takes topic-2"):
        asyncio.run(reader(other)._repeat_request(5.0))
