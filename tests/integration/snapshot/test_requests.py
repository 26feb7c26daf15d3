"""Snapshots on request over NATS: complete in the stream, whatever fails in between."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard

from tailrace.errors import PostgresUnreachableError, UnexpectedError
from tailrace.snapshot.service import maker
from tailrace.snapshot.service.catalog import PublishedTables
from tailrace.testing import EmbeddedNats
from tailrace.visibility import Visibility
from tests.integration.snapshot.system import System
from tests.jetstream import received
from tests.waiting import LONG_S, holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.postgres.names import TableName
    from tailrace.postgres.publication import PublishedTable
    from tailrace.schema import Relation
    from tailrace.snapshot.service.record import Record
    from tests.fix_postgres import Database


@pytest.fixture
def system(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[System]:
    with EmbeddedNats() as server, System(spark, database, server, tmp_path) as system:
        yield system


def items(database: Database, count: int = 1000) -> list[dict[str, Any]]:
    """Create and publish a table of several pages; its rows as they are in messages."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text, at timestamptz);"
        "INSERT INTO items SELECT g, CASE WHEN g % 7 > 0 THEN 'né ' || g END,"
        f" '2026-01-01 00:00:00+00' FROM generate_series(1, {count}) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    return [
        {"id": number, "name": f"né {number}" if number % 7 else None, "at": "2026-01-01T00:00:00Z"}
        for number in range(1, count + 1)
    ]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


def test_a_table_on_request(system: System) -> None:
    expected = items(system.database)
    system.start_service()
    (answer,) = system.ask("items")
    assert (answer["table"], answer["schema"]) == ("items", "public")
    assert system.finished()["state"] == "complete"
    rows, (meta,) = system.published()
    assert by_id(rows.pop(answer["snapshot_id"])) == expected
    assert not rows
    (snapshot,) = system.database.query("SELECT pg_current_snapshot()::text")
    now = Visibility.parse(snapshot[0])
    assert meta["snapshot_id"] == answer["snapshot_id"]
    assert meta["row_count"] == len(expected)
    assert meta["batch_count"] == len(received(system.server.url, "INIT")) - 1
    assert 0 < Visibility.parse(meta["visibility"]).xmax <= now.xmax
    assert meta["supersedes"] is None
    assert not list((system.data / "snapshots" / "p").glob("*.json"))
    # The table is unlocked, and the stream of changes exists.
    system.database.execute("SET lock_timeout TO '300s'; ALTER TABLE items ADD more int")
    assert received(system.server.url, "CDC") == []


def test_requests_for_one_table_share_a_snapshot(system: System) -> None:
    items(system.database)
    system.start_service()
    answered = threading.Event()

    def wait(_wave: int) -> None:
        answered.wait(LONG_S)

    system.before = wait
    answers = system.ask(*["items"] * 5)
    answered.set()
    assert len({answer["snapshot_id"] for answer in answers}) == 1
    system.finished()
    assert len(system.published()[1]) == 1
    system.ask("items")
    system.finished()
    assert len({meta["snapshot_id"] for meta in system.published()[1]}) == 2


