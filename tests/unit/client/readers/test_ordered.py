"""The reader that keeps its own position."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import DeliverPolicy

from tailrace.client.readers import ordered
from tailrace.client.readers.ordered import OrderedReader
from tailrace.client.readers.reader import Start
from tailrace.errors import PositionLostError
from tests.unit.client.readers.consumers import FakeConnection, FakeConsumer, delivery

if TYPE_CHECKING:
    from nats.js.api import ConsumerConfig


class Script:
    """A reader whose consumers are created in the order of the script."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, connection: FakeConnection, *consumers: FakeConsumer
    ) -> None:
        self.created: list[ConsumerConfig] = []
        self._consumers = [*consumers]
        monkeypatch.setattr(ordered, "create_consumer", self._create)
        self.reader = OrderedReader(connection, "CDC", "cdc.users.*", start=Start())  # type: ignore[arg-type]

    async def _create(self, _connection: Any, _stream: str, settings: Any, _batch: int) -> Any:
        self.created.append(settings)
        return self._consumers.pop(0)

    def read(self, times: int) -> list[list[int]]:
        async def run() -> list[list[int]]:
            batches = [await self.reader.next() for _ in range(times)]
            return [[message.sequence for message in batch] for batch in batches]

        return asyncio.run(run())


def test_messages_are_returned_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([delivery(1), delivery(2)], [delivery(5, 3)])
    script = Script(monkeypatch, FakeConnection(last_seq=5), consumer)
    assert script.read(2) == [[1, 2], [5]]
    assert script.reader.last_sequence == 5
    assert script.created[0].deliver_policy is DeliverPolicy.ALL


def test_missing_message_causes_a_new_consumer_after_the_last_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = FakeConsumer([delivery(1, 1), delivery(3, 3)])
    second = FakeConsumer([delivery(2, 1), delivery(3, 2)])
    script = Script(monkeypatch, FakeConnection(last_seq=3), first, second)
    assert script.read(2) == [[1], [2, 3]]
    assert first.closed
    assert script.created[1].opt_start_seq == 2


def test_possible_gap_causes_a_new_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FakeConsumer([delivery(1)], gap_after=0)
    second = FakeConsumer([delivery(2, 1)])
    script = Script(monkeypatch, FakeConnection(last_seq=2), first, second)
    assert script.read(2) == [[1], [2]]


def test_expired_requests_advance_over_messages_of_other_subjects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one notes the end of the stream, the second one proves that nothing matches."""
    connection = FakeConnection(last_seq=90)
    script = Script(monkeypatch, connection, FakeConsumer([delivery(1)], [], [], []))
    script.read(2)
    assert script.reader.last_sequence == 1
    connection.info["state"]["last_seq"] = 200
    script.read(1)
    assert script.reader.last_sequence == 90
    script.read(1)
    assert script.reader.last_sequence == 200


def test_lagging_replica_keeps_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"replicas": [{"current": True}, {"current": True, "lag": 3}]}
    connection = FakeConnection(last_seq=90, cluster=cluster)
    script = Script(monkeypatch, connection, FakeConsumer([delivery(1)], [], [], []))
    script.read(4)
    assert script.reader.last_sequence == 1


@pytest.mark.parametrize(
    ("first_seq", "last_seq", "text"),
    [(9, 20, "begins at message 9"), (1, 3, "ends at message 3")],
)
def test_lost_position_is_an_error(first_seq: int, last_seq: int, text: str) -> None:
    connection: Any = FakeConnection(first_seq=first_seq, last_seq=last_seq)
    reader = OrderedReader(connection, "CDC", "cdc.users.*", start=Start(sequence=5))
    with pytest.raises(PositionLostError, match=text):
        asyncio.run(reader.open())
