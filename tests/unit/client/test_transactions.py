"""Messages sorted into whole transactions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.client import Batch, State, Transactions, transactions
from tailrace.client.connection import StoredMessage
from tailrace.client.names import Table
from tailrace.client.readers.reader import StreamMessage

if TYPE_CHECKING:
    import pytest

STATE = State(
    table="users", snapshot_id="s", lsn="0/0", visibility="1:1:", since=None, stream="2026",
    sequence=0,
)  # fmt: skip
ATOMIC = {"Nats-Batch-Id": "b"}
COMMIT = ATOMIC | {"Nats-Batch-Commit": "1"}


def content(sequence: int, commit: int, table: str) -> bytes:
    return orjson.dumps(
        {
            "data": {"id": sequence}, "msg_id": f"{commit:x}-{table}-{sequence}",
            "operation": "INSERT", "table": table, "schema": "public", "lsn": f"0/{commit:X}",
            "xid": commit, "timestamp": "2026-01-01T00:00:00Z",
        }
    )  # fmt: skip


def message(
    sequence: int, commit: int, pending: int = 0, headers: dict[str, str] | None = None
) -> StreamMessage:
    data = content(sequence, commit, "users")
    return StreamMessage(sequence, data, pending, headers=headers or {})


class Reading:
    """Batches of messages that a test passes in; `stored` are messages of the stream."""

    def __init__(self, *stored: StoredMessage, state: State = STATE) -> None:
        self._stored = {message.sequence: message for message in stored}
        connection = SimpleNamespace(message=self._message)
        access: Any = SimpleNamespace(connection=connection, stream="CDC", encoding=None)
        self.transactions = Transactions(access, Table("public", "users"), state)

    async def _message(self, _stream: str, sequence: int) -> StoredMessage | None:
        return self._stored.get(sequence)

    def store(self, sequence: int, commit: int, table: str, headers: dict[str, str]) -> None:
        data = content(sequence, commit, table)
        self._stored[sequence] = StoredMessage(
            sequence=sequence, headers=headers, data=data, time=datetime.now(UTC)
        )

    def take(self, *messages: StreamMessage) -> Batch | None:
        return asyncio.run(self.transactions._take([*messages]))

    def recheck(self) -> Batch | None:
        last = self.transactions._incomplete
        assert last is not None
        return asyncio.run(self.transactions._recheck(last))


def commits(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [int(change.lsn) for change in batch.changes]


def test_end_of_the_stream_completes_the_last_transaction() -> None:
    batch = Reading().take(message(1, 1, 2), message(2, 1, 1), message(3, 2))
    assert commits(batch) == [1, 1, 2]
    assert batch is not None
    assert (batch.state.sequence, batch.pending, batch.ends) == (3, 0, True)


def test_small_batch_waits_for_pending_messages() -> None:
    reading = Reading()
    assert reading.take(message(1, 1, 1)) is None
    assert commits(reading.take(message(2, 1))) == [1, 1]


def test_open_transaction_waits_when_a_batch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BATCH_CHANGES", 3)
    reading = Reading()
    batch = reading.take(message(1, 1, 4), message(2, 1, 3), message(3, 2, 2))
    assert commits(batch) == [1, 1]
    assert batch is not None
    assert (batch.state.sequence, batch.pending) == (2, 3)
    assert commits(reading.take(message(4, 2, 1), message(5, 3))) == [2, 2, 3]


def test_large_transaction_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BATCH_CHANGES", 2)
    reading = Reading()
    part = reading.take(message(1, 1, 2), message(2, 1, 1))
    assert commits(part) == [1, 1]
    assert part is not None
    assert (part.ends, part.state.sequence) == (False, 0)
    last = reading.take(message(3, 1))
    assert commits(last) == [1]
    assert last is not None
    assert (last.ends, last.state.sequence) == (True, 3)


def test_changes_in_the_snapshot_only_advance_the_state() -> None:
    state = State(**{name: getattr(STATE, name) for name in STATE.__slots__} | {
        "lsn": "0/FF", "visibility": "100:100:",
    })  # fmt: skip
    batch = Reading(state=state).take(message(1, 1, 1), message(2, 2))
    assert commits(batch) == []
    assert batch is not None
    assert batch.state.sequence == 2


def test_second_copy_of_a_change_is_skipped() -> None:
    copy = StreamMessage(2, message(1, 1).data, 0)
    assert commits(Reading().take(message(1, 1, 1), copy)) == [1]


def test_atomic_batch_without_its_commit_message_is_incomplete() -> None:
    reading = Reading()
    batch = reading.take(message(1, 1, 1), message(2, 2, 0, ATOMIC))
    assert commits(batch) == [1]
    assert batch is not None
    assert batch.state.sequence == 1
    assert reading.recheck() is None
    reading.store(3, 2, "orders", COMMIT)
    assert commits(reading.recheck()) == [2]


def test_atomic_batch_is_complete_with_its_commit_message() -> None:
    assert commits(Reading().take(message(1, 1, 0, COMMIT))) == [1]


def test_change_of_another_commit_completes_an_atomic_batch() -> None:
    reading = Reading()
    reading.store(2, 2, "orders", ATOMIC)
    assert commits(reading.take(message(1, 1, 0, ATOMIC))) == [1]


def test_stored_change_of_the_same_table_is_about_to_be_delivered() -> None:
    reading = Reading()
    reading.store(2, 1, "users", COMMIT)
    assert reading.take(message(1, 1, 0, ATOMIC)) is None
    assert commits(reading.take(message(2, 1, 0, COMMIT))) == [1, 1]


def test_idle_stream_advances_the_state() -> None:
    reading = Reading()
    reader: Any = SimpleNamespace(last_sequence=40)
    batch = reading.transactions._on_idle(reader)
    assert batch is not None
    assert (commits(batch), batch.state.sequence) == ([], 40)
    assert reading.transactions._on_idle(reader) is None
