"""`shadow on` and `shadow off`: the rows they write, and the copy requests in the WAL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError
from tailrace.run.presets.shadow import turn_off, turn_on
from tests.integration.shadow.bench import copy_request, deliver

if TYPE_CHECKING:
    from tests.integration.shadow.bench import Bench


@pytest.fixture
def topic(bench: Bench) -> Bench:
    bench.create_topic(partitions=2)
    bench.produce(5, partition=0)
    bench.produce(3, partition=1)
    return bench


def row(bench: Bench) -> tuple[bool, bool, list[int]]:
    return bench.database.query("SELECT enabled, append, starts FROM kafka.shadow")[0]


@pytest.mark.parametrize(
    ("start", "starts"),
    [("", []), ("earliest", [0, 0]), ("latest", [5, 3]), ("2", [2, 2])],
)
def test_start_offsets_of_a_topic(topic: Bench, start: str, starts: list[int]) -> None:
    turn_on(topic.database.dsn, [topic.topic], start=start)
    assert row(topic) == (True, False, starts)


def test_an_enabled_topic_resumes(topic: Bench) -> None:
    turn_on(topic.database.dsn, [topic.topic], start="2", append=True)
    turn_off(topic.database.dsn, [topic.topic])
    assert row(topic) == (False, True, [2, 2])
    turn_on(topic.database.dsn, [topic.topic])
    assert row(topic) == (True, True, [2, 2])


def test_existing_records_are_requested_in_the_wal(topic: Bench) -> None:
    """The sink copies exactly the offsets that the message names, not what the table has later."""
    database = topic.database
    database.execute("CREATE PUBLICATION shadow FOR TABLE kafka.messages")
    database.query("SELECT pg_create_logical_replication_slot('asking', 'pgoutput')")
    turn_on(database.dsn, [topic.topic])
    topic.produce(10, partition=1)
    changes = database.query(
        "SELECT data FROM pg_logical_slot_get_binary_changes('asking', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'shadow', 'messages', 'true')"
    )
    (message,) = [data for (data,) in changes if b"tailrace.shadow" in data]
    requested = json.loads(message[message.index(b"[[") :])
    assert sorted(place[1:] for place in requested) == [[0, 5], [1, 3]]
    deliver(topic.sink(), copy_request(*(tuple(place) for place in requested)))
    assert topic.kafka_records(0) == topic.broker_records(0)
    assert topic.kafka_records(1) == topic.broker_records(1)[:3]


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("nothing", ""), "topic nothing does not exist"), (("", "soon"), "got 'soon'")],
)
def test_invalid_arguments_are_refused(topic: Bench, words: tuple[str, str], reason: str) -> None:
    name, start = words
    with pytest.raises(ConfigError, match=reason):
        turn_on(topic.database.dsn, [name or topic.topic], start=start)


def test_unlogged_topics_are_refused(bench: Bench) -> None:
    bench.database.query(f"SELECT kafka.create_topic('{bench.topic}', 1, '{{}}', true)")
    with pytest.raises(ConfigError, match="unlogged"):
        turn_on(bench.database.dsn, [bench.topic])
    bench.produce(3)
    assert bench.verify().partitions == []
