"""Snapshots on request: asked for over NATS, whole in the stream, whatever dies on the way."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard

from tailrace.errors import TailraceError, UnreachableError
from tailrace.snapshot.service import maker
from tailrace.snapshot.service.catalog import Catalog
from tailrace.testing import EmbeddedNats
from tailrace.visibility import Visibility
from tests.integration.snapshot.system import System
from tests.jetstream import received
from tests.waiting import holds, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.postgres.publication import PublishedTable, TableName
    from tailrace.schema import Relation
    from tailrace.snapshot.service.record import Record
    from tests.fix_postgres import Database


@pytest.fixture
def system(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[System]:
    with EmbeddedNats() as server, System(spark, database, server, tmp_path) as made:
        yield made


def items(database: Database, count: int = 1000) -> list[dict[str, Any]]:
    """A table of several pages, published; its rows as messages have them."""
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
    # Nothing holds the table any more, and the stream that consumers go on with is there.
    system.database.execute("SET lock_timeout TO '10s'; ALTER TABLE items ADD more int")
    assert received(system.server.url, "CDC") == []


def test_requests_for_one_table_share_a_snapshot(system: System) -> None:
    items(system.database)
    system.start_service()
    answers = system.ask(*["items"] * 5)
    assert len({answer["snapshot_id"] for answer in answers}) == 1
    system.finished()
    assert len(system.published()[1]) == 1
    system.ask("items")
    system.finished()
    assert len({meta["snapshot_id"] for meta in system.published()[1]}) == 2


def test_who_asks_behind_the_metadata_gets_another_snapshot(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN the metadata is out WHEN somebody asks before the snapshot is put away, or before a
    service that died there has seen that THEN there is a snapshot that he can wait for."""
    items(system.database)
    answers: list[dict[str, Any]] = []

    def late(*_: object) -> None:
        answers.extend(system.ask("items"))
        assert system.service is not None
        system.service.stop()
        raise TailraceError("died")

    monkeypatch.setattr(maker.Maker, "_complete", late)
    system.start_service()
    (first,) = system.ask("items")
    wait_for(lambda: answers, "the second answer")
    system.stop_service()
    monkeypatch.undo()
    asked, ended = threading.Event(), maker.Maker._ended

    def slow(self: maker.Maker, record: Record) -> bool:
        assert asked.wait(60)
        return ended(self, record)

    monkeypatch.setattr(maker.Maker, "_ended", slow)
    system.start_service()
    answers += system.ask("items")
    asked.set()
    assert system.finished()["state"] == "complete"
    made = [meta["snapshot_id"] for meta in system.published()[1]]
    assert made[0] == first["snapshot_id"]
    assert {answer["snapshot_id"] for answer in answers} == {made[1]}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_as_copy_writes_it(system: System, compression: str) -> None:
    """For those who hand the rows to another COPY; whoever waits for rows does not see them."""
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


def test_nobody_is_left_without_an_answer(system: System) -> None:
    items(system.database)
    system.database.execute("CREATE TABLE hidden (id int)")
    system.start_service()
    for answer in system.ask("nowhere", "hidden", "a.b.c"):
        assert answer["code"] == "BAD_CONFIG"
        assert "items" in answer["hint"]


def test_odd_names_columns_and_rows_of_the_publication(system: System) -> None:
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


def test_an_empty_table_has_its_metadata(system: System) -> None:
    items(system.database, 0)
    system.start_service()
    system.ask("items")
    assert system.finished()["rows"] == 0
    rows, (meta,) = system.published()
    assert rows == {}
    assert (meta["row_count"], meta["batch_count"]) == (0, 0)


@pytest.mark.parametrize("wave", [1, 2])
def test_after_a_crash_it_goes_on_with_what_is_missing(system: System, wave: int) -> None:
    expected = items(system.database)
    # What keeps a chunk from coming twice is not the server's window for repeated ids.
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
def test_after_a_crash_other_settings(system: System, changed: dict[str, int]) -> None:
    """What is stored under a chunk's number has the rows of that number."""
    expected = items(system.database)
    system.cut_after = 1
    system.start_service()
    system.ask("items")
    wait_for(lambda: system.waves >= 1, "the wave before the cut")
    system.stop_service()
    system.pipeline["snapshots"] |= changed
    system.start_service()
    assert system.finished()["state"] == "complete"
    rows, (meta,) = system.published(most_rows=170)
    assert by_id(rows[meta["snapshot_id"]]) == expected


def test_postgres_fails_right_behind_the_snapshot(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of which nothing is known yet is not an empty one."""
    expected = items(system.database)
    published, failures = Catalog.published, [UnreachableError("gone for a moment")]

    def failing(catalog: Catalog, table: TableName) -> tuple[Relation, PublishedTable]:
        if failures:
            raise failures.pop()
        return published(catalog, table)

    monkeypatch.setattr(Catalog, "published", failing)
    system.start_service()
    (answer,) = system.ask("items")
    assert system.finished()["state"] == "complete"
    rows, (meta,) = system.published()
    assert by_id(rows[answer["snapshot_id"]]) == expected
    assert meta["row_count"] == len(expected)


def test_without_its_snapshot_a_new_one_takes_its_place(system: System) -> None:
    items(system.database)
    system.cut_after = 1
    system.start_service()
    (answer,) = system.ask("items")
    wait_for(lambda: system.waves >= 1, "the wave before the cut")
    system.stop_service()
    system.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'items'::regclass;"
        "DELETE FROM items WHERE id > 500"
    )
    system.start_service()
    record = system.finished()
    assert record["id"] != answer["snapshot_id"]
    rows, (meta,) = system.published()
    assert meta["supersedes"] == answer["snapshot_id"]
    assert [row["id"] for row in by_id(rows[str(record["id"])])] == list(range(1, 501))


def test_whoever_wants_to_empty_the_table_goes_first(system: System) -> None:
    """He waits for the snapshot's lock, and all who come to the table wait for him: readers of the
    snapshot would wait for ever, and nobody would be answered."""
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
            wait_for(lambda: system.database.query(waiting), "the lock is asked for")
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
def test_a_table_that_joins_while_somebody_writes_to_it(system: System, joining: str) -> None:
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
    # From now on nobody is waited for: what is written is in the stream.
    with system.database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO items VALUES (3)")
        system.ask("items")
        assert system.finished()["rows"] == 2
        writer.execute("COMMIT")


def test_a_fault_of_our_own_ends_one_snapshot_and_is_told(system: System) -> None:
    items(system.database)
    system.start_service()
    system.fault = ValueError("odd")
    (answer,) = system.ask("items")
    assert system.finished()["state"] == "failed"
    (meta,) = system.published()[1]
    assert (meta["snapshot_id"], meta["error"]) == (answer["snapshot_id"], "ValueError: odd")
    system.ask("items")
    assert system.finished()["state"] == "complete"


def test_a_failure_that_nobody_has_a_name_for_is_not_tried_for_ever(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait behind it."""
    monkeypatch.setattr(maker, "_BACK_OFF_S", (0.01,))
    items(system.database)
    failing = 9

    def fail(_wave: int) -> None:
        nonlocal failing
        failing -= 1
        if failing >= 0:
            raise TailraceError("odd")

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


def test_nats_comes_back(system: System) -> None:
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