def test_a_request_after_the_metadata_gets_another_snapshot(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN the metadata are published WHEN a request arrives before the record is removed, or
    before a restarted service notices it THEN the reply names a snapshot that is still to come."""
    items(system.database)
    answers: list[dict[str, Any]] = []

    def late(*_: object) -> None:
        answers.extend(system.ask("items"))
        assert system.service is not None
        system.service.stop()
        raise UnexpectedError("killed")

    monkeypatch.setattr(maker.Maker, "_complete", late)
    system.start_service()
    (first,) = system.ask("items")
    wait_for(lambda: answers, "the second answer")
    system.stop_service()
    monkeypatch.undo()
    requested, has_tail = threading.Event(), maker.Maker._has_tail

    def slow(self: maker.Maker, record: Record) -> bool:
        assert requested.wait(LONG_S)
        return has_tail(self, record)

    monkeypatch.setattr(maker.Maker, "_has_tail", slow)
    system.start_service()
    answers += system.ask("items")
    requested.set()
    assert system.finished()["state"] == "complete"
    published = [meta["snapshot_id"] for meta in system.published()[1]]
    assert published[0] == first["snapshot_id"]
    assert {answer["snapshot_id"] for answer in answers} == {published[1]}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_format_copy(system: System, compression: str) -> None:
    """COPY text for another COPY; its messages are separate from those of format `rows`."""
    items(system.database)
    system.pipeline["snapshots"]["compression"] = compression
    system.start_service()
    (rows,) = system.ask("items", body=b"please")
    (answer,) = system.ask("items", body=b'{"format": "copy"}')
    assert (rows["format"], answer["format"]) == ("rows", "copy")
    assert rows["snapshot_id"] != answer["snapshot_id"]
    record = system.finished()
    assert (record["id"], record["state"]) == (answer["snapshot_id"], "complete")
    found = received(system.server.url, "INIT")
    chunks = [
        message
        for message in found
        if message.subject.startswith(f"init.copy.items.{answer['snapshot_id']}.")
    ]
    assert len(chunks) > 5
    assert {message.headers["Tailrace-Columns"] for message in chunks} == {'["id", "name", "at"]'}
    unpack = zstandard.ZstdDecompressor().decompress if compression == "zstd" else bytes
    text = b"".join(unpack(message.payload) for message in chunks)
    with system.database.connect() as connection, connection.cursor() as cursor:
        connection.execute("SET timezone TO 'UTC'")
        with cursor.copy("COPY items TO STDOUT") as copied:
            expected = [bytes(line) for line in copied]
    assert sorted(text.splitlines(keepends=True)) == sorted(expected)
    (meta,) = [
        msgspec.json.decode(message.payload)
        for message in found
        if message.subject == "init.copymeta.items"
    ]
    assert (meta["row_count"], meta["batch_count"]) == (1000, len(chunks))


def test_requests_for_unknown_tables_are_refused(system: System) -> None:
    items(system.database)
    system.database.execute("CREATE TABLE hidden (id int)")
    system.start_service()
    for answer in system.ask("nowhere", "hidden", "a.b.c"):
        assert answer["code"] == "BAD_CONFIG"
        assert "items" in answer["hint"]


def test_quoted_names_and_the_publications_columns_and_row_filter(system: System) -> None:
    system.database.execute(
        """
        CREATE SCHEMA "Odd.One";
        CREATE TABLE "Odd.One"."a *>b" (id int PRIMARY KEY, "sh""own" text, secret text);
        INSERT INTO "Odd.One"."a *>b" SELECT g, 'v' || g, 'x' FROM generate_series(1, 10) g;
        CREATE PUBLICATION pub FOR TABLE "Odd.One"."a *>b" (id, "sh""own") WHERE (id <= 4);
        """
    )
    system.start_service()
    (answer,) = system.ask("Odd%2EOne.a%20%2A%3Eb")
    assert system.finished()["state"] == "complete"
    rows, (meta,) = system.published()
    expected = [{"id": number, 'sh"own': f"v{number}"} for number in range(1, 5)]
    assert by_id(rows[answer["snapshot_id"]]) == expected
    assert (meta["schema"], meta["table"]) == ("Odd.One", "a *>b")


def test_an_empty_table_has_metadata(system: System) -> None:
    items(system.database, 0)
    system.start_service()
    system.ask("items")
    assert system.finished()["rows"] == 0
    rows, (meta,) = system.published()
    assert rows == {}
    assert (meta["row_count"], meta["batch_count"]) == (0, 0)


@pytest.mark.parametrize("wave", [1, 2])
def test_resumes_after_a_crash_with_the_missing_chunks(system: System, wave: int) -> None:
    expected = items(system.database)
    # The duplicate window is too short to reject repeated chunks.
    stream = {"name": "INIT", "subjects": ["init.>"], "duplicate_window_s": 0.1}
    system.pipeline["snapshots"]["stream"] = stream
    system.cut_after = wave
    system.start_service()
    (answer,) = system.ask("items")
    wait_for(lambda: system.waves >= wave, "the wave before the cut")
    system.stop_service()
    system.database.execute("UPDATE items SET name = 'later'; DELETE FROM items WHERE id % 2 = 0")
    system.start_service()
    assert system.finished()["id"] == answer["snapshot_id"]
    rows, (meta,) = system.published()
    assert by_id(rows[answer["snapshot_id"]]) == expected
    assert meta["row_count"] == len(expected)
    assert meta["supersedes"] is None


@pytest.mark.parametrize("changed", [{"parallel": 5}, {"chunk_rows": 170}])
def test_resumes_after_a_crash_with_other_settings(system: System, changed: dict[str, int]) -> None:
    """A chunk that is stored under a number holds the rows of that number."""
    expected = items(system.database)
    system.cut_after = 1
    system.start_service()
    system.ask("items")
    wait_for(lambda: system.waves >= 1, "the wave before the cut")
    system.stop_service()
    system.pipeline["snapshots"] |= changed
    system.start_service()
    assert system.finished()["state"] == "complete"
    rows, (meta,) = system.published(max_rows=170)
    assert by_id(rows[meta["snapshot_id"]]) == expected


def test_postgres_fails_right_after_the_snapshot(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot without known stretches is not taken for an empty table."""
    expected = items(system.database)
    published, failures = PublishedTables.published, [PostgresUnreachableError("gone for a moment")]

    def failing(catalog: PublishedTables, table: TableName) -> tuple[Relation, PublishedTable]:
        if failures:
            raise failures.pop()
        return published(catalog, table)

    monkeypatch.setattr(PublishedTables, "published", failing)
    system.start_service()
    (answer,) = system.ask("items")
    assert system.finished()["state"] == "complete"
    rows, (meta,) = system.published()
    assert by_id(rows[answer["snapshot_id"]]) == expected
    assert meta["row_count"] == len(expected)


def test_a_new_snapshot_replaces_one_that_is_lost(system: System) -> None:
    items(system.database)
    system.cut_after = 1
    system.start_service()
    (answer,) = system.ask("items")
    wait_for(lambda: system.waves >= 1, "the wave before the cut")
    system.stop_service()
    system.database.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks"
        " WHERE relation = 'items'::regclass;"
        "DELETE FROM items WHERE id > 500"
    )
    system.start_service()
    record = system.finished()
    assert record["id"] != answer["snapshot_id"]
    rows, (meta,) = system.published()
    assert meta["supersedes"] == answer["snapshot_id"]
    assert [row["id"] for row in by_id(rows[str(record["id"])])] == list(range(1, 501))


