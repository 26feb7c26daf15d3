"""Creek's snapshots: a topic per request, with a header, all rows once and EOF, after any crash."""

from __future__ import annotations

import base64
import re
import threading
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from tailrace.encode.creek import schema as creek
from tailrace.errors import UnexpectedError
from tailrace.snapshot.service.maker import Maker
from tailrace.visibility import Visibility
from tests.integration.creek.snapshot.system import STREAM
from tests.jetstream import purge
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from tailrace.jetstream.bulk.snapshot_messages import SnapshotMessage
    from tests.fix_postgres import Database
    from tests.integration.creek.snapshot.system import System


def items(database: Database, count: int = 1000) -> list[dict[str, Any]]:
    """A table of several pages, published; its rows as Avro has them."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text, at timestamptz);"
        "INSERT INTO items SELECT g, CASE WHEN g % 7 > 0 THEN 'né ' || g END,"
        f" '2026-01-01 00:00:00+00' FROM generate_series(1, {count}) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        {"id": number, "name": f"né {number}" if number % 7 else None, "at": at}
        for number in range(1, count + 1)
    ]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


def test_a_header_all_rows_and_the_end(system: System) -> None:
    expected = items(system.database)
    system.database.execute("ANALYZE items")
    system.start_service()
    topic = system.ask().text
    name = system.database.name
    assert re.fullmatch(
        rf"CREEK\.{name}\.snap\.public\.items\.[0-9]{{14}}_[0-9]{{6}}_[0-9a-f]{{4}}", topic
    )
    record = system.over(topic)
    assert (record["state"], record["rows"]) == ("complete", len(expected))
    found = system.topic(topic)
    assert by_id(found.rows) == expected
    header = found.header
    schema = msgspec.json.decode(header["schema"])
    fingerprint = creek.crc64(creek.canonical(schema).encode()).to_bytes(8, "big")
    assert base64.urlsafe_b64decode(header["fingerprint"]) == fingerprint
    assert header["approx_rows"] == len(expected)
    seen = Visibility.parse(header["visibility"])
    assert header["tx_id"] == seen.xmax & 0xFFFFFFFF
    assert datetime.fromisoformat(header["at"]) <= datetime.now(UTC)
    taken_at = datetime.fromisoformat(header["taken_at"])
    assert datetime.fromisoformat(header["since"]) <= taken_at
    # Clients read the stream from `at` on: early enough for clocks that differ.
    assert datetime.fromisoformat(header["at"]) < taken_at
    assert not list((system.data / "snapshots" / "p").glob("*.json"))
    # Nothing holds the table any more.
    system.database.execute("SET lock_timeout TO '400s'; ALTER TABLE items ADD more int")


def test_values_of_many_types_and_odd_names(system: System) -> None:
    system.database.execute(
        """
        CREATE SCHEMA "Odd.One";
        CREATE TABLE "Odd.One"."a *>b" (
            id uuid PRIMARY KEY, "sh""own" bool, n numeric(10, 2), j jsonb, d date, t interval,
            list int[], secret text
        );
        INSERT INTO "Odd.One"."a *>b" VALUES
            ('00000000-0000-0000-0000-000000000001', true, -12.5, '{"a": 1}', '2026-01-02',
             '1 day', '{1,2}', 'x'),
            ('00000000-0000-0000-0000-000000000002', NULL, NULL, NULL, 'infinity', NULL, NULL, 'x'),
            ('00000000-0000-0000-0000-000000000003', false, 1, '[]', NULL, NULL, '{}', 'hidden');
        CREATE PUBLICATION pub FOR TABLE "Odd.One"."a *>b" (id, "sh""own", n, j, d, t, list)
            WHERE (id < '00000000-0000-0000-0000-000000000003')
        """
    )
    system.start_service()
    topic = system.ask("a *>b", namespace="Odd.One").text
    assert ".snap.Odd%2EOne.a%20%2A%3Eb." in topic
    system.over(topic)
    rows = sorted(system.topic(topic).rows, key=lambda row: str(row["id"]))
    assert [list(row.values()) for row in rows] == [
        [
            UUID(int=1), True, Decimal("-12.50"), b'{"a": 1}', datetime(2026, 1, 2).date(),
            "1 day", [1, 2],
        ],
        [UUID(int=2), None, None, None, "infinity", None, None],
    ]  # fmt: skip


def test_empty_and_partitioned_tables(system: System) -> None:
    system.database.execute(
        "CREATE TABLE nothing (id int PRIMARY KEY);"
        "CREATE TABLE bare (); INSERT INTO bare DEFAULT VALUES; INSERT INTO bare DEFAULT VALUES;"
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (500);"
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (500) TO (1000);"
        "INSERT INTO parts SELECT g, 'v' || g FROM generate_series(0, 999) g; ANALYZE low, high;"
        "CREATE PUBLICATION pub FOR TABLE nothing, bare, parts WITH (publish_via_partition_root)"
    )
    system.start_service()
    nothing, parts = system.ask("nothing").text, system.ask("parts").text
    system.over(nothing)
    assert system.topic(nothing).rows == []
    assert system.topic(nothing).header["approx_rows"] == 0
    bare = system.ask("bare").text
    system.over(bare)
    assert system.topic(bare).rows == [{}, {}]
    system.over(parts)
    found = system.topic(parts)
    assert by_id(found.rows) == [{"id": number, "v": f"v{number}"} for number in range(1000)]
    assert found.header["approx_rows"] == 1000


def test_requests_for_one_table_share_a_topic(system: System) -> None:
    items(system.database)
    system.start_service()
    names = {"database": system.database.name, "namespace": "public", "table": "items"}
    answered = threading.Event()

    def wait(_wave: int) -> None:
        answered.wait(LONG_S)

    system.before = wait
    topics = {answer.text for answer in system.say_all([msgspec.json.encode(names)] * 20)}
    answered.set()
    assert len(topics) == 1
    (topic,) = topics
    system.over(topic)
    assert system.ask().text != topic


@pytest.mark.parametrize("wave", [1, 2, 3])
def test_after_a_crash_no_row_is_sent_twice(system: System, wave: int) -> None:
    """What keeps a row from coming twice is not the server's window for repeated ids."""
    expected = items(system.database)
    system.pipeline["snapshots"]["stream"]["duplicate_window_s"] = 0.1
    system.cut_after = wave
    system.start_service()
    topic = system.ask().text
    system.cut(topic, after=wave)
    before = system.topic(topic).messages
    assert 1 < len(before) < len(expected)
    system.database.execute("UPDATE items SET name = 'later'; DELETE FROM items WHERE id % 2 = 0")
    system.start_service()
    assert system.over(topic)["rows"] == len(expected)
    assert by_id(system.topic(topic).rows) == expected
    assert system.topic(topic).messages[: len(before)] == before


