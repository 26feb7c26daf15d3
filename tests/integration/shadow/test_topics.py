"""Switching topics on and off, and what a stream is asked for then."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError
from tailrace.run.presets.shadow import turn_off, turn_on
from tests.integration.shadow.bench import asking, delivered

if TYPE_CHECKING:
    from tests.integration.shadow.bench import Bench


@pytest.fixture
def topic(bench: Bench) -> Bench:
    bench.make(partitions=2)
    bench.produce(5, partition=0)
    bench.produce(3, partition=1)
    return bench


def row(bench: Bench) -> tuple[bool, bool, list[int]]:
    return bench.database.query("SELECT enabled, append, starts FROM kafka.shadow")[0]


@pytest.mark.parametrize(
    ("start", "starts"),
    [("", []), ("earliest", [0, 0]), ("latest", [5, 3]), ("2", [2, 2])],
)
def test_where_a_topic_starts(topic: Bench, start: str, starts: list[int]) -> None:
    turn_on(topic.database.dsn, [topic.topic], start=start)
    assert row(topic) == (True, False, starts)


def test_on_again_goes_on_where_it_was(topic: Bench) -> None:
    turn_on(topic.database.dsn, [topic.topic], start="2", append=True)
    turn_off(topic.database.dsn, [topic.topic])
    assert row(topic) == (False, True, [2, 2])
    turn_on(topic.database.dsn, [topic.topic])
    assert row(topic) == (True, True, [2, 2])


def test_what_is_there_is_asked_for_in_the_wal(topic: Bench) -> None:
    """The sink copies exactly what the message names, whatever the table has by then."""
    database = topic.database
    database.execute("CREATE PUBLICATION shadow FOR TABLE kafka.messages")
    database.query("SELECT pg_create_logical_replication_slot('asking', 'pgoutput')")
    turn_on(database.dsn, [topic.topic])
    topic.produce(10, partition=1)
    changes = database.query(
        "SELECT data FROM pg_logical_slot_get_binary_changes('asking', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'shadow', 'messages', 'true')"
    )
    (found,) = [data for (data,) in changes if b"tailrace.shadow" in data]
    asked = json.loads(found[found.index(b"[[") :])
    assert sorted(place[1:] for place in asked) == [[0, 5], [1, 3]]
    delivered(topic.sink(), asking(*(tuple(place) for place in asked)))
    assert topic.there(0) == topic.here(0)
    assert topic.there(1) == topic.here(1)[:3]


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("nothing", ""), "no topic nothing"), (("", "soon"), "'soon' is no place")],
)
def test_refusals(topic: Bench, words: tuple[str, str], reason: str) -> None:
    name, start = words
    with pytest.raises(ConfigError, match=reason):
        turn_on(topic.database.dsn, [name or topic.topic], start=start)


def test_unlogged_topics_are_not_in_the_wal(bench: Bench) -> None:
    bench.database.query(f"SELECT kafka.create_topic('{bench.topic}', 1, '{{}}', true)")
    with pytest.raises(ConfigError, match="unlogged"):
        turn_on(bench.database.dsn, [bench.topic])
    bench.produce(3)
    assert bench.verify().partitions == []