def test_truncate_ends_the_snapshot(system: System) -> None:
    """TRUNCATE waits for the snapshot's lock, and all later sessions wait for TRUNCATE: without
    ending the snapshot, its readers would wait for ever, and requests would get no reply."""
    items(system.database)
    system.database.execute("CREATE TABLE others (id int); ALTER PUBLICATION pub ADD TABLE others")
    emptying = threading.Thread(
        target=system.database.execute, args=("TRUNCATE items; INSERT INTO items VALUES (1)",)
    )
    answers = []

    def empty(wave: int) -> None:
        if wave == 1:
            emptying.start()
            waiting = "SELECT FROM pg_locks WHERE relation = 'items'::regclass AND NOT granted"
            wait_for(
                lambda: system.database.query(waiting) or not emptying.is_alive(),
                "the lock to be asked for, or already granted",
            )
            answers.extend(system.ask("others"))

    system.before = empty
    system.start_service()
    (first,) = system.ask("items")
    wait_for(
        lambda: answers and system.finished()["id"] == answers[0]["snapshot_id"], "both snapshots"
    )
    emptying.join()
    rows, metas = system.published()
    meta = next(meta for meta in metas if meta["table"] == "items")
    assert meta["supersedes"] == first["snapshot_id"]
    assert [row["id"] for row in rows[meta["snapshot_id"]]] == [1]
    assert {meta["table"] for meta in metas} == {"items", "others"}