@pytest.mark.parametrize("left", ["head", "everything"])
def test_a_crash_between_a_message_and_its_record(
    system: System, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the header nor EOF is sent twice; after EOF the snapshot is not needed."""
    expected = items(system.database)
    system.pipeline["snapshots"]["stream"]["duplicate_window_s"] = 0.1
    system.pipeline["snapshots"]["parallel"] = 64
    send = Maker._send

    def cut(maker: Maker, message: SnapshotMessage) -> None:
        send(maker, message)
        if left == "head" or message.payload == creek.packet(b"EOF"):
            assert system.service is not None
            system.service.stop()
            raise UnexpectedError("cut")

    monkeypatch.setattr(Maker, "_send", cut)
    system.start_service()
    topic = system.ask().text
    assert system.service is not None
    system.service.join(LONG_S)
    monkeypatch.undo()
    before = system.topic(topic).messages
    assert len(before) == (1 if left == "head" else len(expected) + 2)
    if left == "everything":
        end_snapshots(system.database)
    system.start_service()
    assert system.over(topic)["state"] == "complete"
    assert system.topic(topic).messages[: len(before)] == before
    assert by_id(system.topic(topic).rows) == expected


def end_snapshots(database: Database) -> None:
    database.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE relation = 'items'::regclass"
    )


def test_without_its_snapshot_a_topic_ends_with_an_error(system: System) -> None:
    expected = items(system.database)
    system.cut_after = 1
    system.start_service()
    topic = system.ask().text
    system.cut(topic, after=1)
    end_snapshots(system.database)
    system.start_service()
    assert system.over(topic)["state"] == "failed"
    *_, last = system.topic(topic).messages
    assert last.headers["Tailrace-Error"] == "SNAPSHOT_LOST"
    content = msgspec.json.decode(last.payload)
    assert "no longer exists" in content["error"]
    assert content["code"] == "SNAPSHOT_LOST"
    assert not list((system.data / "snapshots" / "p").glob("*.json"))
    again = system.ask().text
    assert again != topic
    system.over(again)
    assert by_id(system.topic(again).rows) == expected


def test_the_publication_changes_during_a_snapshot(system: System) -> None:
    """The header has named a schema, and the rest would have another."""
    items(system.database)
    system.cut_after = 1
    system.start_service()
    topic = system.ask().text
    system.cut(topic, after=1)
    system.database.execute("ALTER PUBLICATION pub SET TABLE items (id, name)")
    system.start_service()
    assert system.over(topic)["state"] == "failed"
    assert system.topic(topic).messages[-1].headers["Tailrace-Error"] == "SCHEMA_CHANGED"
    again = system.ask().text
    system.over(again)
    assert set(system.topic(again).rows[0]) == {"id", "name"}


def test_a_truncate_does_not_wait_for_the_snapshot(system: System) -> None:
    items(system.database)
    emptying = threading.Thread(
        target=system.database.execute, args=("TRUNCATE items; INSERT INTO items VALUES (1)",)
    )

    def empty(wave: int) -> None:
        if wave == 1:
            emptying.start()
            waiting = "SELECT FROM pg_locks WHERE relation = 'items'::regclass AND NOT granted"
            wait_for(
                lambda: not emptying.is_alive() or system.database.query(waiting),
                "TRUNCATE to wait for its lock",
            )

    system.before = empty
    system.start_service()
    topic = system.ask().text
    assert system.over(topic)["state"] == "failed"
    emptying.join()
    assert "Tailrace-Error" in system.topic(topic).messages[-1].headers
    again = system.ask().text
    system.over(again)
    assert [row["id"] for row in system.topic(again).rows] == [1]


def test_a_bug_is_reported_to_the_client(system: System) -> None:
    items(system.database)
    system.start_service()
    system.fault = ValueError("odd")
    topic = system.ask().text
    assert system.over(topic)["state"] == "failed"
    header, last = system.topic(topic).messages
    assert "Tailrace-Error" not in header.headers
    content = msgspec.json.decode(last.payload)
    assert content["error"] == "ValueError: odd"
    assert system.over(system.ask().text)["state"] == "complete"


def test_a_row_that_nats_refuses(system: System) -> None:
    items(system.database, 10)
    system.database.execute("UPDATE items SET name = repeat('x', 2000000) WHERE id = 5")
    system.start_service()
    topic = system.ask().text
    assert system.over(topic)["state"] == "failed"
    assert system.topic(topic).messages[-1].headers["Tailrace-Error"] == "POISONED"


def test_a_stream_that_is_full_in_the_middle_of_a_stretch(system: System) -> None:
    """What came in before is known by its ids, long after the server has forgotten them."""
    expected = items(system.database)
    system.pipeline["snapshots"]["stretch_bytes"] = 1 << 20
    system.pipeline["snapshots"]["stream"] |= {"duplicate_window_s": 0.1, "max_messages": 300}
    system.start_service()
    topic = system.ask().text
    assert system.service is not None
    service = system.service
    wait_for(lambda: "maximum messages" in service.progress()[-1].error, "it is full")
    assert len(system.topic(topic).messages) == 300
    system.limit(-1)
    assert system.over(topic)["rows"] == len(expected)
    assert by_id(system.topic(topic).rows) == expected


def test_a_stream_that_has_lost_its_first_messages(system: System) -> None:
    items(system.database)
    system.cut_after = 2
    system.start_service()
    topic = system.ask().text
    system.cut(topic, after=2)
    purge(system.server.url, STREAM)
    system.start_service()
    assert system.over(topic)["state"] == "failed"
    (message,) = system.topic(topic).messages
    assert message.headers["Tailrace-Error"] == "SINK_REFUSED"


def test_nats_restarts(system: System) -> None:
    expected = items(system.database)

    def kill(wave: int) -> None:
        if wave == 2:
            system.server.kill()
            time.sleep(1)
            system.server.start()

    system.before = kill
    system.start_service()
    topic = system.ask().text
    assert system.over(topic)["state"] == "complete"
    assert by_id(system.topic(topic).rows) == expected
