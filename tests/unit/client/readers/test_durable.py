"""The reader whose position is on the server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.client.readers import durable
from tailrace.client.readers.durable import DurableReader
from tailrace.client.readers.reader import Start
from tailrace.errors import ConfigError
from tests.unit.client.readers.consumers import FakeConnection, FakeConsumer, delivery


class Script(DurableReader):
    """A reader of a consumer that exists, with unacknowledged messages."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        consumer: FakeConsumer,
        *,
        delivered: int,
        unacked: list[int],
        subject: str = "cdc.users.*",
    ) -> None:
        self.connection = FakeConnection(last_seq=99)
        connection: Any = self.connection
        super().__init__(connection, "CDC", "cdc.users.*", Start(), name="mine", ack_wait_s=30)
        monkeypatch.setattr(durable, "PullConsumer", lambda *_, **__: consumer)
        self.unacked_counts = unacked
        self._config = SimpleNamespace(filter_subject=subject)
        self._delivered_seq = SimpleNamespace(stream_seq=delivered)

    async def _info(self) -> Any:
        count = self.unacked_counts.pop(0) if len(self.unacked_counts) > 1 else None
        return SimpleNamespace(
            config=self._config, delivered=self._delivered_seq,
            num_ack_pending=self.unacked_counts[0] if count is None else count,
        )  # fmt: skip


def sequences(messages: list[Any]) -> list[int]:
    return [message.sequence for message in messages]


def test_redelivered_messages_come_before_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([delivery(6), delivery(7)], [delivery(3), delivery(4)], [delivery(5)])
    reader = Script(monkeypatch, consumer, delivered=5, unacked=[3])
    assert sequences(asyncio.run(reader.next())) == [3, 4, 5, 6, 7]


def test_messages_that_retention_removed_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = FakeConsumer([delivery(6)], [delivery(5)], [])
    reader = Script(monkeypatch, consumer, delivered=5, unacked=[3, 2])
    assert sequences(asyncio.run(reader.next())) == [5, 6]


def test_redelivery_of_an_acknowledged_message_is_acknowledged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = FakeConsumer([delivery(1)], [delivery(1), delivery(2)])
    reader = Script(monkeypatch, consumer, delivered=0, unacked=[0])

    async def run() -> list[int]:
        [first] = await reader.next()
        assert first.receipt is not None
        await first.receipt.ack()
        return sequences(await reader.next())

    assert asyncio.run(run()) == [2]
    assert reader.connection.published == [("ack.1", b"+ACK"), ("ack.1", b"+ACK")]


def test_redelivery_of_an_unacknowledged_message_is_not_returned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = FakeConsumer([delivery(1)], [delivery(1)])
    reader = Script(monkeypatch, consumer, delivered=0, unacked=[0])

    async def run() -> list[list[int]]:
        return [sequences(await reader.next()) for _ in range(2)]

    assert asyncio.run(run()) == [[1], []]


def test_close_rejects_unacknowledged_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([delivery(1), delivery(2), delivery(3)])
    reader = Script(monkeypatch, consumer, delivered=0, unacked=[0])

    async def run() -> None:
        await reader.next()
        await reader.ack(2)
        await reader.close()

    asyncio.run(run())
    assert reader.connection.published == [
        ("ack.2", b"+ACK"), ("ack.1", b"-NAK"), ("ack.3", b"-NAK"),
    ]  # fmt: skip


def test_name_of_another_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Script(monkeypatch, FakeConsumer(), delivered=0, unacked=[0], subject="cdc.orders.*")
    with pytest.raises(ConfigError, match=r"reads cdc\.orders\.\*, not cdc\.users\.\*"):
        asyncio.run(reader.open())