@pytest.mark.parametrize("joining", ["TABLE items", "TABLES IN SCHEMA public"])
def test_a_table_is_published_while_a_transaction_writes_to_it(
    system: System, joining: str
) -> None:
    """Row 1 is not in the stream: it was written before the table was published (P45)."""
    system.database.execute(
        "CREATE TABLE others (id int); CREATE PUBLICATION pub FOR TABLE others;"
        "CREATE TABLE items (id int PRIMARY KEY)"
    )
    system.start_service()
    with system.database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO items VALUES (1)")
        system.database.execute(f"ALTER PUBLICATION pub ADD {joining}")
        (answer,) = system.ask("items")
        holds(lambda: system.waves == 0, 1, "it waits for the writer")
        writer.execute("INSERT INTO items VALUES (2)")
        assert answer["state"] == "queued"
        assert system.waves == 0
        writer.execute("COMMIT")
    assert system.finished()["state"] == "complete"
    rows, _ = system.published()
    assert [row["id"] for row in by_id(rows[answer["snapshot_id"]])] == [1, 2]
    # Later snapshots do not wait for writers: their changes are in the stream.
    with system.database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO items VALUES (3)")
        system.ask("items")
        assert system.finished()["rows"] == 2
        writer.execute("COMMIT")


def test_a_bug_fails_one_snapshot_and_clients_get_the_error(system: System) -> None:
    items(system.database)
    system.start_service()
    system.fault = ValueError("odd")
    (answer,) = system.ask("items")
    assert system.finished()["state"] == "failed"
    (meta,) = system.published()[1]
    assert (meta["snapshot_id"], meta["error"]) == (answer["snapshot_id"], "ValueError: odd")
    system.ask("items")
    assert system.finished()["state"] == "complete"


def test_an_unexpected_error_is_not_retried_for_ever(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other snapshots wait for this one."""
    monkeypatch.setattr(maker, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(maker, "_MAX_RETRY_S", 0.01)
    items(system.database)
    failing = 9

    def fail(_wave: int) -> None:
        nonlocal failing
        failing -= 1
        if failing >= 0:
            raise UnexpectedError("odd")

    system.before = fail
    system.start_service()
    (first,) = system.ask("items")
    assert system.finished()["state"] == "failed"
    assert failing == 4
    (second,) = system.ask("items")
    assert system.finished()["state"] == "complete"
    metas = system.published()[1]
    assert [meta["snapshot_id"] for meta in metas] == [first["snapshot_id"], second["snapshot_id"]]
    assert metas[0]["error"] == "odd"


def test_nats_restarts(system: System) -> None:
    expected = items(system.database)
    system.start_service()
    (answer,) = system.ask("items")
    system.server.kill()
    time.sleep(1)
    system.server.start()
    assert system.finished()["state"] == "complete"
    rows, metas = system.published()
    assert by_id(rows[metas[-1]["snapshot_id"]]) == expected
    assert system.ask("items")[0]["snapshot_id"] != answer["snapshot_id"]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_compressed_with_a_dictionary(system: System, encoding: str) -> None:
    expected = items(system.database)
    pipeline = system.pipeline
    pipeline["encoding"] = encoding
    pipeline["snapshots"]["compression"] = "zstd"
    system.cut_after = 1
    system.start_service()
    decode = msgspec.json.decode if encoding == "json" else msgspec.msgpack.decode
    system.ask("items", decode=decode)
    wait_for(lambda: system.waves >= 1, "the wave before the cut")
    system.stop_service()
    system.start_service()
    assert system.finished()["state"] == "complete"
    rows: list[dict[str, Any]] = []
    chunks = [
        message
        for message in received(system.server.url, "INIT")
        if message.subject.startswith("init.snap.")
    ]
    stored = system.dictionaries()
    for chunk in chunks:
        assert chunk.headers["Content-Encoding"] == "zstd"
        dictionary = zstandard.ZstdCompressionDict(stored[chunk.headers["Tailrace-Dictionary"]])
        assert zstandard.get_frame_parameters(chunk.payload).dict_id == dictionary.dict_id()
        plain = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(chunk.payload)
        assert len(plain) > 3 * len(chunk.payload)
        rows += decode(plain)["data"]
    assert by_id(rows) == expected


def test_few_rows_have_no_dictionary(system: System) -> None:
    expected = items(system.database, 5)
    system.pipeline["snapshots"]["compression"] = "zstd"
    system.start_service()
    system.ask("items")
    assert system.finished()["state"] == "complete"
    (chunk, _meta) = received(system.server.url, "INIT")
    assert "Tailrace-Dictionary" not in chunk.headers
    plain = zstandard.ZstdDecompressor().decompress(chunk.payload)
    assert msgspec.json.decode(plain)["data"] == expected
