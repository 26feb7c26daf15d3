"""`shadow on` and `shadow off`: the rows they write, and the copy requests in the WAL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tailrace.config import Config
from tailrace.errors import ConfigError
from tailrace.run.presets.shadow import prepare, turn_off, turn_on
from tests.integration.shadow.bench import copy_request, deliver
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fix_postgres import Database
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


def asked(database: Database) -> list[list[list[int]]]:
    """The copy requests in the WAL since the last call."""
    changes = database.query(
        "SELECT data FROM pg_logical_slot_get_binary_changes('asking', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'shadow', 'messages', 'true')"
    )
    messages = [data for (data,) in changes if b"tailrace.shadow" in data]
    return [json.loads(message[message.index(b"[[") :]) for message in messages]


@pytest.fixture
def asking(topic: Bench) -> Iterator[Database]:
    """A database with a slot that reads copy requests."""
    database = topic.database
    database.execute("CREATE PUBLICATION shadow FOR TABLE kafka.messages")
    database.query("SELECT pg_create_logical_replication_slot('asking', 'pgoutput')")
    yield database
    database.query("SELECT pg_drop_replication_slot('asking')")


def settings(dsn: str, log: Path) -> Config:
    (log / "durable").parent.mkdir(parents=True, exist_ok=True)
    (log / "durable").touch()
    return Config.model_validate({"source": {"dsn": dsn}, "log": {"path": log}})


def test_every_start_requests_existing_records(
    topic: Bench, asking: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a shadow that ran before WHEN it starts THEN topics that Kafka had refused are tried
    again, also if they have no new records."""
    monkeypatch.setattr("tailrace.run.presets.shadow._LATER_START_TIMEOUT_S", LONG_S)
    assert prepare(settings(topic.database.dsn, tmp_path / "log")) is None
    [requested] = asked(asking)
    assert sorted(place[1:] for place in requested) == [[0, 5], [1, 3]]


def test_a_later_start_does_not_need_the_database(tmp_path: Path) -> None:
    with capture_logs() as events:
        assert prepare(settings("host=127.0.0.1 port=1", tmp_path / "log")) is None
    assert [each["event"] for each in events] == ["shadow.copy_not_requested"]


def test_existing_records_are_requested_in_the_wal(topic: Bench, asking: Database) -> None:
    """The sink copies exactly the offsets that the message names, not what the table has later."""
    turn_on(asking.dsn, [topic.topic])
    topic.produce(10, partition=1)
    [requested] = asked(asking)
    assert sorted(place[1:] for place in requested) == [[0, 5], [1, 3]]
    deliver(topic.sink(), copy_request(*((each[0], each[1], each[2]) for each in requested)))
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
